"""The part of a model's window filled by a context. Does not know providers."""

from __future__ import annotations

from msgspec import Struct

from oakleaf.core.context import Context
from oakleaf.core.fit import measure_context
from oakleaf.models.windows import SMALL_REQUEST, window_by_name
from oakleaf.wire import provider_of


class WindowUse(Struct, frozen=True):
    """The part of a model's window filled by a request, by an estimate of the tokens."""

    tokens: int
    window: int | None
    """None: the window is not known, or the request is small enough for every model."""

    def __str__(self) -> str:
        if self.window is None:
            return f"about {self.tokens:,} tokens"
        return f"about {self.tokens:,} of {self.window:,} tokens ({100 * self.tokens // self.window} %)"


def measure_window(context: Context, model: str | None, session_window: int | None) -> WindowUse:
    """Return the part of a named model's window filled by the request.

    `session_window` is that of the session, which holds for every model of it.
    """
    name = model or ""
    tokens = measure_context(context, provider_of(name) or None).tokens
    windows = [session_window, (context.settings.windows or {}).get(name)]
    window = min((window for window in windows if window is not None), default=None)
    if window is None and tokens > SMALL_REQUEST:
        window = window_by_name(name)
    return WindowUse(tokens, window)
