"""Searching: the query language, the words, the index, and that no store finds more or less than another.

What is found, and by whom, is in `oakleaf.testing.stores.searching`, which every store runs.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oakleaf
from oakleaf import Store, ToolCall, assistant, errors, system, tool_result, user
from oakleaf.core.search import MAX_QUERY_LENGTH, Search, Term, excerpt, index_columns, matches, parse_query
from oakleaf.core.search_text import (
    MAX_TEXT_LENGTH,
    find_phrase,
    normalize_for_index,
    searchable_text,
    tokenize,
    tokenize_indexed,
)
from oakleaf.stores.memory.store import MemoryStore
from oakleaf.stores.sql.search_index import BATCH_ROWS
from oakleaf.stores.sqlite.store import SqliteStore
from support.runtime import deterministic_runtime

NOW = 1_800_000_000_000_000
DAY = 86_400 * 1_000_000


def cut(text: str) -> list[str]:
    return [word for word, *_ in tokenize(text)]


class TestTyping:
    def test_words_phrases_prefixes_and_exclusions(self) -> None:
        terms = parse_query('lost "the parcel" ship* -refund', NOW).terms
        assert terms == (
            Term("text", ("lost",)),
            Term("text", ("the", "parcel")),
            Term("text", ("ship",), is_prefix=True),
            Term("text", ("refund",), is_excluded=True),
        )

    def test_an_identifier_is_a_phrase_of_words(self) -> None:
        assert parse_query("src/read_file.py", NOW).terms == (Term("text", ("src", "read", "file", "py")),)

    def test_filters_of_an_entry_are_terms_of_their_column(self) -> None:
        terms = parse_query("role:tool tool:refund model:gpt-5 error:true -kind:note", NOW).terms
        assert [(term.column, term.words) for term in terms] == [
            ("marker", ("roletool",)),
            ("tool", ("refund",)),
            ("model", ("gpt", "5")),
            ("marker", ("errortrue",)),
            ("marker", ("kindnote",)),
        ]
        assert terms[-1].is_excluded

    def test_filters_of_a_session_are_fields(self) -> None:
        search = parse_query('x agent:"my agent" tag:team=a=b session:ses_1', NOW)
        assert (search.agent, search.tag, search.session_id) == ("my agent", ("team", "a=b"), "ses_1")
        assert parse_query("tag:team", NOW).tag == ("team", None)

    @pytest.mark.parametrize(
        ("typed", "since"),
        [
            ("after:1970-01-02T00:00Z", DAY),
            ("after:1970-01-01T01:00+01:00", 0),
            ("after:1970-01-01T00:00:00Z", 0),
            ("after:7d", NOW - 7 * DAY),
            ("after:24h", NOW - DAY),
            ("after:30m", NOW - DAY // 48),
            ("after:2w", NOW - 14 * DAY),
        ],
    )
    def test_times(self, typed: str, since: int) -> None:
        assert parse_query(typed, NOW).since == since
        assert parse_query(typed.replace("after", "before"), NOW).until == since

    @pytest.mark.parametrize(
        "typed",
        [
            "http://host/x",
            "std::vector",
            "12:30",
            "TypeError: no",
            "note: this",
            "C:/temp",
            "--yes",
            "Role:tool",
        ],
    )
    def test_a_colon_does_not_always_make_a_filter(self, typed: str) -> None:
        search = parse_query(typed, NOW)
        assert {term.column for term in search.terms} == {"text"}
        assert not any(term.is_excluded for term in search.terms)

    @pytest.mark.parametrize(
        ("typed", "reason"),
        [
            (
                "colour:red",
                "filters are role: kind: tool: model: error: agent: tag: session: before: after: is:",
            ),
            ("is:gone", "is: accepts trashed"),
            ("role:boss", "system, user, assistant, tool"),
            ("error:maybe", "true, false"),
            ("kind:thing", "title"),
            ("before:tomorrow", "2026-11-01, today, yesterday, monday"),
            ("after:2026-13-01", "an age"),
            ("-agent:x", "cannot be excluded"),
            ('agent:""', "needs a value"),
            ("tool:***", "needs a name"),
            ("", "no letter or digit"),
            ('  *** - "" ((( ', "no letter or digit"),
            ("half \ud800", "a lone surrogate"),
            ("x" * (MAX_QUERY_LENGTH + 1), "at most 2,000"),
        ],
    )
    def test_a_search_without_sense_is_refused_with_the_reason(self, typed: str, reason: str) -> None:
        with pytest.raises(errors.InvalidSearch, match="cannot search for") as excinfo:
            parse_query(typed, NOW)
        assert reason in str(excinfo.value)

    @pytest.mark.parametrize(
        "how", [{"limit": 0}, {"limit": 1_001}, {"before": "x"}, {"before": "-1"}, {"before": "9" * 19}]
    )
    def test_a_page_that_makes_no_sense_is_refused(self, how: dict[str, object], store: Store) -> None:
        with pytest.raises(errors.InvalidArgument):
            store.search("x", **how)  # type: ignore[arg-type]

    def test_an_open_quote_reaches_to_the_end(self) -> None:
        assert parse_query('say "lost par', NOW).terms[1] == Term("text", ("lost", "par"))

    @given(st.text())
    def test_whatever_is_typed_means_something_or_is_refused(self, typed: str) -> None:
        with contextlib.suppress(errors.InvalidSearch):
            search = parse_query(typed, NOW)
            assert all(
                word.isascii() is False or word.isalnum() for term in search.terms for word in term.words
            )


class TestWords:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("src/Read_File.py", "src read file py"),
            ("Café cafe\u0301 NAÏVE Straße", "cafe cafe naive strasse"),
            ("東京タワー x", "東 京 タ ワ ー x"),
            ("か\u3099ﾄ", "が ト"),
            ("서울 \u1109\u1165", "서 울 서"),
            ("ไทย", "ไ ท ย"),
            ("हिन्दी", "हिन्दी"),
            ("ok🎉👍", "ok 🎉 👍"),
            ("שָׁלוֹם مُحَمَّد", "שלום محمد"),
            ("“it’s” a…b\0c\ud800d", "it s a b c d"),
        ],
    )
    def test_a_word_is_letters_and_digits_of_any_case_and_accent(self, text: str, words: str) -> None:
        assert cut(text) == words.split()

    @given(st.text())
    def test_an_index_that_cuts_at_ascii_gets_the_same_words(self, text: str) -> None:
        assert [word for word, *_ in tokenize_indexed(normalize_for_index(text))] == cut(text)

    @given(st.text(), st.text())
    def test_a_word_of_a_text_is_found_and_marked(self, before: str, after: str) -> None:
        text = f"{before} needle {after}"
        term = Term("text", ("needle",))
        assert matches([term], index_columns(text, kind="message"))
        snippet, marks = excerpt(text, [term])
        assert any(snippet[begin:end].lower() == "needle" for begin, end in marks)

    @pytest.mark.parametrize("around", ["é {}", "{} é", "é{}", "{}é", "一{}", "{}\u0300 é", "é {}\u2014"])
    def test_base64_beside_other_letters_takes_linear_time(self, around: str) -> None:
        """One accent beside 80 kB of base64 took 26 s: four times the length must not take sixteen times as long."""

        def seconds(length: int) -> float:
            text = around.format("aB3x" * (length // 4))
            took = []
            for _ in range(3):
                began = time.process_time()
                normalize_for_index(text)
                find_phrase(text, ["no", "where"], is_prefix=False)
                took.append(time.process_time() - began)
            return min(took)

        assert seconds(40_000) < 10 * max(seconds(10_000), 0.000_5)

    def test_json_is_read_as_a_person_reads_it(self) -> None:
        call = assistant(ToolCall("c", "say", {"text": 'lost\nparcel "41" C:\\new \u00e9', "n": 1.5}))
        assert cut(searchable_text(call)) == [
            "say",
            "text",
            "lost",
            "parcel",
            "41",
            "c",
            "new",
            "e",
            "n",
            "1",
            "5",
        ]
        result = tool_result("c", r'{"a":"x\ny","b":"caf\u00e9 \ud83c\udf89 \ud800","c":"\\n"}')
        assert cut(searchable_text(result)) == ["a", "x", "y", "b", "cafe", "🎉", "c", "n"]
        assert cut(searchable_text(tool_result("c", r"plain C:\new\table"))) == ["plain", "c", "new", "table"]

    def test_evidence_and_details_are_not_searched(self) -> None:
        assert "SECRET" not in searchable_text(
            tool_result("c", "ok", details={"k": "SECRET"}, state={"s": "SECRET"})
        )

    def test_a_huge_text_is_searched_up_to_a_bound(self) -> None:
        assert len(searchable_text(user("x" * (MAX_TEXT_LENGTH + 5)))) == MAX_TEXT_LENGTH


PIECES = st.sampled_from(
    ["lost", "Parcel", "a_1", "東京", "京", "é", "e\u0301", "🎉", '"', "*", "-", "NEAR(", "AND", "OR", "NOT", "^", ":", "{", ")", "'", "\0",
     "text:", "role:", "tool:", "error:", "--", ";", "\n", "%", "½", "ﷺ", "İ", "Σ", "x" * 40]
)  # fmt: skip
TYPED = st.lists(PIECES | st.text(max_size=8), max_size=8).map(" ".join) | st.lists(PIECES).map("".join)
TEXTS = st.text(max_size=60).map(lambda text: text.replace("\0", "")) | st.lists(PIECES, max_size=12).map(
    " ".join
)


@contextlib.contextmanager
def pair() -> Iterator[tuple[Store, Store]]:
    """A store in memory and one on disk that count alike."""
    with (
        TemporaryDirectory() as place,
        Store(MemoryStore(), deterministic_runtime()) as memory,
        Store(SqliteStore(f"{place}/a.db", synchronous="normal"), deterministic_runtime()) as sqlite,
    ):
        yield memory, sqlite


def test_a_page_iterates_over_its_hits_and_a_page_without_hits_is_false(store: Store) -> None:
    store.start("a").append([user("a herring"), assistant("a second herring")])
    page = store.search("herring", limit=1)
    rest = store.search("herring", limit=1, before=page.next)
    assert [[hit.seq for hit in each] for each in (page, rest)] == [[2], [1]]
    assert (len(page), bool(page), bool(store.search("cod"))) == (1, True, False)


def search_outcome(store: Store, typed: str) -> object:
    try:
        return store.search(typed).hits
    except errors.OakleafError as error:
        return str(error)


def change(store: Store, verb: int, which: int, number: int) -> None:
    """One of the things that may happen to one of the sessions there are."""
    rows = [*store.all_sessions(), *store.all_sessions(trashed=True)]
    if not rows or verb == 0:
        store.start("a", title=f"herring {number}").append([user(f"herring {number}")])
        return
    row = rows[which % len(rows)]
    session = store.session(row.session_id)
    with contextlib.suppress(errors.SessionTrashed, errors.NotTrashed):
        match verb:
            case 1:
                session.append([user(f"herring {number}"), assistant(f"herring {number}")])
            case 2:
                session.fork(at=min(which, session.leaf.seq), title=f"herring {number}" if which else None)
            case 3:
                session.rewind(min(which, session.leaf.seq))
            case 4:
                store.delete(row.session_id)
            case 5:
                store.purge(row.session_id)


class TestStores:
    @settings(max_examples=50)
    @given(texts=st.lists(TEXTS, min_size=1, max_size=4), typed=TYPED)
    def test_all_stores_find_the_same_and_no_text_is_an_error_of_sql(
        self, texts: list[str], typed: str
    ) -> None:
        with pair() as stores:
            for store in stores:
                for text in texts:
                    title = text.replace("\0", "")[:20] or None
                    session = store.start("a", title=title)
                    called = ToolCall("c", text[:5].replace("\0", "") or "t", {"x": text})
                    session.append([user(text), assistant(text[::-1], called)])
                    session.append([tool_result("c", text, error=len(text) % 2 == 0)])
            for query in (typed, texts[0], f'"{texts[-1][2:9]}', f"tool:{texts[0][:3]}", f"{texts[-1][:6]}*"):
                assert search_outcome(stores[0], query) == search_outcome(stores[1], query), query

    @settings(max_examples=40)
    @given(moves=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=25))
    def test_all_stores_find_the_same_after_any_forks_and_purges(self, moves: list[tuple[int, int]]) -> None:
        with pair() as stores:
            for number, (verb, which) in enumerate(moves):
                for store in stores:
                    change(store, verb, which, number)
                for query in ("herring", "herring is:trashed"):
                    hits = [store.search(query, limit=500).hits for store in stores]
                    assert hits[0] == hits[1]
            for row in stores[0].all_sessions():
                assert search_outcome(stores[0], f"session:{row.session_id}") == search_outcome(
                    stores[1], f"session:{row.session_id}"
                )

    @pytest.mark.parametrize("sign", ["", "-"])
    def test_a_search_may_be_as_long_as_may_be_typed(self, sign: str, store: Store) -> None:
        store.start("a").append([user(" ".join(chr(0x4E00 + n) for n in range(1_000)))])
        many = " ".join(f"{sign}{chr(0x4E00 + n)}" for n in range(MAX_QUERY_LENGTH // (2 + len(sign))))
        assert len(store.search(many).hits) == (0 if sign else 1)
        assert len(store.search('"' + "".join(chr(0x4E00 + n) for n in range(1_000))).hits) == 1

    def test_the_clock_is_the_stores_world(self, store: Store) -> None:
        session = store.start("a")
        session.append([user("herring")])
        assert len(store.search("herring after:1m").hits) == 1
        assert store.search("herring before:1m").hits == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def bare(path: Path, query: str) -> list[tuple[object, ...]]:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return list(connection.execute(query))


def vocabulary(path: Path) -> set[str]:
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("create virtual table temp.term using fts5vocab(main, search, row)")
        return {row[0] for row in connection.execute("select term from temp.term")}


class TestIndex:
    def test_appending_does_not_touch_it(self, path: Path) -> None:
        with oakleaf.open(path) as store:
            store.start("a").append([user("herring")])
            assert bare(path, "select count(*) from search_entry") == [(0,)]
            assert store.search("herring", catch_up=False).hits == []
            assert store.search("herring", catch_up=False).unindexed_sessions == 1
            assert store.index() == 1
            assert store.search("herring", catch_up=False).unindexed_sessions == 0

    def test_the_index_is_built_in_batches_with_progress(self, path: Path) -> None:
        with oakleaf.open(path, synchronous="normal") as store:
            for n in range(3):
                session = store.start("a", title=f"t{n}")
                for m in range(4):
                    session.append([user(f"herring {m}-{k}") for k in range(100)])
            progress: list[tuple[int, int]] = []
            assert store.index(lambda entries, remaining: progress.append((entries, remaining))) == 1_200
            assert len(progress) >= 1_200 // BATCH_ROWS
            assert progress[-1] == (1_200, 0)
            assert [entries for entries, _ in progress] == sorted(entries for entries, _ in progress)
            assert len(store.search("herring", limit=1_000).hits) == 1_000

    def test_a_killed_build_continues_at_the_same_place(self, path: Path) -> None:
        class Killed(Exception):
            pass

        def kill(entries: int, remaining: int) -> None:
            raise Killed

        with oakleaf.open(path, synchronous="normal") as store:
            session = store.start("a")
            for _ in range(6):
                session.append([user("herring") for _ in range(100)])
            with pytest.raises(Killed):
                store.index(kill)
            assert 0 < bare(path, "select count(*) from search_entry")[0][0] < 600  # type: ignore[operator]
            assert store.index() == 600 - BATCH_ROWS
            assert bare(path, "select count(*) from search_entry") == [(600,)]

    def test_a_batch_read_before_a_purge_brings_nothing_back(self, path: Path) -> None:
        with oakleaf.open(path) as store:
            session = store.start("a", title="herring")
            session.append([user("herring one"), assistant("herring two")])
            fork = session.fork(at=1)
            assert isinstance(store.backend, SqliteStore)
            with store.backend._connections.reading() as reader:
                batch = store.backend._index.read_batch(reader, 0)
            assert len(batch.rows) == 2
            store.delete(session.session_id)
            store.purge(session.session_id)
            store.backend._connections.write(lambda writer: store.backend._index.write_batch(writer, batch))
            assert bare(path, "select id from search_entry") == []
            assert [hit.session_id for hit in store.search("herring").hits] == [fork.session_id] * 2
            assert [hit.snippet for hit in store.search("herring role:user").hits] == ["herring one"]

    def test_two_readers_of_the_same_news_index_once(self, path: Path) -> None:
        with oakleaf.open(path) as store:
            store.start("a", title="herring").append([user("herring")])
            assert isinstance(store.backend, SqliteStore)
            for _ in range(2):
                with store.backend._connections.reading() as reader:
                    batch = store.backend._index.read_batch(reader, 0)
                for _ in range(2):
                    store.backend._connections.write(
                        lambda writer, batch=batch: store.backend._index.write_batch(writer, batch)
                    )
            assert len(store.search("herring").hits) == 2

    def test_processes_that_write_and_search_at_once_agree(self, path: Path) -> None:
        """Four of them append and search; afterwards each entry is indexed once, and the index is whole."""
        code = """
