"""Who answers, and what it costs. For now: prices."""
