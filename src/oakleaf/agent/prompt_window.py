"""How much of a model's window a context fills. Does not know providers."""

from __future__ import annotations

from msgspec import Struct

from oakleaf.core.context import Context
from oakleaf.core.fit import measure_context
from oakleaf.models.windows import SMALL_REQUEST, window_by_name


class WindowUse(Struct, frozen=True):
    """How much of a model's window a request fills, by our estimate of its tokens."""

    tokens: int
    window: int | None
    """None: it is not known, or the request is so small that it fits every model's."""

    def __str__(self) -> str:
        if self.window is None:
            return f"about {self.tokens:,} tokens"
        return f"about {self.tokens:,} of {self.window:,} tokens ({100 * self.tokens // self.window} %)"


def measure_window(context: Context, model: str | None, session_window: int | None) -> WindowUse:
    """Return what the request fills of the window of a model, by its name.

    `session_window` is that of the session, which holds for every model of it.
    """
    name = model or ""
    tokens = measure_context(context, name.partition(":")[0] or None).tokens
    windows = [session_window, (context.settings.windows or {}).get(name)]
    window = min((window for window in windows if window is not None), default=None)
    if window is None and tokens > SMALL_REQUEST:
        window = window_by_name(name)
    return WindowUse(tokens, window)
