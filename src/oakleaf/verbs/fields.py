"""The fields of a verb: what each surface needs to know of them beyond their types.

A field's type decides how a value is checked, its kind how a person types the value: a reference completes, a text may come
from a file, `-o NAME=VALUE` repeats. Knows no surface.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import NODEFAULT, Meta, Struct

from oakleaf.core.typed_json import prepare
from oakleaf.errors import InvalidArgument, UnknownField

if TYPE_CHECKING:
    from oakleaf.verbs.base import Verb

V = TypeVar("V", bound="Verb")
Kind = Literal[
    "value",
    "reference",
    "references",
    "word",
    "words",
    "text",
    "model",
    "names",
    "pairs",
    "options",
    "file",
    "place",
    "places",
]
"""How a person types a value: `reference` completes sessions, `word` is an argument, `words` are joined, `text` may be @FILE,
`names` are separated by commas, `pairs` are arguments NAME=VALUE, `options` are those of a model's calls, a `place` is an argument that
names a file or folder."""


def Help(  # noqa: N802
    text: str,
    *,
    short: str | None = None,
    metavar: str | None = None,
    local: bool = False,
    remote: bool = False,
) -> Meta:
    """Describe a field: its help, its short flag, and where it exists.

    A field is `local` if it names a file or a folder: a request from elsewhere never does. It is `remote` if only programs
    need it: the command line does not have it.
    """
    notes = {"short": short, "metavar": metavar, "local": local, "remote": remote}
    return Meta(description=text, extra={name: note for name, note in notes.items() if note})


def _kind(kind: Kind, **notes: Any) -> Meta:
    return Meta(extra={"kind": kind, **notes})


Ref = Annotated[str, _kind("reference")]
"""A session: an id or a unique prefix of one, latest, a title, a conversation id; `@7` names entry 7."""
TrashedRef = Annotated[str, _kind("reference", trashed=True)]
Refs = Annotated[list[str], _kind("references")]
TrashedRefs = Annotated[list[str], _kind("references", trashed=True)]
Word = Annotated[str, _kind("word")]
Words = Annotated[str, _kind("words")]
LongText = Annotated[str, _kind("text")]
ModelName = Annotated[str, _kind("model")]
Names = Annotated[list[str], _kind("names")]
Pairs = Annotated[dict[str, str | None], _kind("pairs")]
OptionValues = Annotated[dict[str, Any], _kind("options")]
File = Annotated[str, _kind("file", local=True)]
Place = Annotated[str, _kind("place", local=True)]
Places = Annotated[list[str], _kind("places", local=True)]
AllSpaces = Annotated[bool, Help("Of all spaces: for the operator of the store.", local=True)]
Count = Annotated[int, Meta(ge=1)]
Number = Annotated[int, Meta(ge=0)]


class Field(Struct, frozen=True, kw_only=True):
    """One field of a verb."""

    name: str
    """The name outside Python: `from_` is `from`."""
    attribute: str
    hint: Any
    type: Any
    """The type without its notes."""
    default: Any
    help: str
    kind: Kind
    short: str | None
    metavar: str | None
    is_local: bool
    is_remote: bool
    is_trashed: bool
    """Whether a reference names a session in the trash."""
    least: int | None
    most: int | None
    choices: tuple[str, ...]
    """The words of a Literal, or those that the field names; empty for any other."""

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is int:
            if self.least is not None and self.most is not None:
                return f"a whole number from {self.least} to {self.most:,}"
            return "a whole number" if self.least is None else f"a whole number from {self.least} on"
        return _EXPECTED.get(get_origin(self.type) or self.type, "a value of the documented type")


_EXPECTED = {
    str: "a text",
    bool: "true or false",
    float: "a number",
    list: "a list of texts",
    dict: "an object: names with values",
}


@cache
def fields(verb: type[Verb]) -> dict[str, Field]:
    """Return the fields of a verb by name, in their order. Threads convert values to the verb afterwards."""
    prepare(verb)
    hints = get_type_hints(verb, include_extras=True)
    return {
        one.encode_name: _field(one.name, one.encode_name, hints[one.name], _default(one))
        for one in msgspec.structs.fields(verb)
    }


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not NODEFAULT else field.default


def _field(attribute: str, name: str, hint: Any, default: Any) -> Field:
    metas = list(_metas(hint))
    notes: dict[str, Any] = {}
    for meta in reversed(metas):
        notes |= meta.extra or {}
    kind = _plain(hint)
    help = next((meta.description for meta in metas if meta.description), "")
    return Field(
        name=name,
        attribute=attribute,
        hint=hint,
        type=kind,
        default=default,
        help=help,
        kind=notes.get("kind", "value"),
        short=notes.get("short"),
        metavar=notes.get("metavar"),
        is_local=bool(notes.get("local")),
        is_remote=bool(notes.get("remote")),
        is_trashed=bool(notes.get("trashed")),
        least=next((int(meta.ge) for meta in metas if meta.ge is not None), None),
        most=next((int(meta.le) for meta in metas if meta.le is not None), None),
        choices=get_args(kind) if get_origin(kind) is Literal else notes.get("choices", ()),
    )


def _metas(hint: Any) -> Iterator[Meta]:
    """Yield the notes of a type, the outermost first."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        yield from (note for note in reversed(notes) if isinstance(note, Meta))
        yield from _metas(inner)
    elif get_origin(hint) in (Union, UnionType):
        for one in get_args(hint):
            yield from _metas(one)


def _plain(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        first = next(one for one in get_args(hint) if one is not NoneType)
        return _plain(first)
    return hint


# -- values ------------------------------------------------------------------------------------------------


def bind(verb: type[V], values: Mapping[str, Any], *, is_text: bool = False) -> V:
    """Make a verb of named values; refuse unknown names and wrong values in the same words on every surface.

    With `is_text` the values were typed: `5` is a number then.
    """
    known = fields(verb)
    for name in values:
        if name not in known:
            raise UnknownField(verb.name, name, nearest(name, known))
    for name, field in known.items():
        if field.is_required and name not in values:
            raise InvalidArgument(name, None, field.expected)
    for name, value in values.items():
        if not _fits(known[name].hint, value, is_text=is_text):
            several = isinstance(value, list) and known[name].type is not list
            raise InvalidArgument(name, value, "one value" if several else known[name].expected)
    return msgspec.convert(values, verb, strict=not is_text)


def bind_request(verb: type[V], values: Mapping[str, Any], *, is_text: bool = False) -> V:
    """Make a verb of the values of a request, which name no file, folder or program of this machine."""
    for name, field in fields(verb).items():
        if field.is_local and name in values:
            raise InvalidArgument(name, values[name], "nothing: a request names no file or folder")
    return bind(verb, values, is_text=is_text)


def nearest(name: str, names: Mapping[str, Any]) -> str | None:
    return next(iter(get_close_matches(name, names, 1)), None)


def _fits(hint: Any, value: Any, *, is_text: bool) -> bool:
    try:
        msgspec.convert(value, hint, strict=not is_text)
    except msgspec.ValidationError:
        return False
    return True
