"""The store a command line uses: --store, else $OAKLEAF_STORE, else the configuration's, else one file per user."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from oakleaf.cli.rendering.error_text import CommandError
from oakleaf.errors import StoreAbsent
from oakleaf.stores.address import check_store_url, display_url, is_path, store_scheme

if TYPE_CHECKING:
    from oakleaf import BundleImportResult
    from oakleaf.store import Store


def default_store() -> Path:
    """Return the per-user store, independent of the working directory."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "oakleaf" / "oakleaf.db"


def _configured_store() -> str | None:
    from oakleaf.cli.config import load_config

    return load_config().store


class StoreLocation:
    """The store, space and owner named on the command line. Opened on first use, closed when the command ends."""

    def __init__(self, store: str | None, space: str, owner: str | None) -> None:
        if store == "":  # an unset variable of a script must not mean the user's own store
            raise CommandError("the name of the store is empty; name a file, memory: or postgresql://…")
        self.url = store or os.environ.get("OAKLEAF_STORE") or _configured_store() or str(default_store())
        check_store_url(self.url)
        self.space, self.owner = space, owner
        self._store: Store | None = None
        self._bundles: list[Store] = []

    def register_key_file(self, key_file: Path | None) -> None:
        """Use the first line of `key_file` as the key of the (new or existing) encrypted store."""
        if key_file is None or not self.is_file:
            return
        from oakleaf.ext import register_key
        from oakleaf.verbs.files import read_key

        register_key(self.url, read_key(os.fspath(key_file)))

    @property
    def is_file(self) -> bool:
        return is_path(self.url)

    @property
    def exists(self) -> bool:
        """Whether the store may hold something: False for a missing file."""
        return not self.is_file or Path(self.url).exists()

    @property
    def scheme(self) -> str | None:
        """The scheme of a plugin's store; None for a file and for memory."""
        return store_scheme(self.url)

    @property
    def display_url(self) -> str:
        """The store's URL for messages, without the password."""
        return display_url(self.url)

    def open(self) -> Store:
        """Open an existing store; raise StoreAbsent if there is none."""
        if not self.exists:
            raise self._absence()
        return self._open()

    def _absence(self) -> StoreAbsent:
        folder = Path(self.url).parent
        if folder.is_dir() or folder == default_store().parent:
            hint = "oakleaf chat or oakleaf run TEXT creates it, oakleaf demo shows what it can do"
            return StoreAbsent(f"there is no store at {self.url} yet", hint)
        problem = f"there is no store at {self.url}, and no folder {folder}"
        return StoreAbsent(problem, "name another with --store PATH")

    def open_or_create(self) -> Store:
        """Open the store; create a missing file, and the folder of the default store."""
        if self.is_file and Path(self.url).parent == default_store().parent:
            try:
                Path(self.url).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise CommandError(
                    f"cannot create a store at {self.url} ({error.strerror}); name another with --store PATH or OAKLEAF_STORE"
                ) from None
        return self._open()

    def import_bundle(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        new_id: bool = False,
        progress: Callable[[Any], None] | None = None,
    ) -> BundleImportResult:
        """Import a bundle; a refused bundle creates no store."""
        from oakleaf.ext import import_checked

        return import_checked(source, self.open_or_create, new_id=new_id, progress=progress)

    def open_memory(self) -> Store:
        """Open an empty in-memory store, used to read bundles."""
        from oakleaf.store import open

        self._bundles.append(open("memory:", space=self.space))
        return self._bundles[-1]

    def _open(self) -> Store:
        from oakleaf.store import open
        from oakleaf.telemetry import installed_telemetry

        if self._store is None:
            hooks = installed_telemetry()
            self._store = open(self.url, space=self.space, owner=self.owner, hooks=hooks)
        return self._store

    def close(self) -> None:
        for store in (*self._bundles, *([self._store] if self._store else [])):
            store.close()


pass_location = click.make_pass_decorator(StoreLocation)
