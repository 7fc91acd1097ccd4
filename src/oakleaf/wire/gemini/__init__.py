"""Google's Gemini API."""

NAME = "gemini"
