"""Fork a session, move its leaf, shorten what the model receives, name a session: fork, undo, compact, title, tag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct

from oakleaf import Cut
from oakleaf.core.entries import Effects
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Help, LongText, ModelName, Names, OptionValues, Ref
from oakleaf.verbs.screen import Screen
from oakleaf.verbs.views import EarlierView, SessionView, left_behind, left_behind_lines, session_view


class Forked(Struct, frozen=True, kw_only=True):
    session: SessionView
    parent: str
    cut: Cut
    left_behind: list[EarlierView]
    """Calls of unsafe tools after the cut, which nothing undoes."""


class Fork(Verb, frozen=True):
    """Start a new session from any entry of another, without copying.

    The source does not change. What its tools did after that entry stays done, and is listed: the same call of an unsafe
    tool waits for approval in the fork, unless --effects says otherwise.
    """

    section = "Move"
    effect = "write"
    status = 201
    examples = ("oakleaf fork ses_3f@7 --prompt @stricter.txt", "oakleaf fork ses_3f@7 --effects reuse")

    session: Ref = "latest"
    model: Annotated[ModelName | None, Help("The new session's model.")] = None
    options: Annotated[
        OptionValues | None,
        Help("An option of the model's calls, such as temperature=0; null removes one.", short="o"),
    ] = None
    prompt: Annotated[LongText | None, Help("The new session's system prompt.")] = None
    prompt_patch: Annotated[LongText | None, Help("Text added to the system prompt.")] = None
    tools: Annotated[Names | None, Help("Only these tools.")] = None
    effects: Annotated[
        Effects | None,
        Help("A call of an unsafe tool that a path which was left has made: ask (default), repeat or reuse."),
    ] = None
    title: Annotated[str | None, Help("The new session's title.")] = None
    agent: Annotated[str | None, Help("The agent that answers there. Default: the source's.")] = None

    def run(self, caller: Caller) -> Forked:
        caller.check_model(self.model)
        source = caller.stored_position(self.session).session_at()
        fork = source.fork(
            model=self.model,
            prompt=self.prompt,
            prompt_patch=self.prompt_patch,
            options=self.options,
            tools=self.tools,
            effects=self.effects,
            title=self.title,
            agent=self.agent,
        )
        assert fork.cut is not None
        return Forked(
            session=session_view(fork),
            parent=source.session_id,
            cut=fork.cut,
            left_behind=left_behind(fork),
        )

    def lines(self, result: Forked, screen: Screen) -> Iterator[str]:
        yield result.session.id

    def notes(self, result: Forked, screen: Screen) -> Iterator[str]:
        yield from cut_notes(result.cut)
        yield from left_behind_lines(result.left_behind, screen)


def cut_notes(cut: Cut | None) -> Iterator[str]:
    if cut is not None and cut.has_moved:
        yield f"entry {cut.requested} is between a call and its results; used entry {cut.at} instead"
