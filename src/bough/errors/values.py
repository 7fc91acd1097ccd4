"""Errors of what was handed in: values no store keeps unchanged, questions, summaries, budgets."""

from __future__ import annotations

from .root import BoughError, shorten


class InvalidValue(BoughError):
    """A value that not every store could keep unchanged; nothing was written."""


class NotJson(InvalidValue):
    def __init__(self, where: str, value: object) -> None:
        self.where = where
        super().__init__(
            f"{where} is {shorten(repr(value))}, which JSON cannot hold unchanged; "
            "use str, int, finite float, bool, None, list and dict with string keys"
        )


class NotText(InvalidValue):
    """Something else where a text belongs."""

    def __init__(self, where: str, value: object) -> None:
        self.where = where
        super().__init__(f"{where} is {shorten(repr(value))}; it takes text")


class InvalidText(InvalidValue):
    def __init__(self, where: str, why: str) -> None:
        self.where = where
        super().__init__(
            f"{where} holds {why}; clean it first, for example "
            "text.encode('utf-8', 'replace').decode() or text.replace('\\0', '')"
        )


class InvalidCount(InvalidValue):
    def __init__(self, where: str, value: object) -> None:
        super().__init__(
            f"{where} is {shorten(repr(value))}; it takes a whole number from 0 to 2^53, or None: not told"
        )


class InvalidArgument(InvalidValue):
    def __init__(self, where: str, value: object, takes: str) -> None:
        self.where = where
        super().__init__(f"{where}={shorten(repr(value))} makes no sense; it takes {takes}")


class WrongSpace(InvalidValue):
    def __init__(self, asked: str, own: str) -> None:
        self.asked, self.own = asked, own
        super().__init__(
            f"this store was opened for space {shorten(repr(own))} and reads no other; open that one with "
            f"bough.open(…, space={shorten(repr(asked))}) (bough --space NAME)"
        )


class SecretTooShort(InvalidValue):
    def __init__(self, name: str, length: int, least: int) -> None:
        self.name, self.length, self.least = name, length, least
        super().__init__(
            f"{name or 'a secret'} has {length} of the {least} characters a secret must have to be hidden: "
            "hiding it wherever it occurs would hide ordinary words and numbers too. Make it longer (at least "
            f"{least} characters), or leave it out and keep it from tools and prompts"
        )


class InvalidSearch(InvalidValue):
    def __init__(self, typed: object, why: str) -> None:
        super().__init__(f"cannot search for {shorten(repr(typed))}: {why}")


class MissingBlob(BoughError):
    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(
            f"blob {digest} is not in this store and space; put it with store.put_blob(data, mime) first"
        )


class InvalidSummary(BoughError):
    def __init__(self, why: str) -> None:
        super().__init__(f"compaction refused, the old context stays: {why}")


class TurnTooLarge(BoughError):
    def __init__(self, turn: int, measure: str, size: int, budget: int) -> None:
        self.turn, self.measure, self.size, self.budget = turn, measure, size, budget
        what = f"turn {turn}" if turn else "what always stays (system prompt, summary)"
        super().__init__(
            f"{what} alone is {size:,} {measure}, the budget is {budget:,}; it is never dropped "
            "silently. Raise the budget, compact the session, or shorten the tool results"
        )
