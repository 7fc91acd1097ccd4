"""Anthropic's Messages API."""

NAME = "anthropic"
