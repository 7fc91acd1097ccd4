"""Sources of the rules: where and when a vendor was last seen to enforce each of them.

A rule without evidence says so. A rule that newer evidence contradicts is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from msgspec import Struct

Kind = Literal["documentation", "error", "sdk", "gateway", "unconfirmed"]
Rule = TypeVar("Rule", bound=Callable[..., object])


class Source(Struct, frozen=True):
    kind: Kind
    """An error of the vendor's own server, or of a gateway to the vendor; a type of the vendor's SDK."""
    where: str
    """A page, a file of an SDK with the version, or an issue as `owner/repository#number`. Empty if unconfirmed."""
    date: str
    """The day of the error, or the month in which the page or the file was read."""
    about: str
    """The part of the rule that the source shows."""


SOURCES: dict[tuple[str, str], tuple[Source, ...]] = {}
"""The sources of each rule, by the module and name of its function."""


def learned(*sources: Source) -> Callable[[Rule], Rule]:
    """Note the sources of a rule."""

    def note(rule: Rule) -> Rule:
        SOURCES[rule.__module__, rule.__name__] = sources
        return rule

    return note


def documentation(where: str, date: str, about: str) -> Source:
    return Source("documentation", where, date, about)


def error(where: str, date: str, about: str) -> Source:
    return Source("error", where, date, about)


def sdk(where: str, date: str, about: str) -> Source:
    return Source("sdk", where, date, about)


def gateway(where: str, date: str, about: str) -> Source:
    return Source("gateway", where, date, about)


def unconfirmed(about: str) -> Source:
    """Return the source of a rule without evidence in the month of the search."""
    return Source("unconfirmed", "", "2026-11", about)
