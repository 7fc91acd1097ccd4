"""Google's ADK: Oakleaf as its session service."""

from .. import needs_extra

with needs_extra("adk"):
    from .service import OakleafSessionService

__all__ = ["OakleafSessionService"]
