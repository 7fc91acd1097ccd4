"""Google"s ADK: Bough as its session service."""

from .service import BoughSessionService

__all__ = ["BoughSessionService"]
