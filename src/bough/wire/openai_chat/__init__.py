"""OpenAI's Chat Completions, and every server that speaks it."""
