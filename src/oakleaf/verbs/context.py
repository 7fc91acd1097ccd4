"""What a model would be given: context."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct

from oakleaf.core.codec import to_json
from oakleaf.core.context import Context as Given
from oakleaf.core.messages import Message, Text, system
from oakleaf.core.tool_definitions import read_tools
from oakleaf.errors import OakleafError
from oakleaf.ext import WindowUse, read
from oakleaf.session import Session
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.entries import message_lines, role_colour
from oakleaf.verbs.fields import Help, Ref
from oakleaf.verbs.screen import Screen, safe, style
from oakleaf.wire import PROVIDERS, find_provider, provider_of
from oakleaf.wire.explain import Missing
from oakleaf.wire.left_out import left_out


class ChangedValue(Struct, frozen=True, kw_only=True):
    """The first difference of two requests."""

    path: str
    before: Any
    after: Any
    text: str


class Sent(Struct, frozen=True, kw_only=True):
    session: str
    provider: str
    window_use: WindowUse | None = None
    request: dict[str, Any] | None = None
    """As it is sent to the provider, without the model's name; null with `explain`."""
    system: list[str] = []
    tools: str | None = None
    """The tools of the request in words; null without tools."""
    options: dict[str, Any] = {}
    left_out: list[str] = []
    """What the session has and the provider is not sent: options, tools and fields of other providers."""
    difference: ChangedValue | None = None
    """With `explain`: the first difference from the last request; null if the provider's cache stays warm."""


class Context(Verb, frozen=True):
    """Print what the model would receive at this point.

    With @7, what it would receive after entry 7. --json prints the exact request for the provider. --explain prints the
    first difference from the last request, which is where a provider's cache stops helping; exit code 1 if there is one.
    """

    section = "Look"
    callers = frozenset({"operator", "service", "agent"})
    examples = ("oakleaf context ses_3f@7 --provider openai --json",)

    session: Ref = "latest"
    provider: Annotated[
        Literal["anthropic", "openai-chat", "openai", "gemini"] | None,
        Help("Whose format. Default: that of the session's model, or anthropic."),
    ] = None
    explain: Annotated[bool, Help("Only the first difference from the last request.")] = False

    def run(self, caller: Caller) -> Sent:
        session = caller.position(self.session).session_at()
        reader, provider = read(session), self.provider or _own_provider(session)
        if self.explain:
            found = reader.cache_break(provider)
            change = None if found is None else _change(found.path, found.before, found.after, str(found))
            return Sent(session=session.session_id, provider=provider, difference=change)
        given = session.context()
        return Sent(
            session=session.session_id,
            provider=provider,
            window_use=reader.window_use(),
            request=msgspec.to_builtins(session.request(provider)),
            system=list(given.system),
            tools=_tools(session, given),
            options=msgspec.to_builtins(given.settings.options or {}),
            left_out=left_out(provider, given, reader.blob),
        )

    def lines(self, result: Sent, screen: Screen) -> Iterator[str]:
        if result.request is None:
            change = result.difference
            warm = "the request begins with the previous one, byte for byte; the provider's cache stays warm"
            yield warm if change is None else safe(change.text)
            return
        for text in result.system:
            yield from _message("system", system(text), screen)
        if result.tools is not None:
            yield from _message("tools", system(result.tools), screen)
        if result.options:
            options = (f"{name}: {to_json(value, name).decode()}" for name, value in result.options.items())
            yield from _message("options", system("\n".join(options)), screen)
        for message in _messages(result.provider, result.request):
            yield from _message(message.role, message, screen)

    def notes(self, result: Sent, screen: Screen) -> Iterator[str]:
        yield from (f"left out for {result.provider}: {safe(line)}" for line in result.left_out)
        if result.window_use is not None:
            is_empty = not result.system and not (result.request or {}).get(
                find_provider(result.provider).history
            )
            yield "nothing: there are no messages yet" if is_empty else str(result.window_use)

    def exit_code(self, result: Sent) -> int:
        return int(result.difference is not None)


def _own_provider(session: Session) -> str:
    own = provider_of(session.row.model or "")
    return own if own in PROVIDERS else "anthropic"


def _change(path: str, before: Any, after: Any, text: str) -> ChangedValue:
    sides = (None if isinstance(side, Missing) else msgspec.to_builtins(side) for side in (before, after))
    return ChangedValue(path=path, before=next(sides), after=next(sides), text=text)


def _tools(session: Session, given: Given) -> str | None:
    """Return the tools of a request as text."""
    definitions = given.settings.tool_definitions
    tools = read_tools(definitions, read(session).blob)
    if tools:
        none = "" if definitions is None or definitions.is_callable else "\n(none callable)"
        return "\n".join(f"{tool.name}: {tool.description}" for tool in tools) + none
    if definitions is not None:
        missing = " (their definitions are not in this store)" if tools is None else ""
        return (", ".join(definitions.names) or "none") + missing
    return "not recorded" if any(message.calls for message in given.messages) else None


def _messages(provider: str, request: dict[str, Any]) -> list[Message]:
    """Return the messages of a request; those that cannot be read, because they were cut, as JSON."""
    known = find_provider(provider)
    found: list[Message] = []
    for sent in request.get(known.history, ()):
        try:
            found += known.parse_messages([sent])
        except OakleafError:
            found.append(Message("user", (Text(to_json(sent, "message").decode()),)))
    return [message for message in found if message.role != "system"]


def _message(name: str, message: Message, screen: Screen) -> Iterator[str]:
    yield ""
    yield style(name, *role_colour(name), "bold")
    yield from message_lines(message, screen, full=True)
