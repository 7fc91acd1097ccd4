"""Tools: plain functions with type hints, and the effects of tools.

A tool's effect decides what happens after a crash: `read` and `idempotent` tools run again under the same key; an
`unsafe` tool (the default) never does: its `verify` finds out what happened, or its outcome stays unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, get_type_hints, overload

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from oakleaf.core.drafts import Blob
from oakleaf.core.facts import CallReference
from oakleaf.core.messages import Message, ToolCall, ToolResult, tool_result
from oakleaf.core.tool_definitions import ToolSpec
from oakleaf.core.turns import OpenCall
from oakleaf.core.typed_json import prepare
from oakleaf.errors import InvalidTool, InvalidValue
from oakleaf.log.threads import run_tool
from oakleaf.models.base import Model

P = ParamSpec("P")
R = TypeVar("R")
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # every type checker knows it

    from oakleaf.agent.limits import Limits
    from oakleaf.agent.tools.sources import ToolLike

    # Covariant and without a bound: so mypy finds a type for a list of different tools.
    F = TypeVarWithDefault("F", covariant=True, default=Any)
else:
    F = TypeVar("F", covariant=True)

Effect = Literal["read", "idempotent", "unsafe"]
Decision = Literal["approved", "denied"]
Approval = bool | Literal["named"]
"""Whether a person must approve each call of a tool, or only a person with a name may."""


class EarlierCall(OpenCall, frozen=True):
    """A call on an abandoned path and the outcome: a real or possible effect."""

    session_id: str
    """The session of the call: this session, a session above a fork, or a task."""
    entry_id: str
    """The id of the answer, in hex."""
    result: ToolResult | None
    """None: a started call without a result. Whether it took effect is unknown."""
    at: int
    """The time of the call, in microseconds since 1970, UTC."""

    @property
    def reference(self) -> CallReference:
        """The reference of a fact or a result, to find the call again."""
        return CallReference(self.session_id, self.seq, self.index, self.entry_id)


class PendingApproval(OpenCall, frozen=True):
    """A call in wait for a person, and the waiting session, possibly a task's."""

    session_id: str
    decided_elsewhere: Decision | None = None
    """The decision in the store of an import: not valid here."""
    earlier: EarlierCall | None = None
    """The same call on an abandoned path, if the person is asked because of that call."""


class TaskNeedsApproval(BaseException):
    """Leaves a tool whose task waits for a person. Not an `Exception`: a tool that catches those is left as
    well."""

    def __init__(self, approvals: Sequence[PendingApproval]) -> None:
        self.approvals = approvals


class TaskOptions(Struct, frozen=True):
    """The options of a task, as taken by `ToolContext.task`."""

    agent: str | None
    seeds: Sequence[Message]
    models: Sequence[Model] | None
    tools: Iterable[ToolLike]
    limits: Limits | None
    options: Mapping[str, Any] | None


RunTask = Callable[[str, str, TaskOptions], Awaitable[str]]
"""Runs a task of a tool under a key, on a text, and returns the answer."""


class Happened(Struct, frozen=True):
    """Returned by `verify` if the effect took place. `value` is the result of the call."""

    value: Any


class NeverHappened(Struct, frozen=True):
    """Returned by `verify` if the effect did not take place. The tool is run."""


