"""The viewer's pure parts, in the browser they run in: differences, Markdown, the rows of a tree, and text made plain."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from support.browser import ServerProcess, ViewerPage, browser
from support.paths import VIEWER

__all__ = ["browser"]


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with ServerProcess(tmp_path_factory.mktemp("parts") / "agent.db") as process:
        viewer = ViewerPage(browser, process.url)
        yield viewer.open("/")
        viewer.check()
        viewer.close()


def run(page: Page, module: str, body: str, *args: Any) -> Any:
    return page.evaluate(
        f"async (args) => {{ const m = await import('/assets/{module}.js'); {body} }}", list(args)
    )


class TestDifference:
    def test_both_texts_can_be_read_from_it(self, page: Page) -> None:
        dice = random.Random(7)
        pairs = [
            ["".join(dice.choices("ab \n", k=dice.randint(0, 60))) for _ in range(2)] for _ in range(200)
        ]
        body = """return args[0].map(([a, b]) => {
            const sides = (pieces, side) => pieces.filter((p) => p.side !== side).map((p) => p.text ?? p.items.join("\\n"));
            const words = m.diffWords(a, b), lines = m.diffLines(a, b);
            return [sides(words, "b").join(""), sides(words, "a").join(""), sides(lines, "b").join("\\n"), sides(lines, "a").join("\\n")];
        });"""
        for (a, b), result in zip(pairs, run(page, "text_diff", body, pairs), strict=True):
            assert result == [a, b, a, b]

    def test_very_long_texts_are_not_compared_but_shown_whole(self, page: Page) -> None:
        body = "return m.diffLines(args[0], args[1]).map((piece) => piece.side);"
        a, b = ("\n".join(f"{name}{n}" for n in range(20_000)) for name in "ab")
        assert run(page, "text_diff", body, a, b) == ["a", "b"]


class TestMarkdown:
    @pytest.mark.parametrize(
        ("text", "html"),
        [
            ("one\ntwo\n\nthree", "<p>one\ntwo</p><p>three</p>"),
            ("# A #\n\n###### B", "<h3>A</h3><h6>B</h6>"),
            (
                "- a\n- b\n  - c\n\n1. d\n2. e",
                "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>d</li><li>e</li></ol>",
            ),
            ("3) a\n4) b", '<ol start="3"><li>a</li><li>b</li></ol>'),
            (
                "a `b` **c** *d* ~~e~~ _f_ g_h_i 2*3*4",
                "<p>a <code>b</code> <strong>c</strong> <em>d</em> <s>e</s> <em>f</em> g_h_i 2*3*4</p>",
            ),
            ("> a\n> > b", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>"),
            ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
            ("<b>x</b> & <script>", "<p>&lt;b&gt;x&lt;/b&gt; &amp; &lt;script&gt;</p>"),
            ("[a](javascript:x) [b](//c) [d](data:e)", "<p>[a](javascript:x) [b](//c) [d](data:e)</p>"),
        ],
    )
    def test_becomes_nodes(self, page: Page, text: str, html: str) -> None:
        assert run(page, "markdown", "return m.markdown(args[0]).innerHTML;", text) == html

    def test_links_open_outside_without_a_referrer(self, page: Page) -> None:
        body = "return [...m.markdown(args[0]).querySelectorAll('a')].map((a) => [a.href, a.rel, a.target]);"
        result = run(
            page,
            "markdown",
            body,
            "[a](https://x.example/y) mailto: [b](mailto:a@b.example) http://c.example/d.",
        )
        assert [href for href, _, _ in result] == [
            "https://x.example/y",
            "mailto:a@b.example",
            "http://c.example/d",
        ]
        assert {(rel, target) for _, rel, target in result} == {("noopener noreferrer nofollow", "_blank")}

    @pytest.mark.parametrize(
        "piece",
        ["*", "_", "`", "[", "[a](", "> ", "- ", "|", "**a ", "![", "#", "1. ", "<", "~~", "https://"],
    )
    def test_hostile_input_is_parsed_in_linear_time(self, page: Page, piece: str) -> None:
        body = """const at = performance.now(); m.markdown(args[0].repeat(90000 / args[0].length));
            m.markdown((args[0] + "\\n").repeat(3000)); return performance.now() - at;"""
        assert run(page, "markdown", body, piece) < 5_000


class TestTreeRows:
    def test_every_entry_is_in_one_row_when_all_is_unfolded(self, page: Page) -> None:
        dice = random.Random(11)
        for _ in range(40):
            result, entries = tree(dice)
            body = """const branches = new m.TreeRows(args[0]), open = new Set();
                const [branch, seq] = args[0].leaf.split(":").map(Number), trunk = branches.ranges({branch, seq});
                for (let n = 0; n < 30; n++) for (const [kind, b, s] of branches.slots(trunk, open)) if (kind === m.SIDE) open.add(`${b}:${s}`);
                return branches.slots(trunk, open).filter(([kind]) => kind === m.ENTRY).map(([, b, s, depth]) => [b, s, depth]);"""
            rows = run(page, "tree_rows", body, result)
            assert sorted((b, s) for b, s, _ in rows) == sorted(entries)
            assert [s for _, s, depth in rows if depth == 0] == list(
                range(1, int(result["leaf"].split(":")[1]) + 1)
            )

    def test_folded_sides_cost_a_row_each(self, page: Page) -> None:
        count = 5_000
        rows = [[1, None, 0, count, 1], *([n + 2, 1, n + 1, n + 3, 1] for n in range(count - 1))]
        result = {"leaf": f"1:{count}", "branches": rows, "path": [[1, 1, count]], "related": []}
        body = """const branches = new m.TreeRows(args[0]), at = performance.now();
            const slots = branches.slots(branches.ranges({branch: 1, seq: args[1]}), new Set());
            return [slots.length, performance.now() - at];"""
        length, milliseconds = run(page, "tree_rows", body, result, count)
        assert length == 2 * count - 1
        assert milliseconds < 2_000


def tree(dice: random.Random) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Branches that left each other anywhere, one place to stand, and all entries there are."""
    rows: list[list[int | None]] = [[1, None, 0, dice.randint(1, 6), 1]]
    for branch in range(2, dice.randint(2, 9)):
        parent, _, first, tail, _ = dice.choice(rows)
        assert first is not None
        assert tail is not None
        at = dice.randint(first, tail)
        rows.append([branch, parent, at, at + dice.randint(1, 4), 1])
    entries = [(row[0], seq) for row in rows for seq in range((row[2] or 0) + 1, (row[3] or 0) + 1)]
    leaf = dice.choice(entries)
    result = {"leaf": f"{leaf[0]}:{leaf[1]}", "branches": rows, "path": [], "related": []}
    return result, entries  # type: ignore[return-value]


