"""The sessions of a store: starting, finding, deleting."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import oakleaf
from oakleaf import Note, ScriptedModel, Session, Workspace, assistant, system, user
from oakleaf.core.codec import MAX_KEY_BYTES, MAX_NAME_BYTES
from oakleaf.core.facts import Titled
from oakleaf.errors import (
    IdTaken,
    InvalidArgument,
    InvalidText,
    NotAStore,
    NotFound,
    SessionRunning,
    StoreClosed,
    StoreError,
    WrongOwner,
    WrongSpace,
)
from oakleaf.store import Store
from oakleaf.stores.base import SessionQuery
from support.sessions import tasks_of


def test_a_session_is_started_with_all_that_is_known_of_it(store: Store) -> None:
    seeds = [system("s"), replace(user("mail"), is_new=True, timestamp=5, details={"from": "ann"})]
    session = store.start(
        "support",
        seeds,
        title="t",
        tags={"a": "b"},
        model="m",
        context_window=200_000,
        trigger_type="email",
        trigger_id="mail-1",
        tool_names=["x"],
        spec={"name": "support"},
        policy={"web": False},
        state={"n": 1},
    )
    row = session.row
    assert (row.status, row.agent, row.title, row.model, row.context_window) == (
        "idle",
        "support",
        "t",
        "m",
        200_000,
    )
    assert (row.trigger_type, row.trigger_id, row.tool_names, row.seed_count) == (
        "email",
        "mail-1",
        ("x",),
        2,
    )
    assert session.state == {"n": 1}
    assert [entry.internal for entry in session.path()] == [True, True, True]
    mail = session.path()[1].message
    assert (mail.is_new, mail.timestamp, mail.details) == (True, 5, {"from": "ann"})
    assert session.verify() == []


def test_starting_is_idempotent_by_session_id(store: Store) -> None:
    first = store.start("a", [system("s")], session_id="ses_mine")
    first.append([user("q")])
    again = store.start("a", [system("s")], session_id="ses_mine")
    assert (again.leaf, len(again.path())) == (first.leaf, 2)
    again.append([assistant("a")])
    with pytest.raises(IdTaken):
        store.start("a", [system("other")], session_id="ses_mine")


def test_latest_is_never_a_child_a_fork_or_a_replay(store: Store) -> None:
    assert store.latest("con") is None
    session = store.start("a", conversation_id="con")
    session.append([user("q")])
    session.fork()
    store.start_task(session, "b", conversation_id="con")
    store.start("a", conversation_id="con", relation="replay", parent_session=session.session_id)
    assert store.latest("con").session_id == session.session_id
    assert store.latest_or_start("con", "a").session_id == session.session_id
    fresh = store.latest_or_start("elsewhere", "a", [system("s")])
    assert fresh.row.conversation_id == "elsewhere"
    assert store.latest_or_start("elsewhere", "a").session_id == fresh.session_id


@pytest.mark.attack
def test_the_latest_of_an_owner_is_never_another_owners(store: Store) -> None:
    ann = store.start("a", [system("secret of Ann")], conversation_id="con", owner="ann")
    bob = store.latest_or_start("con", "a", owner="bob")
    assert (bob.row.owner, bob.path()) == ("bob", [])
    assert store.latest_or_start("con", "a", owner="bob").session_id == bob.session_id
    assert store.latest_or_start("con", "a", owner="ann").session_id == ann.session_id
    assert store.latest("con", owner="ann").session_id == ann.session_id
    assert store.latest("con", owner="eve") is None
    newest = store.latest_or_start("con", "a")
    assert newest.session_id == bob.session_id, "who names no owner means all that the store was opened for"


@pytest.mark.attack
def test_a_store_opened_for_an_owner_starts_no_session_of_another() -> None:
    for_ann = oakleaf.open("memory:", owner="ann")
    parent = for_ann.start("a", owner="ann")
    for start in (
        lambda: for_ann.start("a", owner="bob"),
        lambda: for_ann.latest_or_start("con", "a", owner="bob"),
        lambda: for_ann.start_task(parent, "a", owner="bob"),
    ):
        with pytest.raises(WrongOwner, match=r"opened for owner 'ann' .* oakleaf\.open\(…, owner='bob'\)"):
            start()
    assert len(for_ann.backend.tables.sessions) == 1  # type: ignore[attr-defined]
    assert [fact.kind for fact in parent.journal()] == ["started"], "the parent recorded no child"


def test_a_child_is_recorded_in_the_parent_before_it_exists(store: Store) -> None:
    parent = store.start("a")
    child = store.start_task(parent, "b")
    fact = parent.journal()[-1]
    assert (fact.kind, fact.data["child"]) == ("task_started", child.session_id)
    assert [session.session_id for session in tasks_of(parent)] == [child.session_id]
    assert child.row.relation == "task"


def test_every_child_is_listed_however_many_there_are() -> None:
    with oakleaf.open("memory:") as store:
        parent = store.start("a")
        names = [store.start_task(parent, "b").session_id for _ in range(1_003)]
        assert [child.session_id for child in tasks_of(parent)] == names[::-1]
        assert store.backend.count(SessionQuery(relation="task"), "agent") == {"b": 1_003}


def test_the_state_of_seeds_and_the_state_of_the_start_are_folded_together(store: Store) -> None:
    seeds = [Note(state={"seeded": 1, "both": {"a": 1}}), system("s")]
    session = store.start("a", seeds, state={"given": 2, "both": {"b": 2}})
    expected = {"seeded": 1, "both": {"a": 1, "b": 2}, "given": 2}
    assert session.state == store.session(session.session_id).state == session.hydrate().state == expected
    assert session.verify() == []


def test_the_state_given_at_the_start_is_no_seed(store: Store) -> None:
    session = store.start("a", [system("s"), user("hi")], state={"n": 1}, session_id="ses_a")
    assert (session.row.seed_count, session.leaf.seq) == (2, 3)
    assert [entry.role for entry in session.hydrate().seeds] == ["system", "user"]
    again = store.start("a", [system("s"), user("hi")], state={"n": 1}, session_id="ses_a")
    assert again.leaf == session.leaf
    with pytest.raises(IdTaken):
        store.start("a", [system("s"), user("hi")], session_id="ses_a")
    assert session.fork().row.seed_count == 2
    assert session.verify() == []


def test_every_row_is_read_page_by_page(store: Store) -> None:
    names = [store.start("a").session_id for _ in range(7)]
    assert [row.session_id for row in store.all_sessions(limit=3)] == names[::-1]


class TestListing:
    def test_a_page_iterates_over_its_rows_and_the_last_page_is_not_full(self, store: Store) -> None:
        names = [store.start("a").session_id for _ in range(5)][::-1]
        page = store.sessions(order="created", limit=3)
        rest = store.sessions(order="created", limit=3, before=page.next)
        assert [[row.session_id for row in each] for each in (page, rest)] == [names[:3], names[3:]]
        assert (len(page), len(rest), rest.next) == (3, 2, None)

    def test_a_page_without_rows_is_false(self, store: Store) -> None:
        assert not store.sessions()
        store.start("a")
        assert store.sessions()

    def test_it_is_filtered_by_owner(self, store: Store) -> None:
        for owner in ("ann", "bob", "ann"):
            store.start("a", owner=owner)
        assert [row.owner for row in store.sessions(owner="ann").sessions] == ["ann", "ann"]
        assert [row.owner for row in store.all_sessions(owner="bob", limit=1)] == ["bob"]
        assert store.sessions(owner="eve").sessions == []

    @pytest.mark.parametrize("query", [{"status": "odd"}, {"relation": "odd"}, {"status": 5}])
    def test_what_no_session_can_be_is_no_question(self, store: Store, query: dict[str, Any]) -> None:
        """A word mistyped would look as if there were none."""
        with pytest.raises(InvalidArgument, match=next(iter(query))):
            store.sessions(**query)

    def test_the_space_of_the_handle_may_be_named_and_another_one_says_how_to_open_it(
        self, store: Store
    ) -> None:
        session = store.start("a")
        assert [row.session_id for row in store.sessions(space="default").sessions] == [session.session_id]
        for read in (store.sessions, lambda **query: list(store.all_sessions(**query))):
            with pytest.raises(WrongSpace, match=r"oakleaf\.open\(…, space='other'\)"):
                read(space="other")


def test_delete_restore_and_purge(store: Store) -> None:
    parent = store.start("a")
    child = store.start_task(parent, "b")
    assert store.delete(parent.session_id) == [child.session_id, parent.session_id]
    assert store.sessions().sessions == []
    store.restore(parent.session_id)
    assert len(store.sessions().sessions) == 2
    store.delete(parent.session_id)
    store.purge(parent.session_id)
    with pytest.raises(NotFound):
        store.session(child.session_id)


class TestWhatIsDriven:
    """A runner whose session goes has nowhere to put what its tools did."""

    def drive(self, store: Store, session: Session) -> None:
        now = store.runtime.now()
        store.backend.lease(session.session_id, "elsewhere:1#a", now + 10**9, now)

    def test_it_is_not_put_into_the_trash(self, store: Store) -> None:
        session = store.start()
        task = store.start_task(session)
        self.drive(store, task)
        with pytest.raises(SessionRunning, match="run by elsewhere:1,") as excinfo:
            store.delete(session.session_id)
        assert excinfo.value.session_id == task.session_id
        assert {row.trashed_at for row in store.family(session.session_id)} == {None}

    def test_a_fork_of_it_is_not_forgotten_with_it(self, store: Store) -> None:
        session = store.start()
        session.append([user("q")])
        fork = session.fork()
        store.delete(session.session_id)
        self.drive(store, fork)
        with pytest.raises(SessionRunning):
            store.purge(session.session_id, with_forks=True)
        assert store.purge(session.session_id).sessions == (session.session_id,)

    def test_a_runner_that_died_does_not_keep_it(self, store: Store) -> None:
        session = store.start()
        now = store.runtime.now()
        store.backend.lease(session.session_id, "elsewhere:1#a", now + 1, now)
        session.log.record(Titled(), row={"status": "running"})
        assert store.delete(session.session_id) == [session.session_id]


def test_nothing_is_ever_deleted_by_age(store: Store) -> None:
    names = {store.start("a").session_id for _ in range(3)}
    store.gc(grace=0)
    assert {row.session_id for row in store.sessions().sessions} == names


def test_bad_text_in_a_plain_column_is_refused_and_nothing_is_made(store: Store) -> None:
    for about in (
        {"title": "a\0b"},
        {"tags": {"k": "\ud800"}},
        {"conversation_id": "\0"},
        {"session_id": "\0"},
    ):
        with pytest.raises(InvalidText):
            store.start("a", **about)
    with pytest.raises(InvalidText):
        store.start("a\0")
    assert store.sessions().sessions == []


class TestWorkspace:
    def test_it_is_detected_overridable_and_fills_the_prompt(self, store: Store, tmp_path: Path) -> None:
        subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
        workspace = Workspace.detect(working_dir=str(tmp_path), variables={"user": "Ann"})
        assert (workspace.git_ref, workspace.fs_scope_tier) == ("trunk", "sandboxed")
        session = store.start(
            "a",
            [system("In {{ctx.working_dir}} on {{ ctx.git_ref }} for {{ctx.user}}, {{ctx.nothing}}")],
            workspace=workspace,
        )
        assert session.path()[0].message.text == f"In {tmp_path} on trunk for Ann, {{{{ctx.nothing}}}}"
        assert b'"user":"Ann"' in store.backend.detail(session.session_id).workspace

    def test_a_folder_without_git_has_no_ref(self, tmp_path: Path) -> None:
        assert Workspace.detect(working_dir=str(tmp_path)).git_ref is None


class TestOpen:
    def test_a_new_store_is_readable_by_its_owner_only(self, tmp_path: Path) -> None:
        with oakleaf.open(tmp_path / "a.db") as store:
            store.start("a")
            modes = {path.name: oct(path.stat().st_mode)[-3:] for path in tmp_path.iterdir()}
        assert set(modes.values()) == {"600"}
        assert "a.db-wal" in modes

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        store = oakleaf.open(tmp_path / "a.db")
        session = store.start("a")
        store.close()
        store.close()
        for use in (session.path, lambda: session.append([user("x")]), store.sessions):
            with pytest.raises(StoreClosed):
                use()

    def test_the_name_of_sqlite_for_memory_is_refused_with_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two files of that name appeared, and the first write said: no such table."""
        monkeypatch.chdir(tmp_path)
        with pytest.raises(NotAStore, match='use "memory:"'):
            oakleaf.open(":memory:")
        assert list(tmp_path.iterdir()) == []

    def test_what_cannot_be_opened_is_said_so(self, tmp_path: Path) -> None:
        for url in (str(tmp_path), str(tmp_path / "no" / "folder.db")):
            with pytest.raises(NotAStore):
                oakleaf.open(url)
        with pytest.raises(StoreError, match="full"):
            oakleaf.open(tmp_path / "a.db", synchronous="off")
        with pytest.raises(InvalidText):
            oakleaf.open("memory:", space="\0")

    def test_a_space_has_a_name_on_every_store(self, tmp_path: Path) -> None:
        """As of a variable that is not set: PostgreSQL showed an empty store, the others made a tenant of that name."""
        for url in ("memory:", tmp_path / "a.db", "postgresql://app@127.0.0.1:1/agents"):
            with pytest.raises(InvalidArgument, match="space"):
                oakleaf.open(url, space="")

    def test_a_store_is_a_context_manager_and_repr_tells_where(self) -> None:
        with oakleaf.open("memory:", space="acme") as store:
            assert repr(store) == "Store('memory:', space='acme')"

    def test_spaces_are_apart(self, tmp_path: Path) -> None:
        with (
            oakleaf.open(tmp_path / "a.db", space="one") as one,
            oakleaf.open(tmp_path / "a.db", space="two") as two,
        ):
            session = one.start("a")
            media = one.put_blob(b"x", "text/plain")
            with pytest.raises(NotFound):
                two.session(session.session_id)
            assert two.blob(media) is None
            assert two.sessions().sessions == []

    def test_no_descriptor_is_left_open(self, tmp_path: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with oakleaf.open(tmp_path / "a.db") as store:
                store.start("a").path()
        assert len(os.listdir("/proc/self/fd")) == before


NAMES: dict[str, Callable[[Store, str], object]] = {
    "session_id": lambda store, text: store.start(session_id=text),
    "conversation_id": lambda store, text: store.start(conversation_id=text),
    "agent": lambda store, text: store.start(text),
    "owner": lambda store, text: store.start(owner=text),
    "key": lambda store, text: store.start().send_sync("q", model=ScriptedModel(["a"]), key=text),
    "turn": lambda store, text: store.start().turn("q", key=text).__enter__(),
    "append": lambda store, text: store.start().append([user("q")], key=text),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_an_id_or_a_key_that_no_index_holds_is_refused_alike_by_all_stores(store: Store, name: str) -> None:
    """PostgreSQL alone refused it, with a message about its btree, which over HTTP was a 503."""
    # What repeats itself is compressed, and fits.
    text = "".join(sha256(str(number).encode()).hexdigest() for number in range(200))
    limit = MAX_KEY_BYTES if name in ("key", "turn", "append") else MAX_NAME_BYTES
    NAMES[name](store, text[:limit])
    rows = len(list(store.all_sessions()))
    for longer in (text[: limit + 1], text, "ü" * (limit // 2 + 1)):
        with pytest.raises(InvalidArgument, match=rf"at most {limit:,} bytes"):
            NAMES[name](store, longer)
    if limit == MAX_NAME_BYTES:
        assert len(list(store.all_sessions())) == rows
        longest = dict.fromkeys(("session_id", "owner", "conversation_id"), text[1 : limit + 1])
        assert store.start(text[:limit], **longest).row.agent == text[:limit]


@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
def test_a_filter_that_no_store_can_hold_is_refused_alike_by_all(store: Store, text: str) -> None:
    """PostgreSQL alone refused a NUL, as if the store were broken: over HTTP a 503."""
    for name in ("owner", "agent", "model", "conversation_id", "parent_session", "id_prefix", "title"):
        with pytest.raises(InvalidText, match=name):
            store.sessions(**{name: text})  # type: ignore[arg-type]
    with pytest.raises(InvalidText):
        store.sessions(tag=("a", text))
    with pytest.raises(InvalidText):
        store.latest(text)
