"""Google's ADK: Bough as its session service."""

from .. import needs_extra

with needs_extra("adk"):
    from .service import BoughSessionService

__all__ = ["BoughSessionService"]
