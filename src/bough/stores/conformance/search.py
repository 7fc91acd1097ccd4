"""Searching: what is found, under which name, and by whom."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ...core.entries import BranchSummary, Compaction, Note, Settings
from ...core.messages import Reasoning, ToolCall, assistant, system, tool_result, user
from ...core.search import parse_query
from ...errors import NotFound
from ..base import Change, StoreBackend
from ..search import SearchHit, SearchPage
from .writer import Opening, Pen, refused

NOW = 10_000_000_000_000


def page(store: StoreBackend, typed: str, **how: Any) -> SearchPage:
    store.index()
    return store.search(replace(parse_query(typed, NOW), **how))


def hits(store: StoreBackend, typed: str, **how: Any) -> list[SearchHit]:
    return page(store, typed, **how).hits


def places(store: StoreBackend, typed: str, **how: Any) -> list[str]:
    """`session:seq` of each hit, without the prefix of ids."""
    return [f"{hit.session_id[4:]}:{hit.seq}" for hit in hits(store, typed, **how)]


class Searching(Opening):
    def _talk(self, session_id: str = "ses_a", **about: Any) -> Pen:
        pen = Pen(self.opened(), session_id, seeds=[system("You help customers")], **about)
        pen.append(user("Where is my parcel? Order A-1041"))
        pen.append(
            assistant("Looking", ToolCall("c1", "track_parcel", {"order": "A-1041", "why": "lost\nfreight"}))
        )
        pen.append(tool_result("c1", {"status": "stranded\nat sea"}, error=True))
        pen.append(assistant(Reasoning("the customer is upset"), "It is lost, sorry"))
        return pen

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
        pen = Pen(self.opened())
        pen.append(user("begin"), assistant("ok"))
        pen.append(Compaction("we spoke of whales", first_kept=1))
        pen.append(BranchSummary("it led to dolphins", 1, "ab"), Settings(prompt="talk like a seal"))
        pen.append(Note({"ticket": "otter"}))
        for seq, word in enumerate(["whales", "dolphins", "seal", "otter"], start=3):
            assert places(pen.store, word) == [f"a:{seq}"]
        assert places(pen.store, "kind:branch_summary") == ["a:4"]

    def test_words_go_together_phrases_stand_and_a_dash_leaves_out(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("the red fox"), assistant("a fox, red"), user("red paint"), assistant("foxglove"))
        assert places(pen.store, "red fox") == ["a:2", "a:1"]
        assert places(pen.store, '"red fox"') == ["a:1"]
        assert places(pen.store, '"red fo"*') == ["a:1"]
        assert places(pen.store, "red -fox") == ["a:3"]
        assert places(pen.store, "fox*") == ["a:4", "a:2", "a:1"]
        assert places(pen.store, "-red") == ["a:4"]
        assert places(pen.store, 'fox -"red fox"') == ["a:2"]

    def test_a_run_without_blanks_is_found_wherever_it_stands(self) -> None:
        pen = Pen(self.opened())
        pen.append(
            user("昨日は東京タワーに行きました"),
            assistant("ﾄｳｷｮｳ 🎉 서울에서"),
            user("Ça coûte 5€, NAÏVE Straße"),
        )
        assert places(pen.store, "東京タワー") == ["a:1"]
        assert places(pen.store, "京タ") == ["a:1"]
        assert places(pen.store, "京東") == []
        assert places(pen.store, "トウキョウ") == ["a:2"]
        assert places(pen.store, "🎉") == ["a:2"]
        assert places(pen.store, "서울") == ["a:2"]
        assert places(pen.store, "ca coute naive STRASSE") == ["a:3"]

    def test_filters_narrow(self) -> None:
        pen = self._talk(agent="support", tags={"team": "sea"})
        other = self._talk("ses_b", agent="sales")
        store = pen.store
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
        pen = Pen(self.opened())
        entry = replace(
            pen.change(user("early")).entries[0], model="openai:gpt-5-mini", finish="error", at=NOW - 5
        )
        pen.store.commit(Change(session_id="ses_a", key="k", at=1, after=pen.leaf, entries=(entry,)))
        assert places(pen.store, "model:gpt") == places(pen.store, "model:gpt-5") == ["a:1"]
        assert places(pen.store, "model:claude") == []
        assert places(pen.store, "early error:true") == ["a:1"]
        assert places(pen.store, "early after:1m") == ["a:1"]
        assert places(pen.store, "early before:1m") == []
        assert places(pen.store, "early before:1970-04-26T17:46:39.999995") == []
        assert places(pen.store, "early before:1970-04-26T17:46:39.999996Z") == ["a:1"]

    def test_pages_go_on_where_the_last_one_ended(self) -> None:
        store = self.opened()
        for name in ("ses_a", "ses_b"):
            pen = Pen(store, name, title=f"needle {name}")
            for n in range(4):
                pen.append(user(f"needle {n}"))
        whole = places(store, "needle")
        assert whole == [*(f"b:{n}" for n in (4, 3, 2, 1, 0)), *(f"a:{n}" for n in (4, 3, 2, 1, 0))]
        found, before = [], None
        while True:
            part = page(store, "needle", limit=3, before=before)
            found += [f"{hit.session_id[4:]}:{hit.seq}" for hit in part.hits]
            if part.next is None:
                break
            before = part.next
        assert found == whole

    def test_what_is_appended_later_is_found_later(self) -> None:
        pen = self._talk()
        assert places(pen.store, "whale") == []
        pen.append(user("a whale"))
        assert places(pen.store, "whale") == ["a:6"]
        assert page(pen.store, "whale").unindexed_sessions == 0
        assert pen.store.index() == 0

    def test_a_new_title_takes_the_place_of_the_old(self) -> None:
        pen = Pen(self.opened(), title="herring")
        assert places(pen.store, "herring") == ["a:0"]
        for title, found in (("mackerel", ["a:0"]), (None, [])):
            pen.store.commit(
                Change(session_id="ses_a", key=f"k{title}", at=1, kind="titled", columns={"title": title})
            )
            assert places(pen.store, "herring") == []
            assert places(pen.store, "mackerel") == found

    def test_a_branch_that_was_left_is_found_and_said_to_be_off_the_path(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("one herring"))
        early, cursor = pen.leaf, pen.cursor
        pen.append(assistant("two herring"))
        pen.move(early, cursor)
        pen.append(assistant("three herring"))
        found = [(hit.seq, hit.snippet, hit.on_path) for hit in hits(pen.store, "herring")]
        assert found == [(2, "three herring", True), (2, "two herring", False), (1, "one herring", True)]

    def test_what_forks_share_is_found_once_as_its_owners(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("shared herring"))
        fork = Pen(
            pen.store, "ses_b", relation="fork", parent_session="ses_a", fork_point=(pen.leaf, pen.cursor)
        )
        fork.append(assistant("herring of the fork"))
        pen.append(assistant("herring of the source"))
        assert places(pen.store, "herring") == ["b:2", "a:2", "a:1"]
        assert [hit.on_path for hit in hits(pen.store, "herring")] == [True, True, True]

    def test_a_session_named_is_searched_with_all_it_stands_on(self) -> None:
        pen = Pen(self.opened(), title="herring")
        pen.append(user("shared herring"))
        fork = Pen(
            pen.store, "ses_b", relation="fork", parent_session="ses_a", fork_point=(pen.leaf, pen.cursor)
        )
        fork.append(assistant("herring of the fork"))
        pen.append(assistant("herring of the source"))
        assert places(pen.store, "herring session:ses_b") == ["b:2", "b:1"]
        assert places(pen.store, "herring session:ses_b", limit=1) == ["b:2"]
        assert places(pen.store, "herring session:ses_a") == ["a:2", "a:1", "a:0"]
        refused(NotFound, lambda: hits(pen.store, "herring session:ses_none"))

    def test_a_result_knows_its_tool_across_batches_and_branches(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("go"), assistant(ToolCall("c1", "dig", {}), ToolCall("c2", "fly", {})))
        pen.store.index()
        pen.append(tool_result("c2", "winged"))
        pen.store.index()
        pen.append(tool_result("c1", "muddy"))
        assert [hit.tool for hit in hits(pen.store, "role:tool")] == ["dig", "fly"]
        assert places(pen.store, "tool:fly role:tool") == ["a:3"]
        assert [hit.tool for hit in hits(pen.store, "role:assistant")] == ["dig, fly"]

    def test_a_stranger_finds_nothing(self) -> None:
        Pen(self.opened(owner="ann"), title="herring of ann").append(user("herring"))
        Pen(self.opened(), "ses_b", owner=None, title="herring of nobody").append(user("herring"))
        assert places(self.opened(owner="ann"), "herring") == ["a:1", "a:0"]
        assert places(self.opened(), "herring") == ["b:1", "b:0", "a:1", "a:0"]
        for stranger in (self.opened(owner="bob"), self.opened(space="other")):
            assert hits(stranger, "herring") == hits(stranger, "-x") == []
            refused(NotFound, lambda store=stranger: hits(store, "session:ses_a"))  # type: ignore[misc]

    def test_the_trash_is_searched_only_when_asked(self) -> None:
        pen = self._talk()
        assert places(pen.store, "upset") == ["a:5"]
        pen.store.trash("ses_a", 5)
        assert places(pen.store, "upset") == []
        assert places(pen.store, "upset", trashed=True) == ["a:5"]
        pen.store.restore("ses_a")
        assert places(pen.store, "upset") == ["a:5"]

    def test_what_is_purged_is_not_found_and_what_a_fork_keeps_is_found_as_the_forks(self) -> None:
        pen = Pen(self.opened(), title="herring", agent="gone")
        pen.append(user("herring one"))
        pen.append(assistant("herring two"))
        short = Pen(pen.store, "ses_b", relation="fork", fork_point=(pen.leaf, pen.cursor))
        pen.append(user("herring three"))
        long = Pen(pen.store, "ses_c", relation="fork", fork_point=(pen.leaf, pen.cursor))
        pen.append(assistant("herring four"))
        assert places(pen.store, "herring") == ["a:4", "a:3", "a:2", "a:1", "a:0"]
        pen.store.trash("ses_a", 5)
        pen.store.purge("ses_a")
        assert places(short.store, "herring") == ["c:3", "b:2", "b:1"]
        assert places(short.store, "herring agent:gone") == []
        assert places(short.store, "herring session:ses_c") == ["c:3", "c:2", "c:1"]
        short.store.trash("ses_b", 6)
        short.store.purge("ses_b")
        assert places(long.store, "herring") == ["c:3", "c:2", "c:1"]
        long.store.trash("ses_c", 7)
        long.store.purge("ses_c")
        assert places(long.store, "herring") == places(long.store, "-x") == []

    def test_a_snippet_shows_where_and_marks_what(self) -> None:
        pen = Pen(self.opened())
        pen.append(user("blah " * 500 + "a lost   Parcel\nof mine " + "blah " * 500))
        (hit,) = hits(pen.store, '"lost parcel" mine')
        assert "a [lost Parcel] of [mine] blah" in hit.highlight()
        assert hit.snippet.startswith("…")
        assert hit.snippet.endswith("…")
        assert len(hit.snippet) < 200