class TestPlainText:
    def test_control_and_direction_characters_are_made_visible(self, page: Page) -> None:
        every = "".join(
            map(
                chr,
                [
                    *range(0x100),
                    0x061C,
                    *range(0x200E, 0x2010),
                    *range(0x202A, 0x202F),
                    *range(0x2066, 0x206A),
                ],
            )
        )
        result = run(page, "format", "return m.printable(args[0]);", every)
        steering = {
            *range(0x20),
            *range(0x7F, 0xA0),
            0x061C,
            0x200E,
            0x200F,
            *range(0x202A, 0x202F),
            *range(0x2066, 0x206A),
        }
        assert {ord(c) for c in result} & steering == {9, 10}

    @pytest.mark.parametrize(
        ("microcents", "text"),
        [
            (0, "$0"),
            (1, "<$0.00001"),
            (1_000, "$0.00001"),
            (432_000, "$0.00432"),
            (13_000_000, "$0.130"),
            (250_000_000, "$2.50"),
            (None, "–"),
        ],
    )
    def test_money_keeps_the_digits_that_matter(self, page: Page, microcents: int | None, text: str) -> None:
        assert run(page, "format", "return m.money(args[0]);", microcents) == text


class TestToolViews:
    @pytest.mark.parametrize(
        ("name", "arguments", "text"),
        [
            ("TodoWrite", {"todos": [{"content": "a", "status": "completed"}]}, "✓a"),
            ("update_plan", {"plan": [{"step": "b", "status": "in_progress"}]}, "▸b"),
            ("apply_patch", {"input": "*** Begin Patch\n*** Update File: x.py\n-a\n+b"}, "-a+b"),
            ("MultiEdit", {"file_path": "x", "edits": [{"old_string": "a", "new_string": "b"}]}, "−a+b"),
            ("Task", {"description": "d", "prompt": "Look at **it**"}, "Look at it"),
            ("other", {"x": {"y": 1}}, "arguments{1}x: {1}y: 1"),
        ],
    )
    def test_a_call_looks_like_what_it_does(
        self, page: Page, name: str, arguments: dict[str, Any], text: str
    ) -> None:
        body = """const call = {name: args[0], arguments: args[1]}, box = document.createElement("div");
            box.append(...m.inputNodes(call, m.kindOf(call), "full")); return box.textContent;"""
        assert text in run(page, "tool_views", body, name, arguments)

    def test_colours_of_a_terminal_are_shown_and_other_controls_are_not_obeyed(self, page: Page) -> None:
        body = """const box = document.createElement("div"); box.append(...m.ansi(args[0]));
            return [box.textContent, [...box.children].map((e) => e.className)];"""
        text = "\x1b[1;31mred\x1b[0m plain \x1b[38;5;9mx\x1b[32mgreen\x1b[2J"
        html, classes = run(page, "tool_views", body, text)
        assert html == "red plain xgreen\\x1b[2J"
        assert classes == ["ansi-red ansi-bold", "ansi-green"]


def test_the_page_is_one_script_and_one_style_and_nothing_from_elsewhere() -> None:
    from oakleaf_server.routes.viewer_files import ViewerFiles

    files = ViewerFiles.read().files
    index = files["index.html"].data.decode()
    loaded = re.findall(r'(?:href|src)="/assets/([^"]+)"', index)
    assert [name.rpartition("/")[2] for name in loaded] == ["viewer.css", "icon.svg", "viewer.js", "icon.svg"]
    assert all(files[name].is_permanent for name in loaded if "/" in name)
    script = files[loaded[2]].data.decode()
    own = {
        name for name in files if name.endswith(".js") and not name.startswith("offline") and "/" not in name
    }
    assert {name for name in own if f"${name.replace('.', '_')} =" in script} == own
    assert "//" not in index.replace("<!--", "")


def test_no_module_builds_pages_from_strings() -> None:
    root = VIEWER
    for file in root.glob("*.js"):
        text = file.read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert word not in text, (file.name, word)
