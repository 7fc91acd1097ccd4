"""The session service for Google's ADK: what ADK asks of every one of its own, on every store.

The laws are those of ADK's own suite for session services, in our words; what Oakleaf holds afterwards is in
`test_adk_entries`, a real runner in `test_adk_runner`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

import oakleaf
from oakleaf.errors import InvalidText, NotJson
from oakleaf.store import Store
from oakleaf_frameworks.adk.service import OakleafSessionService, append_event, oakleaf_session_id

R = TypeVar("R")
APP, ANN, BOB = "shop", "ann", "bob"


class Service:
    """The service without `await`, for an app and, unless told otherwise, for Ann."""

    def __init__(self, store: Store) -> None:
        self.service = OakleafSessionService(store)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run(work)

    def create(
        self, session_id: str | None = None, *, user: str = ANN, app: str = APP, **state: Any
    ) -> Session:
        values = {key.replace("__", ":"): value for key, value in state.items()}
        return self.run(
            self.service.create_session(
                app_name=app, user_id=user, session_id=session_id, state=values or None
            )
        )

    def find(self, session_id: str, *, user: str = ANN, app: str = APP, **config: Any) -> Session | None:
        about = GetSessionConfig(**config) if config else None
        return self.run(
            self.service.get_session(app_name=app, user_id=user, session_id=session_id, config=about)
        )

    def load(self, session_id: str, **how: Any) -> Session:
        session = self.find(session_id, **how)
        assert session is not None
        return session

    def list(self, user: str | None = ANN, app: str = APP) -> list[Session]:
        return self.run(self.service.list_sessions(app_name=app, user_id=user)).sessions

    def delete(self, session_id: str, *, user: str = ANN) -> None:
        self.run(self.service.delete_session(app_name=APP, user_id=user, session_id=session_id))

    def append(self, session: Session, event: Event) -> Event:
        return self.run(self.service.append_event(session, event))

    def change(self, session: Session, **delta: Any) -> Event:
        changes = {key.replace("__", ":"): value for key, value in delta.items()}
        return self.append(session, Event(author=ANN, actions=EventActions(state_delta=changes)))

    def user_state(self, user: str = ANN, app: str = APP) -> dict[str, Any]:
        return self.run(self.service.get_user_state(app_name=app, user_id=user))

    def oakleaf(self, session: Session) -> oakleaf.Session:
        return self.run(self.service.oakleaf_session(session))


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store)


def says(text: str, author: str = "user", **fields: Any) -> Event:
    role = "user" if author == "user" else "model"
    content = types.Content(role=role, parts=[types.Part(text=text)])
    return Event(author=author, invocation_id="inv", content=content, **fields)


class TestCreating:
    def test_a_service_stands_on_an_open_store(self) -> None:
        with pytest.raises(TypeError, match=r"oakleaf\.open\(path\) returns, not str"):
            OakleafSessionService("agent.db")  # type: ignore[arg-type]

    def test_a_session_comes_back_as_it_was_made(self, service: Service) -> None:
        session = service.create(key="value")
        assert (session.app_name, session.user_id, session.state, session.events) == (
            APP,
            ANN,
            {"key": "value"},
            [],
        )
        assert session.id
        assert session.last_update_time <= time.time()
        assert service.find(session.id) == session

    def test_one_that_was_never_made_is_not_found(self, service: Service) -> None:
        assert service.find("nobody") is None

    def test_an_id_is_taken_without_the_blanks_around_it(self, service: Service) -> None:
        service.create("one")
        with pytest.raises(AlreadyExistsError):
            service.create("  one ")
        loaded_session = service.load(" one ")
        assert loaded_session.id == "one"
        service.delete(" one ")
        assert service.find("one") is None

    def test_a_blank_id_is_none(self, service: Service) -> None:
        assert service.create("   ").id.strip()

    def test_of_two_who_make_the_same_one_wins_and_the_other_is_told(self, service: Service) -> None:
        async def race() -> list[Any]:
            both = [
                service.service.create_session(app_name=APP, user_id=ANN, session_id="one") for _ in range(2)
            ]
            return await asyncio.gather(*both, return_exceptions=True)

        results = service.run(race())
        assert sorted(type(result) for result in results if isinstance(result, Exception)) == [
            AlreadyExistsError
        ]

    def test_two_users_may_have_sessions_of_the_same_id(self, service: Service) -> None:
        service.append(service.create("one", user=ANN), says("hi"))
        service.create("one", user=BOB)
        assert service.load("one", user=BOB).events == []
        service.delete("one", user=BOB)
        assert len(service.load("one", user=ANN).events) == 1

    def test_what_was_deleted_lies_in_the_trash_and_its_id_may_be_used_again(self, service: Service) -> None:
        first = service.create("one")
        service.append(first, says("hi"))
        below = service.oakleaf(first)
        service.delete("one")
        assert service.find("one") is None
        assert service.list() == []
        again = service.create("one")
        assert again.events == []
        service.append(again, says("anew"))
        assert [event.content for event in service.load("one").events] == [says("anew").content]
        assert service.service.store.backend.session(below.session_id).trashed_at is not None

    def test_deleting_what_is_not_there_does_nothing(self, service: Service) -> None:
        session = service.create("one")
        service.delete("two")
        service.delete("one", user=BOB)
        assert service.find("one") == session

    def test_an_id_no_store_can_keep_is_refused(self, service: Service) -> None:
        for odd in ("a\0b", "half \ud800 a character"):
            with pytest.raises(InvalidText):
                service.create(odd)

    @pytest.mark.parametrize("odd", ["a/b@7", "ü" * 300, "%41", "‮ or tl", "latest"])
    def test_any_other_id_is_kept(self, service: Service, odd: str) -> None:
        session = service.create(odd, user=odd, app=odd)
        assert service.find(odd, user=odd, app=odd) == session
        assert [one.id for one in service.list(odd, odd)] == [session.id]


class TestListing:
    def test_sessions_come_without_events_the_one_active_last_at_the_end(self, service: Service) -> None:
        for name in ("a", "b", "c"):
            service.create(name, key=name)
        session = service.load("a")
        service.append(session, says("hi"))
        service.create("d", user=BOB)
        assert [one.id for one in service.list()] == ["b", "c", "a"]
        assert [one.id for one in service.list(None)] == ["b", "c", "d", "a"]
        listed = service.list()[-1]
        assert (listed.events, listed.state) == ([], {"key": "a"})
        assert listed.last_update_time == session.last_update_time

    def test_each_comes_with_the_state_it_shares(self, service: Service) -> None:
        service.create("a", key=1, app__x=2, user__y=3, temp__z=4)
        service.create("b", user=BOB)
        states = {one.id: one.state for one in service.list(None)}
        assert states == {"a": {"key": 1, "app:x": 2, "user:y": 3}, "b": {"app:x": 2}}

    def test_nobody_and_no_app_have_none(self, service: Service) -> None:
        service.create("a")
        assert service.list(BOB) == service.list(ANN, "other") == service.list(None, "other") == []

    def test_sessions_that_are_not_of_adk_are_not_listed(self, service: Service) -> None:
        service.service.store.start(APP, owner=ANN)
        assert service.list() == service.list(None) == []


class TestState:
    def test_an_app_shares_one_state_and_a_user_another(self, service: Service) -> None:
        first = service.create("a", app__k1="v1", user__k1="v1", own=1)
        service.change(first, app__k2="v2", user__k2="v2", own=2)
        assert service.create("b").state == {
            "app:k1": "v1",
            "app:k2": "v2",
            "user:k1": "v1",
            "user:k2": "v2",
        }
        assert service.create("c", user=BOB).state == {"app:k1": "v1", "app:k2": "v2"}
        assert service.create("d", app="other").state == {}
        assert service.load("a").state == first.state

    @pytest.mark.parametrize("scope", ["", "app__", "user__"])
    def test_a_value_takes_the_place_of_the_one_before(self, service: Service, scope: str) -> None:
        key, name = f"{scope}key", f"{scope.replace('__', ':')}key"
        session = service.create("a", **{key: {"name": "ada", "role": {"of": "admin"}, "gone": 1}})
        for value in (
            {"name": "bob", "role": {"as": None}},
            None,
            {"adk:json": "1"},
            False,
            0,
            [{"a": None}, None],
            {},
            {"role": {"of": {}}},
            "",
            1.5,
            2**70,
        ):
            service.change(session, **{key: value})
            assert service.load("a").state == session.state == {name: value}
            assert type(service.load("a").state[name]) is type(value)

    def test_one_key_leaves_the_others_alone(self, service: Service) -> None:
        session = service.create("a", flag=False, cart=["apple"])
        service.change(session, other=True)
        assert service.load("a").state == {"flag": False, "cart": ["apple"], "other": True}

    def test_what_is_temporary_lives_in_the_session_at_hand_alone(self, service: Service) -> None:
        session = service.create("a", temp__at_birth=1)
        event = service.change(session, temp__key="v", own=1)
        assert session.state == {"temp:key": "v", "own": 1}
        assert event.actions.state_delta == {"own": 1}
        loaded = service.load("a")
        assert (loaded.state, loaded.events) == ({"own": 1}, [event])

    def test_a_user_s_state_is_read_without_a_session(self, service: Service) -> None:
        assert service.user_state() == {}
        session = service.create("a", user__at_birth=1)
        service.change(session, user__profile={"name": "Ann"}, own=1)
        service.change(session, user__profile={"name": "Anna"})
        assert service.user_state() == {"at_birth": 1, "profile": {"name": "Anna"}}
        assert service.user_state(BOB) == service.user_state(app="other") == {}

    def test_what_json_does_not_know_is_kept_as_its_words(self, service: Service) -> None:
        session = service.create("a", born=print)
        service.append(session, Event(author=ANN, actions=EventActions(state_delta={"call": print, "ok": 2})))
        state = service.load("a").state
        assert state["ok"] == 2
        assert "print" in state["call"]
        assert "print" in state["born"]

    def test_what_no_store_can_keep_is_refused_and_nothing_is_written(self, service: Service) -> None:
        session = service.create("a")
        for value, error in ((float("nan"), NotJson), ("half \ud800", InvalidText)):
            with pytest.raises(error):
                service.append(session, Event(author=ANN, actions=EventActions(state_delta={"key": value})))
        assert service.load("a").events == []
        service.change(session, key=1)
        assert service.load("a").state == {"key": 1}

    def test_of_many_who_write_at_once_none_loses_a_word(self, service: Service) -> None:
        other = OakleafSessionService(service.service.store)  # as another process: no handle is shared
        sessions = [service.create(f"s{n}") for n in range(4)]

        async def all_at_once() -> None:
            for turn in range(3):
                await asyncio.gather(
                    *(
                        (service.service, other)[n % 2].append_event(
                            session,
                            Event(
                                author=ANN,
                                actions=EventActions(
                                    state_delta={f"app:{n}.{turn}": n, f"user:{n}.{turn}": turn}
                                ),
                            ),
                        )
                        for n, session in enumerate(sessions)
                    )
                )

        service.run(all_at_once())
        state = service.load("s0").state
        assert sum(key.startswith("app:") for key in state) == 12
        assert sum(key.startswith("user:") for key in state) == 12

    def test_who_dies_between_an_event_and_what_it_shares_is_finished_by_the_next(
        self, service: Service
    ) -> None:
        session = service.create("a", user__n=1)
        event = Event(author=ANN, actions=EventActions(state_delta={"user:n": 2, "app:n": 3}))
        below = service.oakleaf(session)
        append_event(below, below.leaf, event, {})  # all that a process does before it is killed
        assert service.user_state() == {"n": 1}
        after = Service(service.service.store)
        assert after.load("a").state == {"user:n": 2, "app:n": 3}
        after.change(after.create("b"), user__n=4)
        assert Service(service.service.store).load("a").state["user:n"] == 4  # and not once more


class TestAppending:
    def test_partial_events_are_not_kept(self, service: Service) -> None:
        session = service.create("a")
        event = says("hal", partial=True)
        assert service.append(session, event) is event
        assert session.events == service.load("a").events == []

    def test_an_event_handed_in_again_is_there_once(self, service: Service) -> None:
        session = service.create("a")
        event = service.change(session, n=1)
        service.append(session, event)
        service.append(session, event.model_copy(deep=True))
        assert service.load("a").events == [event]

    def test_two_different_events_with_one_id_are_both_there(self, service: Service) -> None:
        """A host may fix its ids, as tests do: equal ids do not make equal events."""
        session = service.create("a")
        events = [
            Event(id="one", author=ANN, actions=EventActions(state_delta={"user:n": n, "app:n": n, "own": n}))
            for n in (1, 2)
        ]
        for event in events:
            service.append(session, event)
        loaded = Service(service.service.store).load("a")
        assert (loaded.events, loaded.state) == (events, {"user:n": 2, "app:n": 2, "own": 2})

    def test_who_did_not_hear_that_it_was_written_may_ask_again(self, service: Service) -> None:
        session = service.create("a")
        before = session.model_copy(deep=True)
        event = Event(author=ANN, actions=EventActions(state_delta={"n": 1, "user:n": 1}))
        service.append(session, event)
        service.append(before, event.model_copy(deep=True))
        assert before == session == service.load("a")
        assert service.append(before, says("on"))

    def test_times_come_back_exactly(self, service: Service) -> None:
        session = service.create("a")
        for at in (1730613600.0, 1730615400.123457, 100.0, 100.0):
            service.append(session, Event(author="user", timestamp=at))
            assert session.last_update_time == service.load("a").last_update_time == at
        assert [event.timestamp for event in service.load("a").events] == [
            1730613600.0,
            1730615400.123457,
            100.0,
            100.0,
        ]

    def test_a_session_that_is_gone_takes_no_event(self, service: Service) -> None:
        session = service.create("a")
        other = Service(service.service.store)
        other.delete("a")
        with pytest.raises(SessionNotFoundError):
            service.append(session, says("hi"))
        with pytest.raises(SessionNotFoundError):
            service.append(Session(app_name=APP, user_id=ANN, id="never"), says("hi"))

    def test_a_stale_writer_writes_nothing(self, service: Service) -> None:
        old = service.create("a")
        service.append(old, says("one"))
        new = service.load("a")
        service.append(new, says("two", timestamp=old.last_update_time))  # no clock could tell
        with pytest.raises(StaleSessionError, match="modified in storage"):
            service.append(old, Event(author="user", actions=EventActions(state_delta={"k": 1, "app:k": 1})))
        assert len(old.events) == 1
        loaded_session = service.load("a")
        assert (loaded_session.state, len(loaded_session.events)) == ({}, 2)

    def test_an_event_goes_behind_the_notes_of_others(self, service: Service) -> None:
        session = service.create("a")
        for n in range(2):
            service.append(session, says(f"{n}"))
            log = service.oakleaf(session)
            elsewhere = service.service.store.session(log.session_id)
            elsewhere.note({"from": "elsewhere"})
            elsewhere.note({"more": n}, state={"noted": n})
        service.append(session, says("last"))
        assert [event.content.parts[0].text for event in service.load("a").events] == ["0", "1", "last"]
        assert service.load("a").state == {"noted": 1}
        assert [entry.kind for entry in service.oakleaf(session).path()][-2:] == ["note", "message"]
        service.oakleaf(session).append([oakleaf.user("by hand")])
        with pytest.raises(StaleSessionError):
            service.append(session, says("late"))

    def test_of_two_copies_one_writes_and_the_other_is_stale(self, service: Service) -> None:
        service.create("a")
        for turn in range(3):
            copies = [service.load("a"), service.load("a")]

            async def both(copies: list[Session] = copies, turn: int = turn) -> list[Any]:
                tries = [service.service.append_event(one, says(f"{turn}")) for one in copies]
                return await asyncio.gather(*tries, return_exceptions=True)

            results = service.run(both())
            assert [type(one) for one in results if isinstance(one, Exception)] == [StaleSessionError]
        assert len(service.load("a").events) == 3

    def test_two_that_share_a_session_follow_each_other(self, service: Service) -> None:
        session = service.create("a")

        async def many() -> None:
            await asyncio.gather(*(service.service.append_event(session, says(f"{n}")) for n in range(8)))

        service.run(many())
        assert service.load("a") == session
        assert len(session.events) == 8

    def test_a_session_nobody_loaded_is_known_by_its_latest_event(self, service: Service) -> None:
        session = service.create("a")
        service.append(session, says("one"))
        own = Session(app_name=APP, user_id=ANN, id="a", events=list(session.events))
        service.append(own, says("two"))
        for events in ([], list(session.events)):
            with pytest.raises(StaleSessionError):
                service.append(Session(app_name=APP, user_id=ANN, id="a", events=events), says("three"))
        assert len(service.load("a").events) == 2


class TestLoading:
    def test_the_latest_events_and_those_since_a_time(self, service: Service) -> None:
        session = service.create("a")
        for n in range(1, 41):
            service.append(session, says(f"{n}", author="user" if n % 2 else "agent", timestamp=float(n)))

        def times(**config: Any) -> list[float]:
            return [event.timestamp for event in service.load("a", **config).events]

        assert len(times()) == 40
        assert times(num_recent_events=0) == []
        assert times(num_recent_events=3) == [38, 39, 40]
        assert times(num_recent_events=100) == times()
        assert times(after_timestamp=39.0) == [39, 40]
        assert times(after_timestamp=41.0) == []
        assert times(after_timestamp=39.0, num_recent_events=3) == [39, 40]
        assert times(after_timestamp=2.0, num_recent_events=3) == [38, 39, 40]
        few = service.load("a", num_recent_events=1)
        service.append(few, says("41", timestamp=41.0))
        assert times(num_recent_events=2) == [40, 41]


class TestTenants:
    def test_a_user_owns_what_he_says_and_another_s_store_does_not_find_it(self, tmp_path: Any) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as everybody, oakleaf.open(place, owner=BOB) as bobs:
            service = Service(everybody)
            service.append(service.create("a", user__k=1, app__k=1), says("hi"))
            assert {row.owner for row in everybody.all_sessions()} == {
                ANN,
                None,
            }  # nobody owns what an app shares
            other = Service(bobs)
            assert other.find("a") is None
            assert other.list(None) == []
            assert other.user_state() == {}
            session = other.create("b", user=BOB)
            assert service.find("b", user=BOB) == session.model_copy(update={"state": {"app:k": 1}})

    def test_an_owner_s_store_keeps_every_user_for_him(self, tmp_path: Any) -> None:
        with oakleaf.open(tmp_path / "agent.db", owner="tenant") as store:
            service = Service(store)
            session = service.create("a", user__k=1, app__k=2)
            assert service.find("a") == session
            assert [one.id for one in service.list()] == [one.id for one in service.list(None)] == ["a"]
            assert {row.owner for row in store.all_sessions()} == {"tenant"}

    @pytest.mark.parametrize("other", [{"space": "there"}, {"owner": "tenant"}, {"owner": BOB}])
    @pytest.mark.parametrize("url", ["sqlite", "postgres"])
    def test_state_is_not_shared_across_spaces_or_owners(
        self, request: pytest.FixtureRequest, tmp_path: Any, url: str, other: dict[str, Any]
    ) -> None:
        place = tmp_path / "agent.db" if url == "sqlite" else request.getfixturevalue("database").url
        with oakleaf.open(place) as here, oakleaf.open(place, **other) as there:
            ours, theirs = Service(here), Service(there)
            session = ours.create("a", app__k=1, user__k=2)
            assert theirs.find("a") is None
            assert theirs.list(None) == []
            assert theirs.user_state() == {}
            created = theirs.create("a", app__k=3, user__k=4)
            assert created.state == {"app:k": 3, "user:k": 4}
            theirs.change(created, app__k=5, user__k=6)
            assert theirs.load("a").state == {"app:k": 5, "user:k": 6}
            assert ours.load("a") == session

    def test_a_users_own_store_shares_the_state_with_everybodys(self, tmp_path: Any) -> None:
        place = tmp_path / "agent.db"
        with oakleaf.open(place) as everybody, oakleaf.open(place, owner=ANN) as anns:
            Service(everybody).create("a", user__k=1)
            assert Service(anns).user_state() == {"k": 1}
            Service(anns).create("b", user__k=2)
            assert Service(everybody).load("a").state == {"user:k": 2}

    def test_the_command_line_finds_it_by_the_id_adk_gave_it(self, service: Service) -> None:
        session = service.create()
        expected = oakleaf_session_id(service.service.store, (APP, ANN, session.id))
        assert expected.startswith(f"{session.id}~")
        assert service.oakleaf(session).session_id == expected
