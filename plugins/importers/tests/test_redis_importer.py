"""Chats in Redis: LangChain's lists and plain {messages, state}, read from a small server that speaks its protocol."""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakleaf.core.messages import ToolCall, assistant
from oakleaf.errors import InvalidSource, OakleafError, PluginMissing
from oakleaf.install import install_line
from oakleaf.store import Store
from support.import_sources import (
    Record,
    assert_survived,
    entries_of,
    import_all,
    import_one,
    mangled_records,
    memory_store,
    message_texts,
    store,
)
from support.redis_server import READ_COMMANDS, run_server

__all__ = ["store"]

CALL = {"name": "look", "args": {"order": 41}, "id": "c1", "type": "tool_call"}
SPENT = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
MESSAGES: list[Record] = [
    {"type": "human", "data": {"content": "Where is 41?", "type": "human"}},
    {
        "type": "ai",
        "data": {"content": "I look.", "type": "ai", "tool_calls": [CALL], "usage_metadata": SPENT},
    },
    {"type": "tool", "data": {"content": "lost", "type": "tool", "tool_call_id": "c1", "status": "error"}},
    {"type": "ai", "data": {"content": "It is lost.", "type": "ai", "usage_metadata": SPENT}},
]
PLAIN: Record = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}],
    "state": {"mood": "calm"},
}


def langchain_list(messages: list[Record]) -> list[str]:
    """As LangChain pushes them: the newest first."""
    return [json.dumps(message) for message in reversed(messages)]


VALUES = {
    "message_store:s1": langchain_list(MESSAGES),
    "chat:ann:7": json.dumps(PLAIN),
    "cache:1": "not JSON",
    "cache:2": json.dumps({"a": 1}),
    "queue": ["job", "job"],
    "users": {"a": 1},
}


class TestAList:
    def test_of_langchains_is_a_session_oldest_first(self, store: Store) -> None:
        with run_server({"message_store:s1": langchain_list(MESSAGES)}) as (url, _):
            session, report = import_one(store, "redis", url)
        path = [e.message for e in entries_of(session) if e.message is not None]
        assert session.session_id == "redis-s1"
        assert [m.role for m in path] == ["user", "assistant", "tool", "assistant"]
        assert path[1].calls == (ToolCall("c1", "look", {"order": 41}),)
        assert [r.error for r in path[2].results] == [True]
        assert (session.usage().calls, session.usage().input_tokens, report.losses) == (2, 20, {})

    def test_longer_than_a_page_is_read_whole(self, store: Store) -> None:
        many = [{"type": "human", "data": {"content": str(n)}} for n in range(1_201)]
        with run_server({"message_store:s1": langchain_list(many)}) as (url, _):
            import_one(store, "redis", url)
        assert message_texts(store.session("redis-s1")) == [str(n) for n in range(1_201)]

    def test_grows(self, store: Store) -> None:
        for end in (1, 2, 4):
            with run_server({"message_store:s1": langchain_list(MESSAGES[:end])}) as (url, _):
                _, report = import_one(store, "redis", url)
        assert report.entries == 2
        assert message_texts(store.session("redis-s1"))[-1] == "It is lost."


class TestAValue:
    def test_of_messages_and_state_is_a_session_with_both(self, store: Store) -> None:
        with run_server({"chat:ann:7": json.dumps(PLAIN)}) as (url, _):
            session, _ = import_one(store, "redis", url)
        assert session.session_id == "redis-chat:ann:7"
        assert message_texts(store.session(session.session_id)) == ["Hi", "Ho"]
        assert session.state == {"mood": "calm"}

    def test_that_has_grown_grows_and_its_state_is_the_newest(self, store: Store) -> None:
        more = {
            "messages": [*PLAIN["messages"], {"role": "user", "content": "And?"}],
            "state": {"mood": "odd"},
        }
        for value in (PLAIN, more):
            with run_server({"chat:ann:7": json.dumps(value)}) as (url, _):
                session, _ = import_one(store, "redis", url)
        assert message_texts(store.session(session.session_id)) == ["Hi", "Ho", "And?"]
        assert session.state == {"mood": "odd"}


