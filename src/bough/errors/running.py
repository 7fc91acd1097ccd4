"""Errors of running an agent: models, tools, limits, workers, the server's door."""

from __future__ import annotations

from collections.abc import Sequence

from .root import BoughError, list_some, shorten


class UnknownProvider(BoughError):
    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(f"no provider {name!r}; known are {', '.join(known)}")


class ModelError(BoughError):
    """A model gave no answer."""

    def __init__(self, model: str, why: str, hint: str = "") -> None:
        self.model, self.why = model, why
        super().__init__(f"{model} gave no answer: {why}{'; ' + hint if hint else ''}")


class Overloaded(ModelError):
    """Too busy, unreachable or broken for now. `after` is how many seconds it asked us to wait."""

    def __init__(self, model: str, why: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(
            model, why, "it is tried again with growing pauses, then the next in the fallback chain"
        )


class ContextOverflow(ModelError):
    """The history is too long for it."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why, "compact the session or lower the budget")


class TruncatedReply(ModelError):
    """The answer ended in the middle."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(model, why, "what it had said is lost; call it again")


class ModelUnavailable(ModelError):
    """No such model, no key, or its SDK is not installed; the hint names the variable or the extra."""


class UnrecognizedReply(BoughError):
    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}; hand in an Anthropic message, an OpenAI response or chat completion, a Gemini response "
            "(object or dict), or bough.assistant(…)"
        )


class InvalidTool(BoughError):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"{name} cannot be a tool: {why}; give every parameter a name and a type hint that JSON can hold"
        )


class UnknownAgent(BoughError):
    def __init__(self, name: str | None, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        who = "no agent is named" if name is None else f"this worker knows no agent {name!r}"
        super().__init__(
            f"{who} (it knows {list_some(known) or 'none'}); run bough worker --agents FILE.py with a file that holds "
            f"bough.engines.absurd.Agent({name or 'NAME'!r}, model=…)"
        )


class LimitReached(BoughError):
    def __init__(self, session_id: str, what: str) -> None:
        self.session_id, self.what = session_id, what
        super().__init__(f"nothing was sent to session {session_id}: {what}")


class TurnFailed(BoughError):
    def __init__(self, session_id: str, why: str) -> None:
        self.session_id, self.why = session_id, why
        super().__init__(
            f"the turn of session {session_id} got no answer: {why}; what is durable stays and the task is tried "
            'again. Once it has failed for good: session.resume(engine="absurd")'
        )


class SessionRewound(BoughError):
    def __init__(self, session_id: str, step_end: int, seq: int) -> None:
        self.session_id, self.step_end, self.seq = session_id, step_end, seq
        super().__init__(
            f"session {session_id} stands at {seq}, the task's steps had reached {step_end}: somebody moved it. "
            "Send again from where it stands, or session.redo() and try the task again"
        )


class OutOfScope(BoughError):
    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(
            f"{shorten(what)!r} is out of scope: {why}; nothing was done. Stay within what the workspace "
            "allows, or ask the person to widen it"
        )


class TokenRequired(BoughError):
    """A server that others could reach without a token; it was not started."""

    def __init__(
        self,
        host: str,
        why: str = "others can reach it there",
        hint: str = "say --token SECRET, or --host 127.0.0.1",
    ) -> None:
        self.host = host
        super().__init__(f"not served on {host} without a token: {why}; {hint}")