class ToolContext:
    """A tool's access to the running session. Declare a parameter of this type to get it."""

    def __init__(
        self,
        key: str,
        session_id: str,
        call: ToolCall,
        state: Mapping[str, Any],
        run_task: RunTask | None = None,
        *,
        is_repeated: bool = False,
    ) -> None:
        self._run_task = run_task
        self._tasks: dict[str, asyncio.Future[str]] = {}
        self.key = key
        """The idempotency key: the same before and after a crash."""
        self.session_id = session_id
        self.call = call
        self.state = state
        """The session's state at the start of the tool."""
        self.updates: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self.blobs: list[Blob] = []
        """Bytes behind `details`, stored with the result."""
        self.is_repeated = is_repeated
        """Whether an earlier process started the call, possibly with an effect."""
        self.ends_turn = False
        self.is_cancelled = False
        """Set when the turn is cancelled. A tool in a thread should check it regularly, and stop."""

    async def task(
        self,
        text: str,
        *,
        agent: str | None = None,
        seeds: Sequence[Message] = (),
        models: Sequence[Model] | None = None,
        tools: Iterable[ToolLike] = (),
        limits: Limits | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Run a child session on `text` and return the final answer. Models and limits default to the
        parent's. With the parent's models, the options of their calls are the default too.

        If the child must wait for a person, the tool is left here and run again from its beginning after the
        decision; tasks that are done by then answer at once. So a tool that has tasks is `idempotent` or `read`.
        """
        if self._run_task is None:
            raise InvalidTool(self.call.name, "it is not run by a session, so it cannot start a task")
        key = f"{self.key}/{len(self._tasks) + 1}"
        task_options = TaskOptions(agent, seeds, models, tools, limits, options)
        self._tasks[key] = task = asyncio.ensure_future(self._run_task(key, text, task_options))
        try:
            return await task
        except TaskNeedsApproval:
            # A sibling that still runs is not stopped because this one waits: gathering them would do that.
            await asyncio.wait(self._tasks.values())
            raise

    @property
    def task_keys(self) -> list[str]:
        """The keys of the tasks started by this call, in order."""
        return list(self._tasks)

    @property
    def pending_approvals(self) -> list[PendingApproval]:
        """The calls in need of a decision before the tasks go on."""
        ended = [task.exception() for task in self._tasks.values() if task.done() and not task.cancelled()]
        return [call for error in ended if isinstance(error, TaskNeedsApproval) for call in error.approvals]

    def update(self, **changes: Any) -> None:
        """Change the session's state. The change is recorded with the result."""
        self.updates.update(changes)


MALFORMED = "The arguments are not a JSON object, so this was not run. Call it again with complete arguments."


class Tool(Struct, Generic[F], frozen=True, dict=True):
    """A function for a model to call: the description, the effect, and the way to run.

    Calling the tool calls the function, so that it can be tested like one. For type checkers the
    function's type is a parameter; `Tool` alone is a tool of any function.
    """

    spec: ToolSpec
    function: F
    arguments: type[Struct] | None
    """The type of the converted arguments; None: the function takes the arguments of the model unchanged."""
    context_name: str | None = None
    effect: Effect = "unsafe"
    verify: Callable[..., Any] | None = None
    dry_run: Callable[..., Any] | None = None
    approval: Approval = False
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            force_setattr(self, name, getattr(self.function, name, None))
        force_setattr(self, "__wrapped__", self.function)

    def __call__(self: Tool[Callable[P, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        return self.spec.name

    def refusal(self, call: ToolCall) -> Message | None:
        """Return the result of a call with malformed arguments: no run with defaults. None: the call may run."""
        return None if call.malformed is None else error_result(call, MALFORMED)

    @property
    def is_async(self: Tool) -> bool:
        """Whether the function or `verify` is a coroutine function."""
        return any(is_async(function) for function in (self.function, self.verify) if function is not None)

    async def run(self: Tool, context: ToolContext, *, in_thread: bool = True) -> Message:
        """Run the tool and return the result as a message. Whatever the tool does, there is a result: an
        error is one too.

        Without `in_thread` a function that is not async runs in the calling thread, and nothing is awaited.
        """
        if (refusal := self.refusal(context.call)) is not None:
            return refusal
        try:
            running = self._call(self.function, context, in_thread=in_thread)
            is_bounded = in_thread and self.timeout is not None
            return self.result(context, await (_bounded(running, self.timeout) if is_bounded else running))
        except asyncio.CancelledError as error:
            context.is_cancelled = True
            task = asyncio.current_task() if in_thread else None
            if task is not None and task.cancelling():
                raise
            return self.failure(context.call, error)  # raised by the tool itself
        except TimedOut:
            context.is_cancelled = True
            return self._timed_out(context.call)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; the session must not break
            return self.failure(context.call, error)

    def failure(self, call: ToolCall, error: BaseException) -> Message:
        """Return the result of a call after an error. A source's tools may choose other words."""
        return error_result(call, error_text(error))

    async def run_dry(self, context: ToolContext) -> Message:
        """Return a description of the effect, made by `dry_run`. Nothing is done."""
        assert self.dry_run is not None
        message = await replace(self, function=self.dry_run, effect="read").run(context)
        return replace(message, parts=(replace(message.results[0], outcome="dry_run"),))

    def _timed_out(self, call: ToolCall) -> Message:
        """Return the result after a timeout. A thread cannot be stopped: what an unsafe tool still does is
        not known."""
        why = f"{self.name} took longer than {self.timeout:g} s"
        if self.effect == "unsafe":
            return tool_result(
                call.id, f"{why}; whether it took effect is unknown", error=True, outcome="unknown"
            )
        return error_result(call, f"{why} and was stopped")

    async def check_outcome(
        self, context: ToolContext, *, in_thread: bool = True
    ) -> Happened | NeverHappened | None:
        """Find out the outcome of a call started before a crash. None: unknown."""
        if self.verify is None:
            return None
        try:
            outcome = await self._call(self.verify, context, in_thread=in_thread)
        except Exception:  # noqa: BLE001 - a verify that fails leaves the outcome unknown
            return None
        return outcome if isinstance(outcome, Happened | NeverHappened) else None

    def result(self, context: ToolContext, value: object) -> Message:
        """Return the function's value as a message. A value that no store could keep becomes an error result."""
        try:
            return self.message(context, value)
        except InvalidValue as error:
            return error_result(context.call, f"{self.name} returned a value that cannot be stored: {error}")

    def message(self, context: ToolContext, value: object) -> Message:
        """Return the function's value as a message. A source's tools may have results of their own."""
        return tool_result(
            context.call.id,
            "" if value is None else value,
            ends_turn=context.ends_turn,
            state=context.updates or None,
            details=context.details or None,
        )

    async def _call(self, function: Callable[..., Any], context: ToolContext, *, in_thread: bool) -> Any:
        arguments = dict(context.call.arguments)
        if self.arguments is not None:
            arguments = msgspec.structs.asdict(msgspec.convert(arguments, self.arguments))
        if self.context_name is not None and self.context_name in inspect.signature(function).parameters:
            arguments[self.context_name] = context
        try:
            if is_async(function):
                with _no_forked_child(self.name):
                    return await function(**arguments)
            if not in_thread:
                with _no_forked_child(self.name):
                    return _run_here(function, arguments, self.timeout, self.name)
            value = await run_tool(_run_in_thread, function, arguments, self.name)
            return await value if isinstance(value, Awaitable) else value
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, TaskNeedsApproval):
            raise
        except BaseException as error:  # noqa: BLE001 - it would end the turn, or the host, as `sys.exit` does
            if isinstance(error, BaseExceptionGroup) and (approvals := context.pending_approvals):
                raise TaskNeedsApproval(approvals) from None
            raise ToolExit(error_text(error)) from None


class ToolExit(Exception):
    """An exit raised by a tool: the original would end more than the call, or hang the thread."""


class TimedOut(Exception):
    """A tool took too long."""


async def _bounded(running: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    # Not in a task of its own, as `wait_for` has it: Ctrl-C would leave that one, and later the one that waits for it.
    try:
        async with asyncio.timeout(timeout) as timer:
            return await running
    except TimeoutError:
        if timer.expired():
            raise TimedOut from None
        raise


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of the function returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def function_tool(name: str, function: Callable[..., Any]) -> Tool:
    """Return an unsafe tool of any function. The function takes a call's arguments unchanged."""
    return Tool(ToolSpec(name, "", {}), function, None)


def _run_here(
    function: Callable[..., Any], arguments: dict[str, Any], timeout: float | None, name: str
) -> Any:
    """Call a function in this thread. With a timeout, use a new thread, which may have to be left."""
    if timeout is None:
        value = function(**arguments)
    else:
        threads = ThreadPoolExecutor(1, thread_name_prefix="oakleaf-tool")
        try:
            running = threads.submit(_run_in_thread, function, arguments, name)
            if not wait([running], timeout).done:
                raise TimedOut
            value = running.result()
        finally:
            threads.shutdown(wait=False)
    if isinstance(value, Awaitable):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            "the function returned an awaitable and was not awaited; pass an `async def` function"
        )
    return value


@contextmanager
def _no_forked_child(name: str) -> Iterator[None]:
    """End a forked child process on the way out of a tool. The run goes on in the parent alone.

    The child would wait for ever in a thread pool of the parent, or close the parent's event loop, which it shares.
    """
    pid = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != pid:
            text = f"oakleaf: a process forked by the tool {name} left it and was ended; end it with os._exit(0)\n"
            os.write(2, text.encode("utf-8", "replace"))
            os._exit(1)


def _run_in_thread(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    """Replace errors unable to leave a thread. Awaiting StopIteration would never end, and Ctrl-C only
    reaches the main thread."""
    try:
        with _no_forked_child(name):
            return function(**arguments)
    except (StopIteration, KeyboardInterrupt, GeneratorExit) as error:
        raise ToolExit(error_text(error)) from None


def error_text(error: BaseException) -> str:
    try:
        if isinstance(error, ToolExit):
            return str(error)
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error whose text cannot be made
        return type(error).__name__


def error_result(call: ToolCall, why: str) -> Message:
    text = why.encode("utf-8", "replace").decode()
    return tool_result(call.id, text, error=True)


@overload
def tool(function: AnyFunction, /) -> Tool[AnyFunction]: ...
@overload
def tool(
    *,
    effect: Effect = "unsafe",
    name: str | None = None,
    verify: Callable[..., Any] | None = None,
    dry_run: Callable[..., Any] | None = None,
    approval: Approval = False,
    timeout: float | None = None,
) -> Callable[[AnyFunction], Tool[AnyFunction]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    effect: Effect = "unsafe",
    name: str | None = None,
    verify: Callable[..., Any] | None = None,
    dry_run: Callable[..., Any] | None = None,
    approval: Approval = False,
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, by `@tool` or `@tool(effect=…)`.

    The model sees the function's name, docstring and type hints. The result can still be called as the function
    it was: `refund(41)`; a type checker checks the arguments and knows the result. A parameter of type `ToolContext`
    is filled in by the session and not shown to the model.

    effect: what may be done after a crash. `read` (no effect) and `idempotent` (running it twice is running it once)
        run again under the same key; `unsafe`, the default, never does.
    name: the name the model sees, instead of the function's.
    verify: a function of the same arguments that finds out, after a crash, whether the effect took place. It returns
        `Happened(result)`, `NeverHappened()` or None (unknown).
    dry_run: a function of the same arguments that says what the tool would do; used by `session.replay(mode="dry")`.
    approval: whether a person must approve each call (`session.approve`) before it runs; `"named"`: a person with a name.
    timeout: seconds after which a call is stopped and its result is an error.
    """

    def make(function: Callable[..., Any]) -> Tool:
        tool_name = name or getattr(function, "__name__", None)
        if not callable(function) or tool_name is None:
            raise InvalidTool(repr(function)[:80], "it is not a function with a name")
        if effect not in ("read", "idempotent", "unsafe"):
            raise InvalidTool(tool_name, f"effect {effect!r} is unknown; use read, idempotent or unsafe")
        if approval not in (True, False, "named"):
            raise InvalidTool(tool_name, f"approval {approval!r} is unknown; use True, False or 'named'")
        arguments, context_name = _arguments(function, tool_name)
        description = inspect.getdoc(function) or tool_name.replace("_", " ")
        spec = ToolSpec(tool_name, description, _schema(arguments, tool_name))
        return Tool(spec, function, arguments, context_name, effect, verify, dry_run, approval, timeout)

    return make if function is None else make(function)


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
    struct = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
    return struct, context_name


def _schema(arguments: type[Struct], name: str) -> dict[str, Any]:
    try:
        (reference,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
        prepare(arguments)  # parallel calls convert theirs in several threads
    except (TypeError, NotImplementedError) as error:
        raise InvalidTool(name, f"no JSON schema can be made of its parameters ({error})") from None
    schema = dict(parts.pop(reference["$ref"].rpartition("/")[2]))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema
