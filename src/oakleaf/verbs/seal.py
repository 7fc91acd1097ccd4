"""Seal a store: seal, and the files that `verify --against` reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Seal
from oakleaf.core.typed_json import json_decoder
from oakleaf.errors import InvalidValue, plural
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import File, Help
from oakleaf.verbs.new_file import new_file
from oakleaf.verbs.screen import Screen


class SealStore(Verb, frozen=True):
    """Write digests of all sessions, to prove later that none was altered or removed.

    A seal covers the time, model, finish and visibility of every entry, every fact of the journal with decisions and
    reasons, every model call, and each session's owner, agent and origin. oakleaf verify --against FILE compares. Keep the
    file where nobody who may write the store can write. A signature proves that the seal was made with the key; whoever
    has the key can make another.
    """

    name = "seal"
    section = "Maintain"
    http = "GET /api/seal"
    examples = ("oakleaf seal -o 2026-11.seal", "oakleaf seal -o 2026-11.seal --key seal.key")

    output: Annotated[File | None, Help("Write to a new file.", short="o")] = None
    key: Annotated[File | None, Help("Sign with the bytes of a file, by HMAC-SHA256.")] = None

    def run(self, caller: Caller) -> Seal:
        key = None if self.key is None else read_bytes(self.key, "key")
        if self.output is None:
            return self._seal(caller, key)
        with new_file(self.output) as file:
            sealed = self._seal(caller, key)
            file.write(f"{seal_text(sealed)}\n".encode())
        return sealed

    def _seal(self, caller: Caller, key: bytes | None) -> Seal:
        with caller.progress("seal", "sessions") as step:
            made = caller.store.seal(step)
        return made if key is None else made.sign(key)

    def lines(self, result: Seal, screen: Screen) -> Iterator[str]:
        if self.output is None:
            yield seal_text(result)

    def notes(self, result: Seal, screen: Screen) -> Iterator[str]:
        count = plural(len(result.heads), "session")
        if self.output is None:
            yield f"{count} sealed"
        else:
            key = "" if self.key is None else f" --key {self.key}"
            yield f"{count} sealed in {self.output}; compare with: oakleaf verify --against {self.output}{key}"


def seal_text(seal: Seal) -> str:
    """Return a seal as JSON, with a line for each session."""
    before, heads, after = msgspec.json.encode(replace(seal, heads=[])).partition(b'"heads":[')
    lines = b",\n".join(map(msgspec.json.encode, seal.heads))
    return (before + heads + b"\n" + lines + b"\n" + after).decode()


def read_seal(file: str, key_file: str | None) -> Seal:
    """Return the seal of a file. Raises SealRefused unless it is whole, and signed with the key."""
    try:
        seal = _read_seal(read_bytes(file, "seal"))
    except msgspec.MsgspecError as error:
        raise InvalidValue(f"{file} is not a seal: {error}", "oakleaf seal -o FILE writes one") from None
    seal.check(None if key_file is None else read_bytes(key_file, "key"))
    return seal


class _Receipt(Struct, frozen=True):
    """The part of the JSON of purge and erase that confirms a removal."""

    done: bool
    purged: list[str]
    lab_runs: list[str] = []


_read_seal = json_decoder(Seal)
_read_receipt = json_decoder(_Receipt)


def read_receipts(files: Sequence[str]) -> set[str]:
    """Return the sessions that receipts name as purged."""
    purged: set[str] = set()
    for file in files:
        try:
            receipt = _read_receipt(read_bytes(file, "receipt"))
        except msgspec.MsgspecError as error:
            hint = "oakleaf purge --json and oakleaf erase --receipt FILE write one"
            raise InvalidValue(f"{file} is not a receipt: {error}", hint) from None
        if not receipt.done:
            raise InvalidValue(f"{file} is a plan: nothing was purged by it")
        purged.update(receipt.purged, receipt.lab_runs)
    return purged


def read_bytes(file: str, what: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidValue(f"cannot read the {what} in {file} ({error.strerror})") from None