class TestTheServer:
    def test_is_only_read_and_what_is_no_chat_is_passed_over(self, store: Store) -> None:
        with run_server(VALUES) as (url, server):
            reports = import_all(store, "redis", url)
            assert set(server.commands) <= READ_COMMANDS
        assert [report.source for report in reports] == ["chat:ann:7", "s1"]

    def test_is_asked_for_the_keys_that_match(self, store: Store) -> None:
        with run_server(VALUES) as (url, _):
            assert [report.source for report in import_all(store, "redis", f"{url}/0?match=chat:*")] == [
                "chat:ann:7"
            ]

    def test_is_told_the_password_and_nobody_else_is(self) -> None:
        with run_server(VALUES, password="correct horse") as (url, _), memory_store() as store:
            known = url.replace("//", "//:correct%20horse@")
            assert len(import_all(store, "redis", known)) == 2
            for wrong in (url, url.replace("//", "//:battery-staple@")):
                with pytest.raises(InvalidSource) as excinfo:
                    import_all(store, "redis", wrong)
                assert "staple" not in str(excinfo.value)

    @pytest.mark.parametrize(
        "place", ["redis://127.0.0.1:1", "redis://", "redis://h:99999", "http://h", "/tmp/x", "redis://[::1"]
    )
    def test_that_is_not_there_is_an_error_that_says_so(self, place: str) -> None:
        with (
            memory_store() as store,
            pytest.raises(InvalidSource, match=r"cannot read .* as sessions of redis"),
        ):
            import_all(store, "redis", place)

    def test_without_the_client_library_names_the_extra_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "redis.exceptions", None)
        with memory_store() as store, pytest.raises(PluginMissing, match=re.escape(install_line("redis"))):
            import_all(store, "redis", "redis://127.0.0.1:1")

    @given(mangled_records(MESSAGES))
    def test_with_a_mangled_list_gives_a_sound_session_or_a_reason(self, records: list[Record]) -> None:
        with run_server({"message_store:s1": langchain_list(records)}) as (url, _):
            assert_survived("redis", url)

    @given(mangled_records([PLAIN, *PLAIN["messages"]]))
    def test_with_a_mangled_value_gives_a_sound_session_or_a_reason(self, records: list[Record]) -> None:
        with run_server({f"chat:{n}": json.dumps(record) for n, record in enumerate(records)}) as (url, _):
            assert_survived("redis", url)

    @given(
        st.lists(
            st.sampled_from(
                [
                    b"*2\r\n",
                    b"$1\r\n0\r\n",
                    b"*0\r\n",
                    b"$-1\r\n",
                    b"-ERR\r\n",
                    b"$9\r\nx",
                    b"$a\r\n",
                    b"*1\r\n" * 50,
                    b"%\r\n",
                    b"$99999999999\r\n",
                    b"",
                ]
            ),
            max_size=4,
        )
    )
    def test_that_speaks_otherwise_is_refused_with_a_reason(self, answers: list[bytes]) -> None:
        with run_server_answering(b"".join(answers)) as url, memory_store() as store, suppress(OakleafError):
            assert import_all(store, "redis", url) == []


@contextmanager
def run_server_answering(answer: bytes) -> Iterator[str]:
    """A server that says this, whatever it is asked, and hangs up."""

    class FixedAnswerHandler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(answer)

    handler: Callable[..., socketserver.BaseRequestHandler] = FixedAnswerHandler
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class TestFallback:
    """The migration plan: a conversation not yet moved is found under its own id, read once, then ours."""

    VALUES = {
        "message_store:conv-77": langchain_list(MESSAGES),
        "chat:conv-78": json.dumps(PLAIN),
        "conv-79": json.dumps(PLAIN),
    }

    @pytest.mark.parametrize(
        ("conversation", "query"), [("conv-77", ""), ("conv-78", "?match=chat:*"), ("conv-79", "")]
    )
    def test_a_chat_not_yet_moved_is_read_once_under_its_own_id(
        self, store: Store, conversation: str, query: str
    ) -> None:
        with run_server(self.VALUES) as (url, _):
            ours = store.latest_or_start(conversation, "support", fallback=url + query)
        assert ours.row.conversation_id == conversation
        assert message_texts(ours)[-1] in ("It is lost.", "Ho")
        with ours.turn("More?") as turn:
            turn.answer(assistant("Ours now."))
        again = store.latest_or_start(conversation, "support", fallback=url + query)  # the server is away
        assert (again.session_id, again.leaf) == (ours.session_id, ours.leaf)

    def test_an_import_of_the_whole_redis_finds_them_under_the_same_ids(self, store: Store) -> None:
        with run_server(self.VALUES) as (url, _):
            list(store.import_from("redis", url))
        assert store.latest("conv-77") is not None
        assert store.latest("conv-79") is not None

    def test_the_chat_belongs_to_the_owner_that_asks(self, store: Store) -> None:
        with run_server(self.VALUES) as (url, _):
            assert store.latest_or_start("conv-77", fallback=url, owner="ann").row.owner == "ann"

    def test_a_conversation_that_is_nowhere_is_started(self, store: Store) -> None:
        with run_server(self.VALUES) as (url, server):
            assert store.latest_or_start("conv-1", "support", fallback=url).row.seed_count == 0
            assert set(server.commands) <= READ_COMMANDS

    def test_a_redis_that_is_away_is_an_error_and_starts_nothing(self, store: Store) -> None:
        with run_server({}) as (url, _):
            pass
        with pytest.raises(InvalidSource, match="redis"):
            store.latest_or_start("conv-77", fallback=url)
        assert list(store.all_sessions()) == []
