"""One namespace of one LangGraph thread in one session: its checkpoints are read from the log, and written to it.

Knows places: the path to a checkpoint's note holds exactly the messages of its state, so a checkpoint that adds to
them is an append, and one that takes back or edits some is another branch, from behind the last message they share.
Does not know configs, threads or filters; the saver does.

Nothing is read before it is known to be needed: as long as nobody else writes, a checkpoint is one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import RLock
from typing import Any

from ...core.entries import Entry, Note
from ...core.tree import Leaf
from ...errors import StaleLeaf
from ...session import Session
from ...stores.base import SessionRow
from .checkpoint import Coming, Found, Known, known_by, told_of
from .index import Index, Kept, told_by
from .messages import NAME
from .page import Page, said_on, shared
from .path_cache import Counted, Paths
from .values import Values

TO_APPEND, BACK = "to append", "back"
"""Why we moved a session, as the journal tells it."""


class ThreadLog:
    """A session with an index of its checkpoints. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self.session, self.log = session, session.log
        self.index = Index()
        self._lock = RLock()
        self._facts = 0
        """The number of the latest fact that is in the index."""
        self._newest: str | None = None
        """The last checkpoint on the path to the leaf, dropped or not."""
        self._is_behind_others = False
        """Whether something that is not ours follows it there."""
        self._known = Known()
        self._left: Leaf | None = None
        """Where it stood before a move of ours whose append never came: there it stands still."""
        self._was_rewound = False
        """Whether somebody else moved it to where it stands."""

    # -- catching up -------------------------------------------------------------------------------

    def catch_up(self) -> SessionRow:
        """Take in what others have written since, and stand where the session stands."""
        with self._lock:
            row = self.log.refresh()
            if row.facts != self._facts:
                facts = self.log.store.journal(self.log.session_id, self._facts)
                spans: dict[int, tuple[int, int]] = {}
                for fact in facts:
                    if fact.kind in ("moved", "appended"):
                        why = fact.data.get(NAME)
                        self._left = Leaf(*fact.data["from"]) if why == TO_APPEND else None
                        self._was_rewound = fact.kind == "moved" and why is None
                    if "branch" not in fact.data or ("first" not in fact.data and fact.kind != "started"):
                        continue
                    branch, first, last = fact.data["branch"], fact.data.get("first", 1), fact.data["last"]
                    was = spans.get(branch, (first, last))
                    spans[branch] = min(first, was[0]), max(last, was[1])
                read = {branch: self._absorb(branch, *span) for branch, span in sorted(spans.items())}
                self._facts = facts[-1].number if facts else self._facts
                self._look_where_it_stands()
                self._get_to_know(read)
            return row

    def _absorb(self, branch: int, first: int, last: int) -> list[Entry]:
        if not last:
            return []
        entries = self.log.store.path(self.log.session_id, leaf=Leaf(branch, last), first=first).entries
        for entry in entries:
            told = told_by(entry)
            if told is not None:
                self.index.absorb(Leaf(entry.branch, entry.seq), told)
        return entries

    def _get_to_know(self, read: dict[int, list[Entry]]) -> None:
        """If what was read goes on from what is known of the path, or is all of it, the newest is known too."""
        newest = self.index.checkpoints.get(self._newest or "")
        entries = [] if newest is None else read.get(newest.place.branch, [])
        if newest is None or not entries or self._known.of == newest.checkpoint_id:
            return
        since = self._known.place if self._known.place.branch == newest.place.branch else Leaf(0, 0)
        if entries[0].seq <= since.seq + 1 and since.seq < newest.place.seq <= entries[-1].seq:
            fresh = entries[since.seq + 1 - entries[0].seq : newest.place.seq + 1 - entries[0].seq]
            said = [*(self._known.said if since.seq else []), *said_on(fresh)]
            self._known = known_by(newest, said, told_by(fresh[-1]) or {})

    def _look_where_it_stands(self) -> None:
        leaf = self.log.leaf if self._left is None else self._left
        ranges = self.log.store.path(self.log.session_id, leaf=leaf, first=leaf.seq + 1).ranges
        reach = {part.branch: part.last for part in ranges}
        on_path = [k for k in self.index.checkpoints.values() if k.place.seq <= reach.get(k.place.branch, 0)]
        newest = max(on_path, key=lambda kept: kept.place.seq, default=None)
        if newest is not None and newest.is_input and self._was_rewound:  # an input that was taken back
            newest = self.index.checkpoints.get(newest.parent or "")
        self._newest = None if newest is None else newest.checkpoint_id
        first = 1 if newest is None else newest.place.seq + 1
        behind = self.log.store.path(self.log.session_id, leaf=leaf, first=first).entries
        asides = [told_by(entry) or {} for entry in behind]
        self._is_behind_others = not all("writes" in told or "dropped" in told for told in asides)

    def _ready(self) -> None:
        """Stand where the thread stands, before something is written there."""
        if not self._facts:
            self.catch_up()
        newest = self.index.checkpoints.get(self._newest or "")
        if self._left is not None:
            self.log.move(self._left, data={NAME: BACK})
            self._left = None
        elif self._was_rewound and self._is_behind_others:
            place = self._on_path(self.log.leaf, 0) if newest is None else newest.place
            self.log.move(place, data={NAME: BACK})
            self._is_behind_others = False
        self._was_rewound = False

    def latest(self) -> Kept | None:
        """Where the thread stands: the last checkpoint on the path that is not dropped, else the newest of all."""
        with self._lock:
            name = self._newest
            while name is not None and name in self.index.dropped:
                kept = self.index.checkpoints.get(name)
                name = None if kept is None else kept.parent
            if name is None and self._newest is None:
                return None
            return self.index.checkpoints.get(name or "") or next(iter(self.index.told()), None)

    # -- writing -----------------------------------------------------------------------------------

    def _written(self, work: Callable[[], None]) -> None:
        """Do it where the thread stands; if somebody else wrote meanwhile, take that in and do it again."""
        with self._lock:
            while True:
                try:
                    self._ready()
                    work()
                    return
                except StaleLeaf:
                    self.catch_up()

    def put(self, coming: Coming, values: Values, counted: Counted | None) -> None:
        """Write a checkpoint behind its parent. Whoever wrote meanwhile keeps what he wrote, on a branch of his own."""
        self._written(lambda: self._put(coming, values, counted))

    def _put(self, coming: Coming, values: Values, counted: Counted | None) -> None:
        parent = self.index.checkpoints.get(coming.parent or "")
        known = self._known_of(parent)
        same = shared(known.said, coming.messages, values)
        base = self._base(parent)
        if same < len(known.said):
            base = self._on_path(base, known.said[same - 1].seq if same else 0)
        page = Page(self.log, values, base, known.said[:same])
        if coming.metadata.get("source") != "loop" or (parent is not None and parent.is_input):
            counted = None  # given to the graph, not said by a model of it
        for message in (coming.messages or [])[same:]:
            page.say(message, counted)
        held = {name: (v, seq) for name, (v, seq) in known.held(values).items() if seq <= base.seq}
        told = told_of(coming, held, values)
        page.add(Note({NAME: told}))
        stood, newest, was_behind = self.log.leaf, self._newest, self._is_behind_others
        if base != stood:
            self.log.move(base, data={NAME: TO_APPEND})
            self._left = stood  # until it is appended: should that fail, it goes back
        self._write(page, told)
        self._left = None
        self._newest, self._is_behind_others = coming.checkpoint_id, False
        self._known = known_by(self.index.checkpoints[coming.checkpoint_id], page.said, told)
        if counted is not None:
            counted.add(page.calls)
        if newest is not None and newest > coming.checkpoint_id:
            self.log.move(stood, data={NAME: BACK})  # one that comes late: the thread stays where it stands
            self._newest, self._is_behind_others = newest, was_behind

    def _write(self, page: Page, told: dict[str, Any]) -> None:
        appended = self.log.append(page.drafts, calls=page.calls)
        self.index.absorb(appended.leaf, told)
        if (
            appended.fact_number == self._facts + page.facts
        ):  # else there are facts between: they are read later
            self._facts = appended.fact_number

    def _known_of(self, kept: Kept | None) -> Known:
        if kept is None:
            return Known()
        if self._known.place == kept.place:
            return self._known
        path = Paths(self.log, [kept.place]).upto(kept.place)
        return known_by(kept, said_on(path), told_by(path[-1]) or {})

    def _base(self, parent: Kept | None) -> Leaf:
        """Where what follows `parent` belongs: at the leaf if the session stands there, else on a branch."""
        is_next = self._newest == (None if parent is None else parent.checkpoint_id)
        if is_next and not self._is_behind_others:
            return self.log.leaf
        return self._on_path(self.log.leaf, 0) if parent is None else parent.place

    def _on_path(self, leaf: Leaf, seq: int) -> Leaf:
        """The entry `seq` of the path to `leaf`, by the branch that holds it."""
        ranges = self.log.store.path(self.log.session_id, leaf=leaf, first=leaf.seq + 1).ranges
        found = (part.branch for part in ranges if part.first <= seq <= part.last)
        return Leaf(next(found, ranges[0].branch if ranges else leaf.branch), seq)

    def put_writes(
        self, of: str, task: str, task_path: str, made: Sequence[tuple[int, str, Any]], values: Values
    ) -> None:
        """Keep what a task wrote. Once each by (task, index); a special one (index below 0) takes the place of its last."""

        def work() -> None:
            fresh = [
                [index, channel, values.encode(value)]
                for index, channel, value in made
                if index < 0 or not self.index.has_write(of, task, index)
            ]
            if fresh:
                self._note({"writes": {"of": of, "task": task, "path": task_path, "made": fresh}}, values)

        self._written(work)

    def take(self, source: ThreadLog, values: Values) -> None:
        """Put whatever another has and this one lacks."""
        theirs = source.index.told()[::-1]
        paths = source.paths(theirs)
        for kept in theirs:
            if kept.checkpoint_id not in self.index.checkpoints:
                self.put(source.coming(kept, paths, values), values, None)  # its calls were paid there
            for task, task_path, made in source.made(kept, paths, values):
                self.put_writes(kept.checkpoint_id, task, task_path, made, values)
        gone = source.index.dropped.intersection(self.index.checkpoints) - self.index.dropped
        self.drop(sorted(gone), values)

    def drop(self, names: Sequence[str], values: Values) -> None:
        """Tell these checkpoints no longer."""
        if names:
            self._written(lambda: self._drop(names, values))

    def _drop(self, names: Sequence[str], values: Values) -> None:
        self._note({"dropped": list(names)}, values)
        latest = self.latest()
        if latest is not None and latest.checkpoint_id != self._newest:
            self.log.move(latest.place, data={NAME: BACK})  # what is shown is what is told
            self._newest, self._is_behind_others = latest.checkpoint_id, False

    def _note(self, told: dict[str, Any], values: Values) -> None:
        page = Page(self.log, values)
        page.add(Note({NAME: told}))
        self._write(page, told)

    # -- reading -----------------------------------------------------------------------------------

    def paths(self, kept: Iterable[Kept]) -> Paths:
        """What these checkpoints are read from."""
        return Paths(self.log, (place for one in kept for place in self.index.places(one.checkpoint_id)))

    def metadata(self, kept: Kept, paths: Paths, values: Values) -> dict[str, Any]:
        found: dict[str, Any] = values.decode(paths.told(kept.place)["metadata"])
        return found

    def read(self, kept: Kept, paths: Paths, values: Values) -> Found:
        """A checkpoint as it was put."""
        told = paths.told(kept.place)
        names = [*told["values"], *told["at"], *([told["said"]] if told["said"] is not None else [])]
        return Found(
            kept,
            values.decode(told["checkpoint"]),
            values.decode(told["metadata"]),
            {name: self.value(kept, name, paths, values) for name in names},
            self.read_writes(kept, paths, values),
        )

    def has_value(self, kept: Kept, channel: str, paths: Paths) -> bool:
        told = paths.told(kept.place)
        return channel == told["said"] or channel in told["values"] or channel in told["at"]

    def value(self, kept: Kept, channel: str, paths: Paths, values: Values) -> Any:
        """What a channel holds at a checkpoint; KeyError if it holds nothing."""
        told = paths.told(kept.place)
        if channel == told["said"]:
            known = self._known
            said = known.said if known.place == kept.place else said_on(paths.upto(kept.place))
            return [one.message(values) for one in said]
        if channel in told["at"]:
            told = paths.told(kept.place, told["at"][channel])
        return values.decode(told["values"][channel])

    def coming(self, kept: Kept, paths: Paths, values: Values) -> Coming:
        """A checkpoint, to be put elsewhere."""
        found, channel = self.read(kept, paths, values), paths.told(kept.place)["said"]
        return Coming(
            checkpoint=found.checkpoint,
            parent=kept.parent,
            metadata=found.metadata,
            held={name: value for name, value in found.held.items() if name != channel},
            changed=frozenset(found.held),
            messages=found.held.get(channel),
            channel=channel or "",
        )

    def made(
        self, kept: Kept, paths: Paths, values: Values
    ) -> list[tuple[str, str, list[tuple[int, str, Any]]]]:
        """Its pending writes by task: task, path of the task, and what it wrote."""
        found = []
        for task, wrote in self.index.writes(kept.checkpoint_id):
            index, channel, value = paths.told(wrote.place)["writes"]["made"][wrote.nth]
            found.append((task, wrote.task_path, [(index, channel, values.decode(value))]))
        return found

    def read_writes(self, kept: Kept, paths: Paths, values: Values) -> list[tuple[str, str, Any]]:
        """Task, channel and value of each pending write."""
        found = []
        for task, wrote in self.index.writes(kept.checkpoint_id):
            _, channel, value = paths.told(wrote.place)["writes"]["made"][wrote.nth]
            found.append((task, channel, values.decode(value)))
        return found
