"""Fork a session or move its leaf: fork, rewind, undo, redo. Files that the agent wrote follow, if that is asked for."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from oakleaf import Cut
from oakleaf.errors import InvalidArgument, InvalidOperation, InvalidReference, PluginBroken, plural
from oakleaf.session import Session
from oakleaf.verbs.base import Caller, Verb
from oakleaf.verbs.fields import Count, Help, LongText, Ref
from oakleaf.verbs.reference import Position, after_turn, at_leaf
from oakleaf.verbs.screen import Screen, safe
from oakleaf.verbs.settings import ExpectedLeaf, Overrides
from oakleaf.verbs.views import EarlierView, SessionView, left_behind, left_behind_lines, session_view
from oakleaf.verbs.workspace_plugin import FilesPlan, is_installed, workspace_plugin

UNCHANGED = ("nothing", "refused")
"""Kinds of files that a move leaves as they are."""


class Forked(Struct, frozen=True, kw_only=True):
    session: SessionView
    parent: str
    cut: Cut
    left_behind: list[EarlierView]
    """Calls of unsafe tools after the cut, which nothing undoes."""


class Fork(Overrides, frozen=True):
    """Start a new session from any entry of another, without copying.

    The source does not change. What its tools did after that entry stays done, and is listed: the same call of an unsafe
    tool waits for approval in the fork, unless oakleaf settings says otherwise.
    """

    section = "Move"
    effect = "write"
    status = 201
    examples = ("oakleaf fork ses_3f@7 --prompt @stricter.txt", "oakleaf fork ses_3f --from-turn 3")

    session: Ref = "latest"
    from_turn: Annotated[Count | None, Help("The last turn that the fork has, instead of SESSION@N.")] = None
    title: Annotated[str | None, Help("The new session's title.")] = None
    agent: Annotated[str | None, Help("The agent that answers there. Default: the source's.")] = None

    def run(self, caller: Caller) -> Forked:
        caller.check_model(self.model)
        position = after_turn(caller.stored_position(self.session), "from_turn", self.from_turn)
        source = position.session
        fork = source.fork(
            position.leaf,
            model=self.model,
            prompt=self.prompt,
            prompt_patch=self.prompt_patch,
            options=self.options,
            title=self.title,
            agent=self.agent,
            key=caller.key,
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


# -- moves of the leaf -------------------------------------------------------------------------------------


class MovedFile(Struct, frozen=True, kw_only=True):
    """A file that the agent's workspace tools wrote, and what a move of the leaf does with it."""

    kind: str
    path: str
    reason: str
    """Why it is refused."""
    imported: bool
    """Whether a write of it came with an import."""


class Moved(Struct, frozen=True, kw_only=True):
    session: str
    done: bool = True
    """False for a plan."""
    leaf: str
    """Where the session is."""
    cut: Cut | None = None
    left_behind: list[EarlierView]
    """Calls of unsafe tools that are not on the path any more, which nothing undoes."""
    files: list[MovedFile] = []
    files_summary: str | None = None
    """What became of the files, in words; or why that is not known."""
    unwritten_files: int = 0
    """Files that a rewind restored, and that a redo without files does not write again."""


class _LeafMove(Verb, frozen=True):
    """What moves of the leaf have in common."""

    section = "Move"
    effect = "write"

    def lines(self, result: Moved, screen: Screen) -> Iterator[str]:
        if result.done:
            yield f"{result.session} is at {result.leaf}"
            return
        for file in result.files:
            origin = " (from an import)" if file.imported else ""
            yield f"{file.kind:<9} {safe(file.path)}{origin}{f': {file.reason}' if file.reason else ''}"
        if not result.files:
            yield "no file was written by the agent's workspace tools there"

    def notes(self, result: Moved, screen: Screen) -> Iterator[str]:
        if result.files_summary is not None:
            yield result.files_summary
        if result.unwritten_files:
            count = plural(result.unwritten_files, "file")
            yield f"{count} of the agent not written again: that is oakleaf redo --files"
        yield from cut_notes(result.cut)
        yield from left_behind_lines(result.left_behind, screen)


class _FilesMove(_LeafMove, frozen=True, kw_only=True):
    """A move that files can follow."""

    has_local_plan = True

    files: Annotated[
        bool,
        Help("The files that the agent's workspace tools wrote follow: shows a plan, and asks.", local=True),
    ] = False
    skip_changed: Annotated[bool, Help("With --files: skip files that cannot be restored.", local=True)] = (
        False
    )
    accept_imported: Annotated[
        bool,
        Help("With --files: also restore what an import says was written in that folder.", local=True),
    ] = False

    @property
    def needs_yes(self) -> bool:
        return self.files

    def check_files(self) -> None:
        for name in ("skip_changed", "accept_imported"):
            if (value := getattr(self, name)) and not self.files:
                raise InvalidArgument(name, value, "files beside it")

    def check_plan(self, plan: FilesPlan) -> FilesPlan:
        """Refuse a plan that cannot be carried out, and one for another folder."""
        roots = sorted({action.root for action in plan.actions if not action.is_imported})
        if roots and os.getcwd() not in roots:
            raise InvalidArgument("folder", os.getcwd(), f"that of the files: cd {shlex.quote(roots[0])}")
        if not self.skip_changed:
            plan.raise_if_refused()
        return plan

    def planned(self, session: Session, plan: FilesPlan) -> Moved:
        return Moved(
            session=session.session_id,
            done=False,
            leaf=str(session.leaf),
            left_behind=[],
            files=_moved_files(plan),
        )

    def count(self, planned: Moved) -> str:
        return plural(sum(file.kind not in UNCHANGED for file in planned.files), "file")


