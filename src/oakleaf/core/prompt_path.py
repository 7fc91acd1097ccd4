"""The entries that a context is built from, with the context and the settings at their end, while a run adds to them.

Each entry is read once: a step of a run costs what it appends, however long the path is. Does not read a store.
"""

from __future__ import annotations

from collections.abc import Iterable

from oakleaf.core.context import (
    Context,
    Item,
    Replacement,
    fold_settings,
    head_length,
    read_replacement,
    replace_entries,
    trim,
)
from oakleaf.core.entries import Entry, Evidence, Note, Settings


class PromptPath:
    """A growing path, without messages replaced by a summary."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.start([] if entries is None else entries)

    def start(self, entries: list[Entry]) -> None:
        """Start over with another path."""
        self.entries = entries
        """In the order of seqs. Other holders may extend the list too, but remove nothing."""
        self._settings, self._folded = Settings(), 0
        self._items: list[Item] = []
        self._replacement = Replacement()
        self._system: tuple[str, ...] = ()
        self._system_evidence: tuple[Evidence | None, ...] = ()
        self._built = 0
        """How many entries the items cover; 0: build the items again."""
        self._context: Context | None = None
        """Of the entries behind the items."""
        self._max_messages: int | None = None
        """The maximum of messages in the trimmed context."""

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else 0

    @property
    def entry_id(self) -> bytes:
        """The id of the last entry: equal ids are equal histories."""
        return self.entries[-1].entry_id if self.entries else b""

    def extend(self, entries: Iterable[Entry]) -> None:
        self.entries.extend(entries)

    def values(self) -> list[Entry | Item]:
        """Return all values of a kind numerous in a long path."""
        return [*self.entries, *self._items]

    def settings(self) -> Settings:
        """Return the settings in force at the end."""
        if self._folded < len(self.entries):
            self._settings = fold_settings(self.entries[self._folded :], self._settings)
            self._folded = len(self.entries)
        return self._settings

    @property
    def unread(self) -> int:
        """How many entries the next context reads: the entries since the last context, or all."""
        return len(self.entries) if self._is_stale() else len(self.entries) - self._built

    def _is_stale(self) -> bool:
        """Whether an entry since the last context may change the view of earlier entries."""
        new = self.entries[self._built :]
        return not self._built or any(
            entry.message is None and not isinstance(entry.payload, Note) for entry in new
        )

    def context(self, max_messages: int | None = None) -> Context:
        """Return the context at the end: the same value until there are more entries.

        `max_messages` is a maximum that is not among the settings yet, in place of theirs.
        """
        maximum = self.settings().max_messages if max_messages is None else max_messages
        if self._context is not None and (self._built, self._max_messages) == (len(self.entries), maximum):
            return self._context
        if self._is_stale():
            self._build()
        else:
            new = map(self._replacement.item, self.entries[self._built :])
            self._items.extend(item for item in new if item is not None)
            self._built = len(self.entries)
        self._context = trim(
            Context(self._system, tuple(self._items), self.settings(), self._system_evidence), maximum
        )
        self._max_messages = maximum
        return self._context

    def _build(self) -> None:
        self._replacement = read_replacement(self.entries)
        context = replace_entries(self.entries, self._replacement)
        self._system, self._items = context.system, list(context.items)
        self._system_evidence = context.system_evidence
        # As long as there is nothing but the system prompt, what comes next may be part of it.
        is_begun = head_length(self.entries) < len(self.entries)
        self._built = len(self.entries) if is_begun else 0
