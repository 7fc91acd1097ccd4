"""Tools: plain functions with type hints, and what is known of their effects.

A tool's effect says what may be done after a crash: `read` and `idempotent` tools run again under the same
key, an `unsafe` one (the default) never does: its `verify` says what became of it, or its outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeVar, get_type_hints, overload

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...core.messages import Message, ToolCall, tool_result
from ...errors import InvalidTool, InvalidValue
from ...models.model import ToolSpec
from ..approvals import PendingApproval, TaskNeedsApproval

Effect = Literal["read", "idempotent", "unsafe"]
F = TypeVar("F", bound=Callable[..., Any])


class Happened(Struct, frozen=True):
    """What `verify` returns when the effect took place: this is the result it had."""

    value: Any


class NeverHappened(Struct, frozen=True):
    """What `verify` returns when the effect did not take place: the tool is run."""


class ToolContext:
    """What a tool may ask of the session it runs in. Take it as a parameter of this type."""

    def __init__(
        self,
        key: str,
        session_id: str,
        call: ToolCall,
        state: Mapping[str, Any],
        run_task: Callable[..., Awaitable[str]] | None = None,
    ) -> None:
        self._run_task = run_task
        self._tasks: dict[str, asyncio.Future[str]] = {}
        self.key = key
        """The idempotency key: the same before and after a crash."""
        self.session_id = session_id
        self.call = call
        self.state = state
        """The session's state as it was when the tool started."""
        self.updates: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self.ends_turn = False
        self.is_cancelled = False
        """Set when the turn is cancelled: a tool that runs in a thread should look now and then, and stop."""

    async def task(self, text: str, **how: Any) -> str:
        """Have a child session do it, and return its final answer. Takes agent, seeds, models, tools, limits.

        If the child must wait for a person the tool is left here, and run again from its beginning when there was a
        word: tasks that are done by then answer at once. So a tool that has tasks is `idempotent` or `read`.
        """
        if self._run_task is None:
            raise InvalidTool(self.call.name, "it is not run by a session, so it cannot start a task")
        key = f"{self.key}/{len(self._tasks) + 1}"
        self._tasks[key] = task = asyncio.ensure_future(self._run_task(key, text, **how))
        try:
            return await task
        except TaskNeedsApproval:
            # One that still runs is not stopped because its sibling waits: whoever gathers them would do that.
            await asyncio.wait(self._tasks.values())
            raise

    @property
    def task_keys(self) -> list[str]:
        """The keys of the tasks it has started, in order."""
        return list(self._tasks)

    @property
    def pending_approvals(self) -> list[PendingApproval]:
        """What its tasks wait for."""
        ended = [task.exception() for task in self._tasks.values() if task.done() and not task.cancelled()]
        return [call for error in ended if isinstance(error, TaskNeedsApproval) for call in error.approvals]

    def update(self, **changes: Any) -> None:
        """Change the session's state; recorded with the result."""
        self.updates.update(changes)


MALFORMED = "The arguments are not a JSON object, so this was not run. Call it again with whole arguments."


