"""Zstandard: a part of Python since 3.14, and before that the package `backports.zstd`. Loaded when a file needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from oakleaf.install import install_line

SUFFIX = ".zst"
ZIP_METHOD = 93
"""The number of Zstandard among the methods of a zip archive."""
IS_IN_PYTHON = sys.version_info >= (3, 14)


class ZstdMissing(ValueError):
    """This Python reads no Zstandard, and the package for Zstandard is not installed."""

    def __init__(self) -> None:
        super().__init__(f"it is compressed with zstd; {install_line('zstd')}")


def zip_module() -> ModuleType:
    """Return a `zipfile` with Zstandard; else raise `ZstdMissing`."""
    return _load("zipfile" if IS_IN_PYTHON else "backports.zstd.zipfile")


@contextmanager
def open_compressed(path: Path) -> Iterator[BinaryIO]:
    """Open a compressed file; `ZstdMissing` without the package, and `OSError` where the file is damaged or cut off."""
    with zstd_errors(), _zstd().open(path) as file:
        yield file


@contextmanager
def zstd_errors(is_compressed: bool = True) -> Iterator[None]:
    """Raise `OSError` for damaged or truncated data."""
    damaged = (EOFError, _zstd().ZstdError, zip_module().BadZipFile) if is_compressed else ()
    try:
        yield
    except damaged as error:
        raise OSError(0, f"damaged: {error}") from None


def _zstd() -> ModuleType:
    return _load("compression.zstd" if IS_IN_PYTHON else "backports.zstd")


def _load(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise ZstdMissing from None
