"""A verb: an operation on sessions, declared once. Every surface derives its form of the operation from the declaration.

A verb is a Struct: its fields are the parameters, its docstring is the help, `run` returns a Struct that every surface
shows: the command line as `lines` or JSON, HTTP and MCP as JSON. Knows no surface.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Literal, Protocol, get_type_hints

import msgspec
from msgspec import Struct

from oakleaf.errors import IndexBehind, SpacesHidden
from oakleaf.ext import read_store
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.verbs.reference import Position, resolve, stored, whole
from oakleaf.verbs.screen import Line, Screen

Effect = Literal["read", "write", "destroy"]
Level = Literal["operator", "service", "agent"]
"""Who calls: a person at the command line or a Python program, the holder of a server's token, or a model over MCP."""
SCHEMA_VERSION = 1


class Step(Protocol):
    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Say how much of a long work is done."""


class Caller:
    """Who calls a verb: the store as the caller sees it, and the sessions that the caller may name."""

    level: Level = "operator"
    surface: str = "Python"
    """The way by which the call came, for the record of a decision."""
    key: str | None = None
    """The key under which a change is made once, however often it is asked for."""
    most: int | None = None
    """How many items an answer has if a request names no number; None: all."""

    def __init__(self, store: Store | Callable[[], Store], address: str | None = None) -> None:
        self._open, self._address = store, address

    @property
    def store(self) -> Store:
        """The store, opened when first used."""
        if not isinstance(self._open, Store):
            self._open = self._open()
        return self._open

    def stores(self, *, all_spaces: bool) -> list[Store]:
        """Return the store, or one for each space of it. Raises SpacesHidden."""
        if not all_spaces:
            return [self.store]
        return [self.store.in_space(name) for name in self.store.spaces()]

    def other_spaces(self) -> list[str]:
        """Return the other spaces that have sessions, if the caller may know them: an operator may."""
        if self.level != "operator":
            return []
        with suppress(SpacesHidden):
            return [name for name in self.store.spaces() if name != read_store(self.store).space]
        return []

    @property
    def address(self) -> str:
        """The address of the store, which need not be there, with the password in it."""
        return self._address or read_store(self.store).url

    def position(self, reference: str, *, trashed: bool = False) -> Position:
        """Return the session that a reference names, and the entry if it names one."""
        return resolve(self.store, reference, trashed=trashed)

    def stored_position(self, reference: str, *, trashed: bool = False) -> Position:
        """Return the same for a change: a session in the trash is refused, unless `trashed` looks there."""
        return stored(self.position(reference, trashed=trashed), trashed=trashed)

    def session(self, reference: str) -> Session:
        """Return a whole session; a reference to an entry is refused."""
        return whole(self.position(reference), reference)

    def stored_session(self, reference: str, *, trashed: bool = False) -> Session:
        """Return a whole session for a change."""
        return whole(self.stored_position(reference, trashed=trashed), reference)

    def check_model(self, name: str | None) -> None:
        """Raise ModelRefused for a model that the caller may not name. The operator may name any."""

    def person(self, named: str | None) -> str | None:
        """Return the name of the person who decides; `named` is the name in the call."""
        return named

    def forget(self, inputs: Collection[str]) -> int:
        """Remove inputs from what the caller's own programs keep of them; return how many were found."""
        return 0

    def typed(self, command: str, space: str | None = None) -> str:
        """Return a suggested command as the caller must type it, for another space if one is named."""
        return command

    def index(self) -> str | None:
        """Index new entries for a search; return why some cannot be indexed now. What is indexed can still be searched."""
        try:
            with self.progress("index", "entries") as step:
                self.store.index(lambda done, remaining: step(done, None))
        except IndexBehind as behind:
            return behind.reason
        return None

    def resume(self, session: Session) -> bool:
        """Continue the turn of a session once no call waits for approval; return whether that was done here."""
        return False

    @contextmanager
    def progress(self, label: str, unit: str = "") -> Iterator[Step]:
        """Show how long work goes on, where somebody looks."""
        yield lambda done, total, note="": None


def _outer(name: str) -> str:
    """Return a field's name outside Python: `from_` is `from`."""
    return name.rstrip("_")


class Verb(Struct, frozen=True, forbid_unknown_fields=True, rename=_outer):
    """An operation on sessions. A subclass declares the fields, `run`, and what people read of the result."""

    name: ClassVar[str] = ""
    """As it is typed. Default: the name of the class. `lab show` is a verb of the command group `lab`; its entry point is
    `lab.show`."""
    section: ClassVar[str] = "Plugins"
    """Where the list of commands has it."""
    effect: ClassVar[Effect] = "read"
    callers: ClassVar[frozenset[Level]] = frozenset({"operator", "service"})
    http: ClassVar[str] = ""
    """Method and path, such as `GET /api/sessions/{session}`. Default: by effect, below the session or `/api`."""
    status: ClassVar[int] = 200
    """The status over HTTP: 201 for a verb that creates a session."""
    has_local_plan: ClassVar[bool] = False
    """Whether only local fields have a plan: a request does at once what it says."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines that the help shows."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    def __call__(self, store: Store) -> Any:
        """Run the verb on a store, as an operator."""
        return self.run(Caller(store))

    def run(self, caller: Caller) -> Any:
        """Do it. The annotation of the result, a Struct, is what surfaces describe."""
        raise TypeError(f"{type(self).__name__} does not say what it does: define run")

    def plan(self, caller: Caller) -> Any:
        """Return what `run` would do, as the same type, without doing it. Destroying verbs have a plan."""
        raise TypeError(f"{type(self).__name__} has no plan: define plan")

    def follow(self, caller: Caller) -> Iterator[Any]:
        """Yield what comes, without an end, and None where nothing has come. The command line prints a line of JSON each."""
        raise TypeError(f"{type(self).__name__} follows nothing: define follow")

    @property
    def needs_yes(self) -> bool:
        """Whether the plan is shown and confirmed before the verb runs."""
        return self.effect == "destroy"

    def question(self, planned: Any) -> str | None:
        """Return what is asked before the verb runs; None if there is nothing to do."""
        return "Continue?"

    def confirmed(self, planned: Any) -> Verb:
        """Return the verb that runs after the plan is confirmed. It does no more than the plan says."""
        return self

    def lines(self, result: Any, screen: Screen) -> Iterator[Line]:
        """Yield the result for people."""
        yield from ()

    def notes(self, result: Any, screen: Screen) -> Iterator[str]:
        """Yield what stands beside the result: hints, and what it left out. The command line prints it on stderr."""
        yield from ()

    def exit_code(self, result: Any) -> int:
        return 0


def result_type(verb: type[Verb]) -> type[Struct]:
    """Return the type of a verb's result."""
    found: type[Struct] = get_type_hints(verb.run, include_extras=True)["return"]
    return found


def summary(verb: type[Verb]) -> str:
    """Return the first paragraph of a verb's help, in one line."""
    return " ".join((verb.__doc__ or "").strip().partition("\n\n")[0].split())


def to_json(result: Any) -> Any:
    """Return a result as JSON types, with the version of the schema."""
    return {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(result)}