import oakleaf, sys
with oakleaf.open(sys.argv[1], synchronous="normal") as store:
    session = store.start("a", title="herring " + sys.argv[2])
    for n in range(25):
        session.append([oakleaf.user(f"herring {sys.argv[2]}x{n}")])
        assert store.search(f"{sys.argv[2]}x{n}").hits, n
"""
        oakleaf.open(path).close()
        running = [subprocess.Popen([sys.executable, "-c", code, str(path), f"p{n}"]) for n in range(4)]
        assert [process.wait() for process in running] == [0] * 4
        with oakleaf.open(path) as store:
            assert len(store.search("herring", limit=1_000).hits) == 4 * 26
            assert bare(path, "select count(*), count(distinct id) from search_entry") == [(104, 104)]
            assert bare(path, "pragma integrity_check") == [("ok",)]

    def test_threads_of_a_store_append_while_the_index_is_built(self, path: Path) -> None:
        with oakleaf.open(path, synchronous="normal") as store:
            old = store.start("a")
            for _ in range(10):
                old.append([user("herring " * 50) for _ in range(100)])
            session = store.start("a")
            thread = Thread(target=lambda: [session.append([user("mackerel")]) for _ in range(50)])
            thread.start()
            store.index()
            thread.join()
            assert len(store.search("mackerel").hits) == 50

    def test_without_room_the_index_is_searched_and_says_so(self, path: Path) -> None:
        with oakleaf.open(path, synchronous="normal") as store:
            session = store.start("a")
            session.append([user("herring")])
            assert store.search("herring").hits
            words = " ".join(f"w{n:x}" for n in range(30_000))
            session.append([user(words) for _ in range(3)])
            assert isinstance(store.backend, SqliteStore)
            writer = store.backend._connections._writer
            pages = int(writer.execute("pragma page_count").get)
            writer.execute(f"pragma max_page_count = {pages}")
            with pytest.raises(
                errors.IndexBehind, match=r"1 session .*no space left to write.*catch_up=False"
            ) as behind:
                store.search("herring")
            assert "catch_up" not in behind.value.command_text
            assert behind.value.command_text.count("free some disk space") == 1
            page = store.search("herring", catch_up=False)
            assert len(page.hits) == 1
            assert page.unindexed_sessions == 1
            writer.execute(f"pragma max_page_count = {pages * 100}")
            assert len(store.search("w1").hits) == 3

    def test_searches_between_appends_leave_few_segments(self, path: Path) -> None:
        """A search looks into every segment, and each that indexes something makes one."""
        with oakleaf.open(path, synchronous="normal") as store:
            session = store.start("a")
            for n in range(150):
                session.append([user(f"herring {n}")])
                store.index()
            ((segments,),) = bare(path, "select count(distinct segid) from search_idx")
            assert segments <= 8
            assert len(store.search("herring", limit=200).hits) == 150

    def test_many_sessions_with_titles_are_indexed_in_one_piece(self, path: Path) -> None:
        """FTS5 writes a segment whenever a row comes before the last one, as a title does if it comes after its entries."""
        with oakleaf.open(path, synchronous="normal") as store:
            for n in range(60):
                store.start("a", title=f"title {n}").append([user(f"herring {n}")])
            assert isinstance(store.backend, SqliteStore)
            pages: list[int] = []
            store.backend._connections._writer.set_update_hook(
                lambda _, __, table, row: pages.append(row) if table == "search_data" else None
            )
            store.index()
            assert 0 < len(pages) < 20
            assert len(store.search("title", limit=100).hits) == 60

    def test_entries_of_another_space_take_no_place_of_own_entries(self, path: Path) -> None:
        with oakleaf.open(path) as store, oakleaf.open(path, space="other") as other:
            mine = [store.start("a").append([user(f"herring {n}")]) and n for n in range(7)]
            other.start("a").append([user("herring") for _ in range(9)])
            mine += [store.start("a").append([user(f"herring {n}")]) and n for n in range(7, 9)]
            pages, before = [], None
            while True:
                page = store.search("herring", limit=3, before=before)
                pages.append([hit.snippet for hit in page.hits])
                if (before := page.next) is None:
                    break
            assert [text for page in pages for text in page] == [f"herring {n}" for n in reversed(mine)]
            assert len(other.search("herring", limit=3).hits) == 3
            assert store.search("herring -mackerel role:user", limit=20).next is None

    def test_a_complete_index_is_searched_without_room_to_tidy(self, path: Path) -> None:
        with oakleaf.open(path, synchronous="normal") as store:
            session = store.start("a")
            for n in range(7):
                session.append([user(" ".join(f"w{n}x{m}" for m in range(9_000))) for _ in range(3)])
            assert isinstance(store.backend, SqliteStore)
            writer = store.backend._connections._writer

            def leave_no_room(entries: int, left: int) -> None:
                if not left:
                    writer.execute(f"pragma max_page_count = {writer.execute('pragma page_count').get}")

            assert store.index(leave_no_room) == 21
            assert len(store.search("w3x7", catch_up=False).hits) == 3
            assert bare(path, "select count(distinct segid) > 1 from search_idx") == [(1,)]

    def test_a_backup_searches_alike(self, path: Path, tmp_path: Path) -> None:
        with oakleaf.open(path) as store:
            store.start("a", title="t").append([user("herring")])
            hits = store.search("herring").hits
            assert isinstance(store.backend, SqliteStore)
            store.backend.backup(tmp_path / "b.db")
        with oakleaf.open(tmp_path / "b.db") as copy:
            assert copy.search("herring", catch_up=False).hits == hits

    def test_a_purge_leaves_no_word_of_it(self, path: Path) -> None:
        with oakleaf.open(path) as store:
            other = store.start("a")
            other.append([user("mackerel stays")])
            session = store.start("zqagent", [system("zqseed")], title="zqtitle", tags={"zqtag": "zqvalue"})
            session.append(
                [user("zqinput"), assistant("zqsaid", ToolCall("c", "zqtool", {"zqkey": "zqarg"}))]
            )
            store.search("x")
            session.append([tool_result("c", "zqresult")])
            session.title("zqsecond")
            store.search("x")
            session.title(None)
            store.search("x")
            assert "zqinput" in vocabulary(path)
            store.delete(session.session_id)
            store.purge(session.session_id)
            assert not [word for word in vocabulary(path) if word.startswith("zq")]
            assert "mackerel" in vocabulary(path)
            files = [file for file in path.parent.iterdir() if b"zq" in file.read_bytes()]
            assert files == []
            assert len(store.search("mackerel").hits) == 1

    def test_entries_kept_by_a_fork_forget_the_owner(self, path: Path) -> None:
        with oakleaf.open(path) as store:
            session = store.start("zqagent", title="zqtitle", owner="zqowner")
            session.append([user("kept"), assistant("zqgone")])
            fork = session.fork(at=1, title="mine")
            store.search("x")
            owners = {word for word in vocabulary(path) if word.startswith("owner")}
            assert len(owners) == 1
            store.delete(session.session_id)
            store.purge(session.session_id)
            assert [(hit.session_id, hit.on_path) for hit in store.search("kept").hits] == [
                (fork.session_id, True)
            ]
            assert not [word for word in vocabulary(path) if word.startswith("zq")]

    def test_the_public_reader_cannot_read_it(self, path: Path) -> None:
        from oakleaf.stores.sqlite.public_reader import PublicReader

        with oakleaf.open(path, owner="ann") as store:
            store.start("a", [system("SECRET")], title="t").append([user("question")])
            assert store.search("secret").hits
        attacks = [
            "select * from search",
            "select rowid from search where search match 'secret'",
            "select rowid from search('secret')",
            "select * from search_data",
            "select * from search_idx",
            "select * from search_docsize",
            "select * from search_entry",
            "select * from search_progress",
            "select bm25(search) from search('secret')",
            "select 1 from public_message where exists (select 1 from search('secret'))",
            "create virtual table temp.term using fts5vocab(main, search, row)",
            "select * from public_message where public_message match 'secret'",
        ]
        with PublicReader(str(path), owner="ann") as reader:
            for attack in attacks:
                with pytest.raises(errors.OakleafError):
                    list(reader.query(attack))


def test_a_search_is_a_value() -> None:
    assert (
        parse_query("a b", NOW)
        == parse_query("a  b", NOW)
        == Search(terms=(Term("text", ("a",)), Term("text", ("b",))))
    )
