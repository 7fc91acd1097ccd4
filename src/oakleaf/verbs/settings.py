"""What holds from an entry on: settings, and what a model receives of the turns before. settings, compact, uncompact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from oakleaf.core.entries import Effects, Settings
from oakleaf.core.tree_text import settings_words
from oakleaf.core.typed_json import converter
from oakleaf.errors import InvalidArgument
from oakleaf.ext import read
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Count, Help, LongText, ModelName, Names, OptionValues, Ref
from oakleaf.verbs.reference import at_leaf
from oakleaf.verbs.screen import Screen, safe

ExpectedLeaf = Annotated[
    str | None,
    Help("The leaf that the session must have, such as 1:7. A session that moved is refused.", remote=True),
]


class Overrides(Verb, frozen=True, kw_only=True):
    """Settings that a verb changes from an entry on."""

    model: Annotated[ModelName | None, Help("The model from here on.")] = None
    options: Annotated[
        OptionValues | None,
        Help("An option of the model's calls, such as temperature=0; null removes one.", short="o"),
    ] = None
    prompt: Annotated[LongText | None, Help("The system prompt from here on.")] = None
    prompt_patch: Annotated[LongText | None, Help("Text added to the system prompt.")] = None


class SettingsView(Struct, frozen=True, kw_only=True):
    """The settings in force. None: not set."""

    model: str | None
    prompt: str | None
    prompt_patch: str | None
    tools: tuple[str, ...] | None
    limits: dict[str, Any] | None
    options: dict[str, Any] | None
    effects: Effects | None
    max_messages: int | None


class SessionSettings(Struct, frozen=True):
    session: str
    leaf: str
    settings: SettingsView


class ChangeSettings(Overrides, frozen=True):
    """Change a session's model, prompt, tools or options from here on, or print them.

    Without an option the settings are printed. Tools are narrowed, never widened.
    """

    name = "settings"
    section = "Move"
    effect = "write"
    examples = ("oakleaf settings latest", "oakleaf settings latest -o temperature=0")

    session: Ref
    tools: Annotated[Names | None, Help("Only these tools.")] = None
    effects: Annotated[
        Effects | None,
        Help("A call of an unsafe tool that a path which was left has made: ask (default), repeat or reuse."),
    ] = None
    leaf: ExpectedLeaf = None

    def run(self, caller: Caller) -> SessionSettings:
        given = {name: getattr(self, name) for name in (*Overrides.__struct_fields__, "tools", "effects")}
        if any(value is not None for value in given.values()):
            caller.check_model(self.model)
            session = at_leaf(caller.stored_session(self.session), self.leaf, caller.key)
            session.set(**given, key=caller.key)
        else:
            session = caller.position(self.session).session_at()
        found = read(session).settings()
        view = SettingsView(**{name: getattr(found, name) for name in SettingsView.__struct_fields__})
        return SessionSettings(session.session_id, str(session.leaf), view)

    def lines(self, result: SessionSettings, screen: Screen) -> Iterator[str]:
        values = {name: getattr(result.settings, name) for name in SettingsView.__struct_fields__}
        yield from (screen.fit(safe(line)) for line in settings_words(Settings(**values)))


# -- what a model receives ---------------------------------------------------------------------------------


class CompactionView(Struct, frozen=True, kw_only=True):
    summary: str
    first_kept: int
    """The first entry that the model still receives in full."""
    tokens_before: int = 0
    files_read: list[str] = []
    files_changed: list[str] = []
    kept_input: int = 0
    """An input before that entry, which the model receives too; 0: none."""
    shortened: list[list[int]] = []
    """The entries whose results are shortened, and to how many characters each."""


class Compacted(Struct, frozen=True):
    session: str
    leaf: str
    compaction: CompactionView


_to_view = converter(CompactionView)


class Compact(Verb, frozen=True):
    """Replace older turns with a summary in what the model receives.

    Nothing is deleted: oakleaf uncompact restores the exact earlier context.
    """

    section = "Move"
    effect = "write"

    session: Ref = "latest"
    summary: Annotated[LongText | None, Help("The summary. Default: an outline, made without a model.")] = (
        None
    )
    keep_from: Annotated[Count | None, Help("The first entry the model still receives in full.")] = None
    context_tokens: Annotated[
        Count | None,
        Help(
            "Make what the model receives fit: older turns, then steps of the newest turn, then long results.",
            metavar="TOKENS",
        ),
    ] = None
    leaf: ExpectedLeaf = None

    def run(self, caller: Caller) -> Compacted:
        session = at_leaf(caller.stored_session(self.session), self.leaf, caller.key)
        name, end = session.session_id, session.leaf.seq + 1
        if self.keep_from is not None and self.keep_from > end:
            raise InvalidArgument(
                "keep_from", self.keep_from, f"at most {end}: oakleaf log {name} lists the entries"
            )
        compaction = session.compact(
            self.summary, first_kept=self.keep_from, context_tokens=self.context_tokens, key=caller.key
        )
        return Compacted(name, str(session.leaf), _to_view(msgspec.to_builtins(compaction)))

    def lines(self, result: Compacted, screen: Screen) -> Iterator[str]:
        compaction = result.compaction
        if compaction.summary:
            yield f"the model now receives a summary of everything before entry {compaction.first_kept}"
        for seq, length in compaction.shortened:
            yield f"the model now receives {length:,} characters of each result at entry {seq}"


class Uncompacted(Struct, frozen=True):
    session: str
    leaf: str
    cancels: int
    """The entry of the compaction."""


class Uncompact(Verb, frozen=True):
    """Cancel the latest compaction."""

    section = "Move"
    effect = "write"

    session: Ref = "latest"
    leaf: ExpectedLeaf = None

    def run(self, caller: Caller) -> Uncompacted:
        session = at_leaf(caller.stored_session(self.session), self.leaf, caller.key)
        cancelled = session.uncompact(key=caller.key)
        return Uncompacted(session.session_id, str(session.leaf), cancelled.cancels)

    def lines(self, result: Uncompacted, screen: Screen) -> Iterator[str]:
        yield f"the compaction at entry {result.cancels} is cancelled; the model receives the earlier context again"
