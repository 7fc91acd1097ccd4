"""Exchange with other stores: copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Struct

import oakleaf
from oakleaf.errors import IdConflict, InvalidArgument, StoreDamaged, StoreError, plural
from oakleaf.ext import read_store
from oakleaf.store import Store
from oakleaf.stores.address import display_url
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import File, Help, Refs
from oakleaf.verbs.files import read_key
from oakleaf.verbs.screen import Screen


class CopyFailure(Struct, frozen=True):
    session: str
    problem: str


class Copied(Struct, frozen=True, kw_only=True):
    backend: str
    """The other store, without a password."""
    copied: list[str]
    existing: list[str]
    failed: list[CopyFailure]


class Copy(Verb, frozen=True, kw_only=True):
    """Copy sessions to another store.

    Tasks and attachments are included, and bundles exported from both stores have the same bytes. Sessions that exist
    there are skipped. A session is copied whole or not at all.
    """

    section = "Exchange"
    effect = "write"
    callers = frozenset({"operator"})
    examples = ("oakleaf copy latest --to other.db", "oakleaf copy --all --to postgresql://host/agents")

    sessions: Refs = []
    to: Annotated[File, Help("The other store.", metavar="URL")]
    to_key_file: Annotated[
        File | None, Help("File with the other store's key, if that is or will be encrypted.")
    ] = None
    to_space: Annotated[str | None, Help("The other store's space. Default: the same.", metavar="NAME")] = (
        None
    )
    all: Annotated[bool, Help("Every session that is not in the trash.")] = False
    new_id: Annotated[bool, Help("Copy under new ids.")] = False

    def run(self, caller: Caller) -> Copied:
        if not self.to:  # an unset variable of a script must not mean a store that is nowhere
            raise InvalidArgument("to", self.to, "the address of the other store")
        if self.all == bool(self.sessions):
            raise InvalidArgument("sessions", self.sessions, "the sessions to copy, or all")
        names = _all_names(caller) if self.all else self._named(caller)
        with contextlib.closing(self._open(caller.store)) as other:
            return self._copy(caller, names, other)

    def _named(self, caller: Caller) -> list[str]:
        return [caller.stored_session(one).session_id for one in self.sessions]

    def _open(self, store: Store) -> Store:
        own = read_store(store)
        key = None if self.to_key_file is None else read_key(self.to_key_file)
        return oakleaf.open(self.to, space=self.to_space or own.space, owner=own.owner, key=key)

    def _copy(self, caller: Caller, names: Sequence[str], other: Store) -> Copied:
        """Copy the sessions; go on after one that is damaged, or that has other content in the other store."""
        result = Copied(backend=display_url(self.to), copied=[], existing=[], failed=[])
        with caller.progress("copy", "sessions") as step:
            for done, name in enumerate(names, 1):
                exists = not self.new_id and read_store(other).find_session(name) is not None
                try:
                    copy_id = caller.store.copy(name, to=other, new_id=self.new_id).session_id
                    (result.existing if exists else result.copied).append(copy_id)
                except StoreDamaged as error:
                    result.failed.append(CopyFailure(name, error.problem))
                except IdConflict as error:
                    result.failed.append(CopyFailure(name, error.command_text))
                step(done, len(names))
        return result

    def notes(self, result: Copied, screen: Screen) -> Iterator[str]:
        existed = f", {len(result.existing)} existed" if result.existing else ""
        yield f"{plural(len(result.copied), 'session')} copied to {result.backend}{existed}"
        yield from (f"not copied: {failure.session}: {failure.problem}" for failure in result.failed)

    def exit_code(self, result: Copied) -> int:
        return int(bool(result.failed))


def _all_names(caller: Caller) -> list[str]:
    """Return the sessions of a store, oldest first, so that the parent of a fork is there before the fork."""
    try:
        rows = caller.store.all_sessions(limit=500)
        return [row.session_id for row in rows if row.relation != "task"][::-1]
    except StoreDamaged as error:  # its own hint is this command
        raise StoreError(
            f"{error.problem}, so that its sessions cannot be listed", "restore a backup"
        ) from None
