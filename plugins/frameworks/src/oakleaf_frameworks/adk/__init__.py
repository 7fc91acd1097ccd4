"""Google's ADK: Oakleaf as its session service."""

from oakleaf_frameworks.shared import needs_extra

with needs_extra("adk"):
    from oakleaf_frameworks.adk.service import OakleafSessionService

__all__ = ["OakleafSessionService"]
