"""A session as Markdown: everything that happened, and nothing a stranger wrote can do a thing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

import oakleaf
from oakleaf import (
    Attachment,
    BranchSummary,
    Evidence,
    Message,
    Reasoning,
    Session,
    Text,
    ToolCall,
    Usage,
    assistant,
    system,
    tool_result,
    user,
)
from oakleaf.core.drafts import Draft
from oakleaf.core.entries import Compaction, Entry, Note, Settings, Unknown
from oakleaf.core.messages import Outcome
from oakleaf.core.redact import Redactor
from oakleaf.core.redact_entries import redact_entries
from oakleaf.core.usage import Totals
from oakleaf.errors import InvalidArgument
from oakleaf.exports.escape import code, cut, fence, quote
from oakleaf.exports.markdown import OUTCOMES, markdown
from oakleaf.store import Store
from oakleaf.stores.base import SessionRow
from support.import_sources import store
from support.random_logs import path_of, paths, thorough_settings
from support.sessions import exported, exported_pieces

__all__ = ["store"]

ROW = SessionRow(session_id="ses_1", space="default", conversation_id="con_1", started_at=0, updated_at=1)
reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def render(session: Session, **how: Any) -> str:
    return exported(session, "markdown", **how)


def tokens(text: str) -> Iterator[Token]:
    for token in reader.parse(text):
        yield token
        yield from token.children or ()


def headings(text: str) -> list[str]:
    """What a reader takes for headings of the document itself."""
    tokens = reader.parse(text)
    return [after.content for token, after in pairwise(tokens) if _is_ours(token)]


def _is_ours(token: Token) -> bool:
    return token.type == "heading_open" and token.level == 0


class TestWhatIsTold:
    def test_a_session_reads_from_its_title_to_its_cost(self, store: Store) -> None:
        session = store.start("support", [system("You help.")], title="Order 41")
        with session.turn("Where is it?", model="anthropic:m") as turn:
            turn.answer(assistant(ToolCall("c", "lookup", {"order": 41})), usage=Usage(10, 5))
            turn.result("c", {"status": "lost"})
            turn.answer(assistant("It is lost."), usage=Usage(20, 7))
        text = render(session)
        assert headings(text) == [
            "Order 41",
            "1 · System",
            "2 · User",
            "3 · Assistant",
            "4 · Result of `lookup`",
            "5 · Assistant",
            "Usage",
        ]
        assert '**Call** `lookup`\n\n```json\n{"order":41}\n```\n' in text
        assert '```text\n{"status":"lost"}\n```\n' in text
        assert "> It is lost.\n" in text
        assert "- Model calls: 2\n- Tokens: 30 in (0 from the cache, 0 into it), 12 out\n" in text

    @pytest.mark.parametrize(
        ("outcome", "words"),
        [
            ("unknown", "**outcome unknown: it may or may not have happened**"),
            ("denied", "**denied: it did not run**"),
            ("interrupted", "**interrupted**"),
            ("dry_run", "**dry run: it did not run**"),
            ("not_recorded", "**not recorded: in this replay nothing was done**"),
        ],
    )
    def test_a_result_that_is_not_simply_done_is_marked(self, outcome: Any, words: str) -> None:
        path = path_of(
            user("q"), assistant(ToolCall("c", "pay")), tool_result("c", "?", outcome=outcome, error=True)
        )
        text = "".join(markdown(ROW, path, Totals(), 20))
        assert f"## 3 · Result of `pay` · {words} · **error**\n" in text

    def test_every_outcome_has_its_words(self) -> None:
        assert {*OUTCOMES, "done"} == set(get_args(Outcome))

    def test_an_answer_that_was_cut_off_is_marked(self, store: Store) -> None:
        session = store.start()
        session.append([user("q")])
        session.log.append([Draft(assistant("half an"), model="m", finish="interrupted")])
        assert "## 2 · Assistant · `m` · **interrupted**\n" in render(session)

    def test_a_turn_without_an_answer_and_a_call_without_a_result_are_said(self, store: Store) -> None:
        session = store.start()
        session.append([user("first"), user("second"), assistant(ToolCall("c", "pay"))])
        text = render(session)
        assert text.count("*This turn has no final answer.*") == 2
        assert "**No result** of `pay`." in text

    def test_results_of_equal_ids_are_named_after_the_call_the_log_pairs_them_with(self) -> None:
        calls = assistant(ToolCall("c", "a"), ToolCall("c", "b"))
        path = path_of(user("q"), calls, tool_result("c"), tool_result("c"))
        text = "".join(markdown(ROW, path, Totals(), 20))
        assert [head for head in headings(text) if "Result" in head] == [
            "3 · Result of `a`",
            "4 · Result of `b`",
        ]

    def test_compactions_branch_summaries_and_settings_are_shown(self, store: Store) -> None:
        session = store.start()
        session.append([user("a long question " * 20), assistant("a")])
        session.append([user("b"), assistant("b")])
        session.compact("They asked.")
        session.uncompact()
        session.rewind(to=2, summary="It led nowhere.")
        session.set(model="m2", prompt="New.", tools=("t",), limits={"turns": 3})
        text = render(session)
        assert "What the branch left at 6 had found\n\n> It led nowhere." in text
        assert 'Model: `m2`\n\nTools allowed: `t`\n\n```json\n{"turns":3}\n```\n\nPrompt:\n\n> New.' in text
        session.checkout(oakleaf.Leaf(session.branches()[0].branch, 6))
        text = render(session)
        assert "Summary of what lies before 3\n\n> They asked." in text
        assert "The summary at 5 is cancelled" in text

    def test_an_entry_of_a_newer_format_is_named(self) -> None:
        path = path_of(user("q"))
        newer = replace(path[0], seq=2, turn=0, payload=Unknown("vote", b'{"x":1}'))
        assert "## 2 · `vote`, of a newer format\n" in "".join(markdown(ROW, [*path, newer], Totals(), 20))

    def test_media_are_named_by_their_handles(self, store: Store) -> None:
        session = store.start()
        session.append([user(Attachment(b"x" * 2_000, "image/png", "a `cat`.png"))])
        assert "*Media:* `` a `cat`.png `` `image/png`, 2,000 bytes, sha256 `" in render(session)

    def test_the_hosts_own_data_and_evidence_are_not_told(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "t"))])
        session.append([tool_result("c", "r", details={"k": "CANARY"})])
        evidence = Evidence("anthropic", {"0": {"signature": "CANARY"}})
        session.log.append([Draft(assistant(Reasoning("hm"), "a"), evidence=evidence)])
        session.note({"k": "CANARY"})
        assert "CANARY" not in render(session, redact=False)


class TestBounds:
    def test_a_long_result_is_cut_and_says_how_much_more_there_is(self, store: Store) -> None:
        session = store.start()
        session.append([user("q"), assistant(ToolCall("c", "t"))])
        session.append([tool_result("c", "\n".join(f"line {n}" for n in range(1, 51)))])
        text = render(session, lines=5)
        assert "line 5\n```\n\n… 45 more lines\n" in text
        assert "line 6" not in text

    def test_one_endless_line_is_cut_too(self) -> None:
        assert cut("x" * 10, 5, 4) == (["xxxx"], "… 6 more characters")
        assert cut("ab\n" + "x" * 10 + "\ny", 5, 4) == (["ab", "xx"], "… 8 more characters and 1 more line")
        assert cut("a\nb\nc", 2, 99) == (["a", "b"], "… 1 more line")
        assert cut("a\nb", 2, 99) == (["a", "b"], "")

    def test_less_than_a_line_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidArgument, match="lines=0 is invalid"):
            exported(store.start(), "markdown", lines=0)

    def test_it_streams_a_text_per_entry(self, store: Store) -> None:
        session = store.start()
        session.append([message for n in range(700) for message in (user(f"q{n}"), assistant(f"a{n}"))])
        chunks = exported_pieces(session, "markdown")
        assert ["q0" in chunks[1], "a0" in chunks[2]] == [True, True]
        assert sum("· User" in chunk or "· Assistant" in chunk for chunk in chunks) == 1_400


HOSTILE = [
    *("<script>alert(1)</script>", "<!--", "-->", "<b", "<http://auto.example>", "</details>", "<![CDATA[", "<?php"),
    *("```", "````", "~~~", "~~~~ html", "```html", "   ```", "    ```", "- ```", "> ```", "1. ~~~", "`", "``", "` `` `"),
    *("## 9 · Assistant", "# Usage", "===", "---", "***", "\r## spoof", "\r\n# spoof", "a\x85## b", "a\u2028## b"),
    *("[a](javascript:x)", "![i](http://t.example/i.png)", "[r]: http://x.example", "[r]", "[r][r]", "![r]", "[^1]: x"),
    *("\\<b>", "\\\\<b>", "\\[a](b)", "\\", "&lt;b>", "&#60;b>", "[a]\\(b)", "[[a](b)](c)", "[a]\n(b)", "[r]\n: x"),
    *("- a", "  - <b>", "    <b>", "\t<b>", "1. <b>", "> <b>", "| a | <b> |\n|-|-|\n| c | d |", "", " ", "\0", "\x1b[31m"),
]  # fmt: skip
hostile = st.lists(st.sampled_from(HOSTILE), max_size=6).map("\n".join)
TEMPTING = ["html_block", "html_inline", "link_open", "image"]


class TestContentIsInert:
    @thorough_settings
    @given(hostile, hostile, hostile)
    def test_no_tag_no_link_no_image_and_no_heading_of_a_strangers_making(
        self, one: str, two: str, three: str
    ) -> None:
        path = _everywhere(one, two, three)
        text = "".join(markdown(replace(ROW, title=two, agent=one, error=three), path, Totals(), 20))
        assert [token.type for token in tokens(text) if token.type in TEMPTING] == []
        ours = [head.partition(" · ")[0] for head in headings(text)[1:]]
        assert ours == [*"12345678", "9", "Usage"]
        assert "\x1b" not in text
        assert "\0" not in text

    @thorough_settings
    @given(hostile)
    def test_a_quote_is_one_quote_and_a_fence_one_fence(self, text: str) -> None:
        quoted = reader.parse(quote(text))
        assert (quoted[0].type, quoted[-1].type) == ("blockquote_open", "blockquote_close")
        assert [token.type for token in quoted if token.level == 0] == ["blockquote_open", "blockquote_close"]
        (fenced,) = reader.parse("\n".join(fence(text.split("\n"), "text")))
        assert fenced.type == "fence"

    @given(hostile)
    def test_a_name_is_one_piece_of_code(self, name: str) -> None:
        written = code(name)
        (inline,) = [token for token in reader.parse(f"## {written}") if token.type == "inline"]
        types = [token.type for token in inline.children or () if token.type != "text"]
        assert types in (["code_inline"], ["em_open", "em_close"])

    def test_code_blocks_of_an_answer_stay_code(self) -> None:
        text = quote("Run:\n```sh\ncat <in >out\n```\nIf a < b, stop.")
        assert text == "> Run:\n> ```sh\n> cat <in >out\n> ```\n> If a &lt; b, stop."
        html = reader.render(text)
        assert '<code class="language-sh">cat &lt;in &gt;out\n</code>' in html
        assert "If a &lt; b, stop." in html


def _everywhere(one: str, two: str, three: str) -> list[Entry]:
    """A path with a stranger's text wherever there is room for one."""
    handle = oakleaf.Media("h", one, 3, two)
    calls = (ToolCall("c", one, {two: three}), ToolCall("d", two, malformed=three))
    results = (
        oakleaf.ToolResult("d", (Text(one), handle)),
        oakleaf.ToolResult("c", (Text(two), Text(three)), error=True),
    )
    return path_of(
        system(one),
        user(two, handle),
        Message("assistant", (Reasoning(one), Text(three), *calls)),
        Message("tool", results[:1]),
        Message("tool", results[1:]),
        assistant(one),
        Compaction(two, 3),
        BranchSummary(three, 3, "ab"),
        Settings(one, two, three, (one, two), {two: three}),
        Note({one: two}),
    )


@thorough_settings
@given(paths())
def test_every_log_can_be_told_and_tells_no_secret(path: list[Entry]) -> None:
    hidden = list(redact_entries(path, Redactor(unnamed=["snowman ☃ 🎄"])))
    text = "".join(markdown(ROW, hidden, Totals(), 20))
    assert text == "".join(markdown(ROW, hidden, Totals(), 20))
    assert "SIG-" not in text
    assert "DETAILS" not in text
    assert "snowman" not in text
    assert [token.type for token in tokens(text) if token.type in TEMPTING] == []
