"""Where the command line finds its store: an option, the environment, else one stable file per user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..stores import is_postgres_url
from .rendering.error_text import CommandError

if TYPE_CHECKING:
    from ..store import Store


def default_store() -> Path:
    """Never keyed by the working directory: a session is found from wherever it is asked for."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "bough" / "bough.db"


class StoreLocation:
    """The store, space and owner of this command line; opened when first asked for."""

    def __init__(self, store: str | None, space: str, owner: str | None) -> None:
        self.url = store or os.environ.get("BOUGH_STORE") or str(default_store())
        self.space, self.owner = space, owner
        self._stores: list[Store] = []

    def register_key_file(self, key_file: Path | None) -> None:
        """The store is encrypted, or to be made so, with what the file's first line says."""
        if key_file is None or not self.is_file:
            return
        from ..stores.sqlite.encryption import register_key

        try:
            lines = key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"the key in {key_file} cannot be read ({error})") from None
        register_key(self.url, lines[0] if lines else "")

    @property
    def is_file(self) -> bool:
        return self.url != "memory:" and "://" not in self.url

    @property
    def exists(self) -> bool:
        """Whether there may be something to read: a file that nobody has made yet holds nothing."""
        return not self.is_file or Path(self.url).exists()

    @property
    def is_postgres(self) -> bool:
        return is_postgres_url(self.url)

    @property
    def display_url(self) -> str:
        """The store's name for messages: no password in it."""
        if not self.is_postgres:
            return self.url
        from ..stores.postgres.url import Address

        return Address.parse(self.url).safe_url

    def open(self) -> Store:
        """For reading and changing what is there; says so if there is no store yet."""
        if not self.exists:
            raise CommandError(
                f"there is no store at {self.url} yet; bough chat or bough run makes one, bough demo shows what it is"
            )
        return self._open()

    def open_or_create(self) -> Store:
        """For what may be the first session of all: the file, and the folder of the default one, are made."""
        if self.is_file and Path(self.url) == default_store():
            try:
                Path(self.url).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise CommandError(
                    f"no store can be made at {self.url} ({error.strerror}); name another with --store PATH or BOUGH_STORE"
                ) from None
        return self._open()

    def open_memory(self) -> Store:
        """A store in memory, for looking into a bundle."""
        from ..store import open

        self._stores.append(open("memory:", space=self.space))
        return self._stores[-1]

    def _open(self) -> Store:
        from ..store import open

        self._stores.append(open(self.url, space=self.space, owner=self.owner))
        return self._stores[-1]

    def close(self) -> None:
        for store in self._stores:
            store.close()


pass_location = click.make_pass_decorator(StoreLocation)
