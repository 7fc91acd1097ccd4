"""The errors of this plugin that no other part of Oakleaf raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oakleaf.errors import ExitCode, StoreError
from oakleaf.install import install_line


class EngineMissing(StoreError):
    """A package of the Absurd engine is not installed. The store itself works without it."""

    exit_code = ExitCode.USAGE
    http_status = 501

    def __init__(self, module: str | None) -> None:
        self.module = module
        super().__init__(
            f"the engine 'absurd' needs {module}, and that is not installed",
            f"install it with: {install_line('absurd')}",
        )


@contextmanager
def needs_absurd() -> Iterator[None]:
    """Raise EngineMissing if an import in the block fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise EngineMissing(error.name) from None