class Tool(Struct, frozen=True):
    """A function a model may call: what it is told of it, what its effect is, and how it is run."""

    spec: ToolSpec
    function: Callable[..., Any]
    arguments: type[Struct]
    context_name: str | None = None
    effect: Effect = "unsafe"
    verify: Callable[..., Any] | None = None
    dry_run: Callable[..., Any] | None = None
    approval: bool = False
    timeout: float | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def refusal(self, call: ToolCall) -> Message | None:
        """The result of a call that is not to be run at all: its defaults are not what was asked for."""
        return None if call.malformed is None else error_result(call, MALFORMED)

    async def run(self, context: ToolContext) -> Message:
        """The result as a message. Whatever the tool does, there is one: an error is a result too."""
        if (refusal := self.refusal(context.call)) is not None:
            return refusal
        try:
            value = await asyncio.wait_for(self._call(self.function, context), self.timeout)
            return self.result(context, value)
        except asyncio.CancelledError as error:
            context.is_cancelled = True
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error_result(context.call, error_text(error))  # raised by the tool itself
        except TimeoutError as error:
            if self.timeout is None:
                return error_result(context.call, error_text(error))
            context.is_cancelled = True
            return self._late(context.call)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; the session must not break
            return error_result(context.call, error_text(error))

    async def run_dry(self, context: ToolContext) -> Message:
        """What it would have done, by its `dry_run`; nothing is done."""
        assert self.dry_run is not None
        message = await replace(self, function=self.dry_run, effect="read").run(context)
        return replace(message, parts=(replace(message.results[0], outcome="dry_run"),))

    def _late(self, call: ToolCall) -> Message:
        """A thread cannot be stopped: what an unsafe tool still does after its time is not known."""
        why = f"{self.name} took longer than {self.timeout:g} s"
        if self.effect == "unsafe":
            return tool_result(
                call.id, f"{why}; whether it took effect is unknown", error=True, outcome="unknown"
            )
        return error_result(call, f"{why} and was stopped")

    async def check_outcome(self, context: ToolContext) -> Happened | NeverHappened | None:
        """What became of a call that was started before a crash; None: nobody knows."""
        if self.verify is None:
            return None
        try:
            found = await self._call(self.verify, context)
        except Exception:  # noqa: BLE001 - who cannot find out does not know
            return None
        return found if isinstance(found, Happened | NeverHappened) else None

    def result(self, context: ToolContext, value: object) -> Message:
        try:
            return tool_result(
                context.call.id,
                "" if value is None else value,
                ends_turn=context.ends_turn,
                state=context.updates or None,
                details=context.details or None,
            )
        except InvalidValue as error:
            return error_result(context.call, f"{self.name} returned what cannot be kept: {error}")

    async def _call(self, function: Callable[..., Any], context: ToolContext) -> Any:
        given = msgspec.structs.asdict(msgspec.convert(context.call.arguments, self.arguments))
        if self.context_name is not None and self.context_name in inspect.signature(function).parameters:
            given[self.context_name] = context
        if inspect.iscoroutinefunction(function):
            return await function(**given)
        found = await asyncio.to_thread(_without_stop, function, given)
        return await found if isinstance(found, Awaitable) else found


def _without_stop(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """A StopIteration cannot leave a thread: the one who waits for it would wait for ever."""
    try:
        return function(**given)
    except StopIteration as error:
        raise RuntimeError(f"StopIteration: {error}") from None


def error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even say what it is
        return type(error).__name__


def error_result(call: ToolCall, why: str) -> Message:
    text = why.encode("utf-8", "replace").decode()
    return tool_result(call.id, text, error=True)


@overload
def tool(function: Callable[..., Any]) -> Tool: ...
@overload
def tool(
    *,
    effect: Effect = "unsafe",
    name: str | None = None,
    verify: Callable[..., Any] | None = None,
    dry_run: Callable[..., Any] | None = None,
    approval: bool = False,
    timeout: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, **how: Any) -> Any:
    """Make a tool of a function: its name, docstring and type hints are what the model is told."""
    return _made(function, **how) if function is not None else lambda found: _made(found, **how)


def _made(function: Callable[..., Any], *, name: str | None = None, **how: Any) -> Tool:
    spoken = name or getattr(function, "__name__", None)
    if not callable(function) or spoken is None:
        raise InvalidTool(repr(function)[:80], "it is no function with a name")
    effect = how.get("effect", "unsafe")
    if effect not in ("read", "idempotent", "unsafe"):
        raise InvalidTool(spoken, f"effect {effect!r} is unknown; use read, idempotent or unsafe")
    arguments, context_name = _arguments(function, spoken)
    description = inspect.getdoc(function) or spoken.replace("_", " ")
    spec = ToolSpec(spoken, description, _schema(arguments, spoken))
    return Tool(spec, function, arguments, context_name, **how)


def _arguments(function: Callable[..., Any], name: str) -> tuple[type[Struct], str | None]:
    fields: list[Any] = []
    context_name = None
    try:
        hints = get_type_hints(function, localns={"ToolContext": ToolContext}, include_extras=True)
    except NameError as error:
        raise InvalidTool(name, f"its type hints cannot be read ({error})") from None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidTool(name, f"parameter {parameter} has no name a model could use")
        hint = hints.get(parameter.name)
        if hint is ToolContext:
            context_name = parameter.name
        elif hint is None:
            raise InvalidTool(name, f"parameter {parameter.name} has no type hint")
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, parameter.default))
    made = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
    return made, context_name


def _schema(arguments: type[Struct], name: str) -> dict[str, Any]:
    try:
        (reference,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, NotImplementedError) as error:
        raise InvalidTool(name, f"no JSON schema can be made of its parameters ({error})") from None
    schema = dict(parts.pop(reference["$ref"].rpartition("/")[2]))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema
