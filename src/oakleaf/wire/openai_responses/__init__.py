"""OpenAI's Responses API, used without server-side state."""

NAME = "openai"