class Rewind(_FilesMove, frozen=True):
    """Move back to an earlier entry; nothing is deleted.

    SESSION names the entry: latest@7, or latest@3:7 on another branch, as oakleaf log --all lists them. The next
    input starts a new branch; oakleaf redo undoes the rewind. What tools did stays done, and is listed: the same call of an
    unsafe tool waits for approval.

    With --files, what write_file and edit_file wrote after that entry is restored, too: changed files get their earlier
    content, new ones are deleted. A file that something else changed since then is refused. Files that shell commands
    wrote are not tracked and stay.
    """

    examples = (
        "oakleaf rewind latest@7",
        "oakleaf rewind latest --to-turn 3",
        "oakleaf rewind latest@7 --files",
    )

    session: Ref
    to_turn: Annotated[Count | None, Help("The last turn that stays, instead of SESSION@N.")] = None
    summary: Annotated[LongText | None, Help("What the abandoned branch found out; the model sees it.")] = (
        None
    )
    leaf: ExpectedLeaf = None

    def plan(self, caller: Caller) -> Moved:
        position = self._position(caller)
        return self.planned(position.session, self._plan(position))

    def question(self, planned: Moved) -> str:
        return f"Restore {self.count(planned)} and rewind?"

    def run(self, caller: Caller) -> Moved:
        position = self._position(caller)
        session, leaf = position.session, position.leaf
        assert leaf is not None
        if not self.files:
            return _moved(session, session.rewind(leaf, summary=self.summary, key=caller.key))
        plan = self._plan(position)
        cut = workspace_plugin().rewind(
            session,
            leaf.seq,
            os.getcwd(),
            summary=self.summary,
            skip_changed=self.skip_changed,
            accept_imported=self.accept_imported,
        )
        return _moved(session, cut, plan)

    def _position(self, caller: Caller) -> Position:
        self.check_files()
        position = after_turn(caller.stored_position(self.session), "to_turn", self.to_turn)
        if position.leaf is None:
            raise InvalidReference(
                f"{self.session} names no entry to rewind to",
                f"name one, such as oakleaf rewind {shlex.quote(f'{self.session}@7')}; "
                f"oakleaf log {shlex.quote(self.session)} lists the entries",
            )
        at_leaf(position.session, self.leaf, caller.key)
        if self.files and not position.is_on_path:
            raise InvalidArgument("files", True, f"an entry of the same branch; {self.session} is on another")
        return position

    def _plan(self, position: Position) -> FilesPlan:
        assert position.seq is not None
        plan = workspace_plugin().plan_rewind
        return self.check_plan(
            plan(position.session, position.seq, os.getcwd(), accept_imported=self.accept_imported)
        )


class Undo(_LeafMove, frozen=True):
    """Move back to before the latest input."""

    session: Ref = "latest"
    leaf: ExpectedLeaf = None

    def run(self, caller: Caller) -> Moved:
        session = at_leaf(caller.stored_session(self.session), self.leaf, caller.key)
        return _moved(session, session.undo(key=caller.key))


class Redo(_FilesMove, frozen=True):
    """Undo the last rewind.

    Files do not change, unless --files writes again what write_file and edit_file wrote after that entry. A file that
    something else changed since the rewind is refused.
    """

    session: Ref = "latest"
    leaf: ExpectedLeaf = None

    def plan(self, caller: Caller) -> Moved:
        session = self._session(caller)
        return self.planned(session, self._plan(session))

    def question(self, planned: Moved) -> str:
        return f"Write {self.count(planned)} and redo?"

    def run(self, caller: Caller) -> Moved:
        session = self._session(caller)
        if self.files:
            plan = self._plan(session)
            workspace_plugin().redo(
                session,
                os.getcwd(),
                skip_changed=self.skip_changed,
                accept_imported=self.accept_imported,
            )
            return _moved(session, None, plan)
        count, problem = _unwritten_files(session) if caller.level == "operator" else (0, None)
        session.redo(key=caller.key)
        return replace(_moved(session, None), unwritten_files=count, files_summary=problem)

    def _session(self, caller: Caller) -> Session:
        self.check_files()
        return at_leaf(caller.stored_session(self.session), self.leaf, caller.key)

    def _plan(self, session: Session) -> FilesPlan:
        plan = workspace_plugin().plan_redo
        return self.check_plan(plan(session, os.getcwd(), accept_imported=self.accept_imported))


def _moved(session: Session, cut: Cut | None, plan: FilesPlan | None = None) -> Moved:
    return Moved(
        session=session.session_id,
        leaf=str(session.leaf),
        cut=cut,
        left_behind=left_behind(session),
        files=[] if plan is None else _moved_files(plan),
        files_summary=None if plan is None else plan.summary(),
    )


def _moved_files(plan: FilesPlan) -> list[MovedFile]:
    return [
        MovedFile(kind=one.kind, path=one.location, reason=one.reason, imported=one.is_imported)
        for one in plan.actions
    ]


def _unwritten_files(session: Session) -> tuple[int, str | None]:
    """Return how many files a redo without --files leaves as the rewind restored them, or why that is not known."""
    if not is_installed():
        return 0, None
    try:
        return len(workspace_plugin().plan_redo(session).changes), None
    except InvalidOperation:  # it goes to another branch
        return 0, None
    except PluginBroken as error:
        return 0, error.command_text


def cut_notes(cut: Cut | None) -> Iterator[str]:
    if cut is not None and cut.has_moved:
        yield f"entry {cut.requested} is between a call and its results; used entry {cut.at} instead"
