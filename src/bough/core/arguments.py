"""What the public verbs take: a wrong type is refused by the parameter's name before anything is done.

Knows the parameters that would otherwise end in one of Python's own errors somewhere below, or be taken for true.
What is of the right type and wrong all the same is refused by the room that knows it; a keyword that no verb has
stays Python's to tell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from ..errors import BadQuery
from .fit import Budget
from .messages import Media
from .tree import Leaf
from .turns import OpenCall

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


class Kind(NamedTuple):
    takes: str
    fits: Callable[[Any], bool]


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.takes}, or None", lambda value: value is None or kind.fits(value))


def _of(home: str, name: str, takes: str) -> Kind:
    """Of a class that is loaded late: where it was not loaded yet, nothing can be one."""

    def fits(value: Any) -> bool:
        module = sys.modules.get(f"bough.{home}")
        return module is not None and isinstance(value, getattr(module, name))

    return Kind(takes, fits)


def _is_list(value: Any) -> bool:
    if type(value) is list:  # as mostly; each append asks
        return True
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(one, str) for one in value)


def _is_model(value: Any) -> bool:
    chain = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, str) or hasattr(one, "stream") for one in chain)


def _is_tools(value: Any) -> bool:
    """What is made one by one is looked at when it is taken."""
    return all(map(_is_tool, value)) if isinstance(value, list | tuple) else _is_list(value)


def _is_tool(value: Any) -> bool:
    return callable(value) or hasattr(value, "spec")


def _is_path(value: Any) -> bool:
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_prose(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


FLAG = Kind("True or False", lambda value: isinstance(value, bool))
NUMBER = Kind("a whole number", lambda value: type(value) is int)
TEXT = Kind("text", lambda value: isinstance(value, str))
BYTES = Kind("bytes", lambda value: isinstance(value, bytes))
NAMES = Kind("a list of texts", _is_names)
LIST = Kind("a list", _is_list)
PROSE = Kind("text that UTF-8 can hold", _is_prose)
MESSAGES = Kind("a list of messages: session.append([user('…')])", _is_list)
TOOLS = Kind("a list of tools or functions", _is_tools)
PAIR = Kind("a pair of texts, (name, value)", lambda value: _is_names(value) and len(value) == 2)
TAGS = Kind("a dict of texts", lambda value: isinstance(value, dict) and _is_names([*value, *value.values()]))
JSON = Kind("a dict", lambda value: isinstance(value, dict))
FUNCTION = Kind("a function", callable)
LEAF = Kind("a Leaf, such as session.leaf", lambda value: isinstance(value, Leaf))
PLACE = Kind("the number of an entry, or a Leaf", lambda value: type(value) is int or isinstance(value, Leaf))
CALL = Kind("a call of session.waiting() or session.open_calls", lambda value: isinstance(value, OpenCall))
BUDGET = Kind("a Budget, such as bough.Budget(tokens=…)", lambda value: isinstance(value, Budget))
MODEL = Kind("a model, the name of one such as 'anthropic:…', or a list of them", _is_model)
PATH = Kind("a path", _is_path)
SOURCE = Kind("a path or a binary file", lambda value: _is_path(value) or hasattr(value, "read"))
TARGET = Kind("a path or a binary file", lambda value: _is_path(value) or hasattr(value, "write"))
MEDIA = Kind("a media handle or its hash", lambda value: isinstance(value, str | Media))
LIMITS = _of("agent.limits", "Limits", "a Limits, such as bough.Limits(turns=…)")
WORKSPACE = _of("workspace", "Workspace", "a Workspace")
HANDLE = _of("session", "Session", "a session, as store.session(id) gives it")
STORE = _of("sessions", "Sessions", "a store, as bough.open(…) gives it")
ROW = _of("stores.store", "SessionRow", "a row")
ROWS = Kind("a list of rows", lambda value: isinstance(value, list | tuple) and all(map(ROW.fits, value)))
EITHER = Kind("a session or its id", lambda value: isinstance(value, str) or HANDLE.fits(value))

Kinds = Mapping[str, Kind]

_LATE = {"redact": FLAG, "blobs": FLAG, "children": FLAG, "progress": _or_none(FUNCTION)}
_TASK = {"queue": TEXT, "agent": _or_none(TEXT)}
_RUN = {"model": MODEL, "tools": TOOLS, "limits": _or_none(LIMITS), "one_shot": FLAG, **_TASK}
_REPLAY = {
    "model": _or_none(MODEL),
    "from_": _or_none(NUMBER),
    "live": NAMES,
    "limits": _or_none(LIMITS),
    "tools": Kind(f"'recorded', or {TOOLS.takes}", lambda value: isinstance(value, str) or _is_tools(value)),
    "progress": _or_none(FUNCTION),
}
_SEEN = {"provider": TEXT, "budget": _or_none(BUDGET)}

SESSION: Mapping[str, Kinds] = {
    "append": {"items": MESSAGES, "after": _or_none(LEAF)},
    "approve": {"call": CALL, "allow": FLAG},
    "call_key": {"call": CALL},
    "calls": {"since": _or_none(LEAF)},
    "checkout": {"leaf": LEAF},
    "close_batch": {"outcome": TEXT},
    "compact": {"summary": _or_none(PROSE), "first_kept": _or_none(NUMBER), "folds": FLAG},
    "enqueue": _TASK,
    "explain": {"provider": TEXT, "sent": _or_none(JSON)},
    "export": {"to": TARGET, **_LATE},
    "finetune": {"tools": TOOLS, "redact": FLAG},
    "fit": {"budget": BUDGET},
    "fork": {"tools": _or_none(NAMES)},
    "html": {"to": TARGET, **_LATE},
    "inspect": {"redact": FLAG},
    "journal": {"after": NUMBER, "limit": _or_none(NUMBER)},
    "jsonl": {"since": NUMBER, "redact": FLAG},
    "label": {"at": PLACE},
    "markdown": {"lines": NUMBER, "redact": FLAG},
    "messages": _SEEN,
    "path": {"since": NUMBER, "last": _or_none(NUMBER)},
    "read_blob": {"digest": TEXT},
    "replay": _REPLAY,
    "replay_sync": _REPLAY,
    "request": _SEEN,
    "resume": {**_RUN, "rollback": FLAG},
    "resume_sync": {**_RUN, "rollback": FLAG},
    "rewind": {"summary": _or_none(PROSE)},
    "send": _RUN,
    "send_sync": _RUN,
    "shell": {"argv": NAMES, "workspace": WORKSPACE, "commands": LIST},
    "spans": {"content": FLAG, "children": FLAG, "redact": FLAG},
    "tree": {"width": NUMBER},
    "usage": {"since": _or_none(LEAF)},
    "workflow": {"redact": FLAG},
    "workspace_tools": {"workspace": WORKSPACE},
}

_ABOUT = {
    "seeds": MESSAGES,
    "tags": TAGS,
    "tool_names": NAMES,
    "context_window": _or_none(NUMBER),
    "workspace": _or_none(WORKSPACE),
}
_FILTERS = {
    **dict.fromkeys(("agent", "conversation_id", "model", "owner"), _or_none(TEXT)),
    **dict.fromkeys(("parent_session", "prefix", "title", "space"), _or_none(TEXT)),
    **dict.fromkeys(("started_from", "started_before"), _or_none(NUMBER)),
    "tag": _or_none(PAIR),
    "trashed": FLAG,
    "children": FLAG,
}

SESSIONS: Mapping[str, Kinds] = {
    "blob": {"media": MEDIA},
    "copy": {"session": EITHER, "to": STORE, "new_id": FLAG},
    "delete": {"session_id": TEXT},
    "every": _FILTERS,
    "family": {"session_id": TEXT, "forks": FLAG},
    "gc": {"grace": NUMBER},
    "hydrate": {"session_id": TEXT},
    "import_bundle": {"source": SOURCE, "new_id": FLAG, "progress": _or_none(FUNCTION)},
    "import_from": {"tool": TEXT, "place": _or_none(PATH), "new_id": FLAG},
    "index": {"progress": _or_none(FUNCTION)},
    "latest": {"conversation_id": TEXT},
    "latest_or_start": {"conversation_id": TEXT, "fallback": _or_none(STORE), **_ABOUT},
    "purge": {"session_id": TEXT, "with_forks": FLAG},
    "put_blob": {"data": BYTES},
    "refuse_driven": {"rows": ROWS},
    "restore": {"session_id": TEXT},
    "search": {"trashed": FLAG, "catch_up": FLAG},
    "session": {"session_id": TEXT},
    "sessions": _FILTERS,
    "start": _ABOUT,
    "start_task": {"parent": HANDLE, **_ABOUT},
}


OPEN: Kinds = {
    "url": PATH,
    "space": TEXT,
    "owner": _or_none(TEXT),
    "key": _or_none(TEXT),
    "synchronous": TEXT,
    "secrets": Kind(
        "a list of texts, or a dict of names and texts", lambda value: _is_list(value) or TAGS.fits(value)
    ),
}


def guarded(verbs: Mapping[str, Kinds]) -> Callable[[type[C]], type[C]]:
    """A class whose verbs look at what they are given first."""

    def guard(made: type[C]) -> type[C]:
        for verb, kinds in verbs.items():
            setattr(made, verb, looking(kinds)(getattr(made, verb)))
        return made

    return guard


def looking(kinds: Kinds) -> Callable[[F], F]:
    """A verb that looks at what it is given first."""

    def guard(verb: F) -> F:
        code = verb.__code__
        placed = [(n, name) for n, name in enumerate(code.co_varnames[: code.co_argcount]) if name in kinds]

        @wraps(verb)
        def look(*given: Any, **named: Any) -> Any:
            for n, name in placed:
                if n < len(given) and not kinds[name].fits(given[n]):
                    raise BadQuery(name, given[n], kinds[name].takes)
            for name in named:
                if name in kinds and not kinds[name].fits(named[name]):
                    raise BadQuery(name, named[name], kinds[name].takes)
            return verb(*given, **named)

        return cast(F, look)

    return guard
