"""Evaluation logs of Inspect (`inspect_ai`)."""
