"""Searching: what is found, under which name, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from oakleaf.core.entries import BranchSummary, Compaction, Note, Settings
from oakleaf.core.facts import Titled
from oakleaf.core.messages import Reasoning, ToolCall, assistant, system, tool_result, user
from oakleaf.core.search import parse_query
from oakleaf.errors import InvalidArgument, NotFound
from oakleaf.stores.base import StoreBackend
from oakleaf.stores.search import SearchHit, SearchPage
from oakleaf.testing.stores.writer import SessionWriter, StoreFactory, assert_raises, delete

NOW = 10_000_000_000_000


def page(store: StoreBackend, typed: str, **how: Any) -> SearchPage:
    store.index()
    return store.search(replace(parse_query(typed, NOW), **how))


def hits(store: StoreBackend, typed: str, **how: Any) -> list[SearchHit]:
    return page(store, typed, **how).hits


def places(store: StoreBackend, typed: str, **how: Any) -> list[str]:
    """`session:seq` of each hit, without the prefix of ids."""
    return [f"{hit.session_id[4:]}:{hit.seq}" for hit in hits(store, typed, **how)]


class SearchConformance(StoreFactory):
    def _talk(self, session_id: str = "ses_a", **about: Any) -> SessionWriter:
        writer = SessionWriter(self.open_store(), session_id, seeds=[system("You help customers")], **about)
        writer.append(user("Where is my parcel? Order A-1041"))
        writer.append(
            assistant("Looking", ToolCall("c1", "track_parcel", {"order": "A-1041", "why": "lost\nfreight"}))
        )
        writer.append(tool_result("c1", {"status": "stranded\nat sea"}, error=True))
        writer.append(assistant(Reasoning("the customer is upset"), "It is lost, sorry"))
        return writer

    def test_text_reasoning_tool_input_and_output_are_found(self) -> None:
        store = self._talk(title="Trouble in Tōkyō").store
        assert places(store, "customers") == ["a:1"]
        assert places(store, "parcel") == ["a:3", "a:2"]
        assert places(store, "a-1041") == ["a:3", "a:2"]
        assert places(store, "track_parcel") == ["a:3"]
        assert places(store, "freight") == ["a:3"]
        assert places(store, "STRANDED at sea") == ["a:4"]
        assert places(store, "upset") == ["a:5"]
        assert places(store, "tokyo") == ["a:0"]
        assert places(store, "nowhere") == []

    def test_summaries_prompts_and_notes_are_found(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("begin"), assistant("ok"))
        writer.append(Compaction("we spoke of whales", first_kept=1))
        writer.append(BranchSummary("it led to dolphins", 1, "ab"), Settings(prompt="talk like a seal"))
        writer.append(Note({"ticket": "otter"}), Note({"ticket": "otter"}, hidden=True))
        for seq, word in enumerate(["whales", "dolphins", "seal", "otter"], start=3):
            assert places(writer.store, word) == [f"a:{seq}"]
        assert places(writer.store, "kind:branch_summary") == ["a:4"]

    def test_words_go_together_phrases_stand_and_a_dash_leaves_out(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("the red fox"), assistant("a fox, red"), user("red paint"), assistant("foxglove"))
        assert places(writer.store, "red fox") == ["a:2", "a:1"]
        assert places(writer.store, '"red fox"') == ["a:1"]
        assert places(writer.store, '"red fo"*') == ["a:1"]
        assert places(writer.store, "red -fox") == ["a:3"]
        assert places(writer.store, "fox*") == ["a:4", "a:2", "a:1"]
        assert places(writer.store, "-red") == ["a:4"]
        assert places(writer.store, 'fox -"red fox"') == ["a:2"]

    def test_a_run_without_blanks_is_found_wherever_it_stands(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(
            user("昨日は東京タワーに行きました"),
            assistant("ﾄｳｷｮｳ 🎉 서울에서"),
            user("Ça coûte 5€, NAÏVE Straße"),
        )
        assert places(writer.store, "東京タワー") == ["a:1"]
        assert places(writer.store, "京タ") == ["a:1"]
        assert places(writer.store, "京東") == []
        assert places(writer.store, "トウキョウ") == ["a:2"]
        assert places(writer.store, "🎉") == ["a:2"]
        assert places(writer.store, "서울") == ["a:2"]
        assert places(writer.store, "ca coute naive STRASSE") == ["a:3"]

    def test_filters_narrow(self) -> None:
        writer = self._talk(agent="support", tags={"team": "sea"})
        other = self._talk("ses_b", agent="sales")
        store = writer.store
        assert places(store, "role:tool tool:track", limit=1) == ["b:4"]
        assert places(store, "role:tool tool:track agent:support") == ["a:4"]
        assert places(store, "tool:parcel agent:support") == ["a:4", "a:3"]
        assert places(store, "tool:refund") == []
        assert places(store, "error:true agent:support") == ["a:4"]
        assert places(store, "agent:support error:false -role:assistant") == ["a:2", "a:1"]
        assert places(store, "lost tag:team") == places(store, "lost tag:team=sea") == ["a:5", "a:3"]
        assert places(store, "lost tag:team=land") == []
        assert places(store, "kind:title") == []
        assert places(store, f"session:{other.session_id} lost") == ["b:5", "b:3"]

    def test_models_and_times_are_filters(self) -> None:
        writer = SessionWriter(self.open_store())
        entry = replace(
            writer.change(user("early")).entries[0], model="openai:gpt-5-mini", finish="error", at=NOW - 5
        )
        writer.commit(key="k", after=writer.leaf, entries=(entry,))
        assert places(writer.store, "model:gpt") == places(writer.store, "model:gpt-5") == ["a:1"]
        assert places(writer.store, "model:claude") == []
        assert places(writer.store, "early error:true") == ["a:1"]
        assert places(writer.store, "early after:1m") == ["a:1"]
        assert places(writer.store, "early before:1m") == []
        assert places(writer.store, "early before:1970-04-26T17:46:39.999995") == []
        assert places(writer.store, "early before:1970-04-26T17:46:39.999996Z") == ["a:1"]

    def test_pages_go_on_where_the_last_one_ended(self) -> None:
        store = self.open_store()
        for name in ("ses_a", "ses_b"):
            writer = SessionWriter(store, name, title=f"needle {name}")
            for n in range(4):
                writer.append(user(f"needle {n}"))
        whole = places(store, "needle")
        assert whole == [*(f"b:{n}" for n in (4, 3, 2, 1, 0)), *(f"a:{n}" for n in (4, 3, 2, 1, 0))]
        pages = self._pages(store, "needle", lambda: None)
        assert [f"{hit.session_id[4:]}:{hit.seq}" for hit in pages] == whole

    def test_a_search_that_matches_everything_goes_page_by_page_while_the_store_grows(self) -> None:
        """New sessions are before the first page: nothing is listed twice, and no earlier session is missing."""
        store = self.open_store()
        writers = [SessionWriter(store, f"ses_{n}") for n in range(4)]
        for n, writer in enumerate(writers * 8):
            writer.append(user(f"a herring, number {n}"))
        old = {(hit.branch, hit.seq) for hit in self._pages(store, "herring", lambda: None)}
        assert len(old) == 32

        def grow() -> None:
            newest = SessionWriter(store, f"ses_new{next(numbers)}")
            newest.append(user("a herring that came later"))

        numbers = iter(range(100))
        for query in ("herring", "role:user", "-mackerel"):
            places = [(hit.branch, hit.seq) for hit in self._pages(store, query, grow)]
            assert len(places) == len(set(places))
            assert old <= set(places)

    def _pages(self, store: StoreBackend, typed: str, between: Callable[[], None]) -> Iterator[SearchHit]:
        before = None
        for _ in range(100):
            part = page(store, typed, limit=3, before=before)
            assert len(part.hits) <= 3
            yield from part.hits
            if part.next is None:
                return
            before = part.next
            between()
        raise AssertionError("the pages do not end")

    def test_a_position_of_another_store_is_bounded_or_refused(self) -> None:
        store = self.open_store()
        SessionWriter(store).append(user("herring"))
        assert places(store, "herring", before="9" * 18) == ["a:1"]
        assert places(store, "herring", before="0") == []
        for token in ("", "-1", "1-1", "x", "9" * 19, "1; drop table search"):
            assert_raises(InvalidArgument, lambda token=token: places(store, "herring", before=token))  # type: ignore[misc]

    def test_what_is_appended_later_is_found_later(self) -> None:
        writer = self._talk()
        assert places(writer.store, "whale") == []
        writer.append(user("a whale"))
        assert places(writer.store, "whale") == ["a:6"]
        assert page(writer.store, "whale").unindexed_sessions == 0
        assert writer.store.index() == 0

    def test_a_new_title_takes_the_place_of_the_old(self) -> None:
        writer = SessionWriter(self.open_store(), title="herring")
        assert places(writer.store, "herring") == ["a:0"]
        for title, expected in (("mackerel", ["a:0"]), (None, [])):
            writer.commit(key=f"k{title}", fact=Titled(title), columns={"title": title})
            assert places(writer.store, "herring") == []
            assert places(writer.store, "mackerel") == expected

    def test_a_branch_that_was_left_is_found_and_said_to_be_off_the_path(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("one herring"))
        early, cursor = writer.leaf, writer.cursor
        writer.append(assistant("two herring"))
        writer.move(early, cursor)
        writer.append(assistant("three herring"))
        rows = [(hit.seq, hit.snippet, hit.on_path) for hit in hits(writer.store, "herring")]
        assert rows == [(2, "three herring", True), (2, "two herring", False), (1, "one herring", True)]

    def test_what_forks_share_is_found_once_as_its_owners(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("shared herring"))
        fork = writer.fork("ses_b")
        fork.append(assistant("herring of the fork"))
        writer.append(assistant("herring of the source"))
        assert places(writer.store, "herring") == ["b:2", "a:2", "a:1"]
        assert [hit.on_path for hit in hits(writer.store, "herring")] == [True, True, True]

    def test_a_session_named_is_searched_with_all_it_stands_on(self) -> None:
        writer = SessionWriter(self.open_store(), title="herring")
        writer.append(user("shared herring"))
        fork = writer.fork("ses_b")
        fork.append(assistant("herring of the fork"))
        writer.append(assistant("herring of the source"))
        assert places(writer.store, "herring session:ses_b") == ["b:2", "b:1"]
        assert places(writer.store, "herring session:ses_b", limit=1) == ["b:2"]
        assert places(writer.store, "herring session:ses_a") == ["a:2", "a:1", "a:0"]
        assert_raises(NotFound, lambda: hits(writer.store, "herring session:ses_none"))

    def test_a_result_knows_its_tool_across_batches_and_branches(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("go"), assistant(ToolCall("c1", "dig", {}), ToolCall("c2", "fly", {})))
        writer.store.index()
        writer.append(tool_result("c2", "winged"))
        writer.store.index()
        writer.append(tool_result("c1", "muddy"))
        assert [hit.tool for hit in hits(writer.store, "role:tool")] == ["dig", "fly"]
        assert places(writer.store, "tool:fly role:tool") == ["a:3"]
        assert [hit.tool for hit in hits(writer.store, "role:assistant")] == ["dig, fly"]

    def test_a_stranger_finds_nothing(self) -> None:
        SessionWriter(self.open_store(owner="ann"), title="herring of ann").append(user("herring"))
        SessionWriter(self.open_store(), "ses_b", owner=None, title="herring of nobody").append(
            user("herring")
        )
        assert places(self.open_store(owner="ann"), "herring") == ["a:1", "a:0"]
        assert places(self.open_store(), "herring") == ["b:1", "b:0", "a:1", "a:0"]
        for stranger in (self.open_store(owner="bob"), self.open_store(space="other")):
            assert hits(stranger, "herring") == hits(stranger, "-x") == []
            assert_raises(NotFound, lambda store=stranger: hits(store, "session:ses_a"))  # type: ignore[misc]

    def test_replays_are_searched_only_when_asked(self) -> None:
        writer = SessionWriter(self.open_store(), title="herring")
        writer.append(user("herring"))
        replay = writer.fork("ses_r", relation="replay", title="herring again")
        replay.append(assistant("herring of the replay"))
        writer.fork("ses_f").append(assistant("herring of the fork"))
        store = writer.store
        assert places(store, "herring") == ["f:2", "a:1", "a:0"]
        assert places(store, "herring is:replay") == ["r:2", "r:0"]
        assert places(store, "herring is:all") == ["f:2", "r:2", "r:0", "a:1", "a:0"]
        assert places(store, "herring", limit=2) == ["f:2", "a:1"]
        assert places(store, "herring session:ses_r") == ["r:2", "r:0", "r:1"]
        assert places(store, "herring session:ses_r is:replay") == ["r:2", "r:0"]
        assert places(store, "-mackerel is:replay") == ["r:2", "r:0"]
        relations = [hit.relation for hit in hits(store, "herring is:all")]
        assert relations == ["fork", "replay", "replay", None, None]

    def test_what_a_purged_session_left_is_found_below_a_replay(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("herring"))
        replay = writer.fork("ses_r", relation="replay")
        replay.append(assistant("herring of the replay"))
        writer.fork("ses_f").append(assistant("herring of the fork"))
        delete(writer.store, "ses_a")
        assert places(replay.store, "herring") == ["f:2", "r:1"]
        assert places(replay.store, "herring is:replay") == ["r:2"]

    def test_the_trash_is_searched_only_when_asked(self) -> None:
        writer = self._talk()
        assert places(writer.store, "upset") == ["a:5"]
        writer.store.trash("ses_a", 5)
        assert places(writer.store, "upset") == []
        assert places(writer.store, "upset", trashed=True) == ["a:5"]
        writer.store.restore("ses_a")
        assert places(writer.store, "upset") == ["a:5"]

    def test_what_is_purged_is_not_found_and_what_a_fork_keeps_is_found_as_the_forks(self) -> None:
        writer = SessionWriter(self.open_store(), title="herring", agent="gone")
        writer.append(user("herring one"))
        writer.append(assistant("herring two"))
        short = writer.fork("ses_b")
        writer.append(user("herring three"))
        long = writer.fork("ses_c")
        writer.append(assistant("herring four"))
        assert places(writer.store, "herring") == ["a:4", "a:3", "a:2", "a:1", "a:0"]
        delete(writer.store, "ses_a")
        assert places(short.store, "herring") == ["c:3", "b:2", "b:1"]
        assert places(short.store, "herring agent:gone") == []
        assert places(short.store, "herring session:ses_c") == ["c:3", "c:2", "c:1"]
        delete(short.store, "ses_b")
        assert places(long.store, "herring") == ["c:3", "c:2", "c:1"]
        delete(long.store, "ses_c")
        assert places(long.store, "herring") == places(long.store, "-x") == []

    def test_a_snippet_shows_where_and_marks_what(self) -> None:
        writer = SessionWriter(self.open_store())
        writer.append(user("blah " * 500 + "a lost   Parcel\nof mine " + "blah " * 500))
        (hit,) = hits(writer.store, '"lost parcel" mine')
        assert "a [lost Parcel] of [mine] blah" in hit.highlight()
        assert hit.snippet.startswith("…")
        assert hit.snippet.endswith("…")
        assert len(hit.snippet) < 200
