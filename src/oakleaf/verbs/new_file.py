"""A file that a verb writes: new, and complete once it has its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from oakleaf.errors import InvalidArgument
from oakleaf.ext import atomic_file


@contextmanager
def new_file(name: str, field: str = "output") -> Iterator[BinaryIO]:
    """Open a file that does not exist yet. Enter before the work: it may cost money, and its result must not be lost."""
    path = Path(name)
    if path.is_file() or not path.parent.is_dir():
        raise InvalidArgument(field, name, "the name of a new file in a folder that exists")
    with atomic_file(path) as file:
        yield file
