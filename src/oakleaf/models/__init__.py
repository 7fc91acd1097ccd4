"""Who answers, and what it costs."""
