"""Two processes that share a store, in one: what the other one does falls between any two calls of this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oakleaf import Store
from oakleaf.stores.base import StoreBackend


class InterleavedBackend:
    """A backend that lets another process act before its call number `at`."""

    def __init__(self, backend: StoreBackend, at: int, act: Callable[[], object]) -> None:
        self._backend, self._at, self._act = backend, at, act
        self.calls = 0

    @property
    def has_acted(self) -> bool:
        return self.calls >= self._at

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                self._act()
            return value(*args, **kwargs)

        return call


def interleaved(store: Store, at: int, act: Callable[[], object]) -> tuple[Store, InterleavedBackend]:
    """Return the store as a process has it in which another one acts before call number `at` of the backend."""
    backend = InterleavedBackend(store.backend, at, act)
    return Store(backend, store.runtime), backend  # type: ignore[arg-type]
