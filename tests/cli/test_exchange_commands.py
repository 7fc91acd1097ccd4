"""The verbs that compare, search and exchange: replay, diff, search, export, import, copy."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf.cli.commands.export import export_file_name
from support.cli_store import write_store
from support.paths import ROOT
from support.terminal import OAKLEAF, Terminal, environment, oakleaf

TOOLS = '''
import os, oakleaf
@oakleaf.tool(effect="read")
def look_up(order: int) -> dict:
    """Look an order up."""
    return {"order": order, "status": "lost"}
@oakleaf.tool(dry_run=lambda order: {"would": order})
def refund(order: int) -> str:
    """Pay."""
    open(os.environ["BOOK"], "a").write(f"{order}\\n")
    return f"refunded {order}"
'''
CHANGED = [
    {"text": "Let me look.", "calls": [{"id": "c1", "name": "look_up", "arguments": {"order": 41}}]},
    {"text": "I refund it.", "calls": [{"id": "c2", "name": "refund", "arguments": {"order": 42}}]},
    "Done.",
    "You are welcome.",
]


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "changed.json").write_text(json.dumps(CHANGED))
    return write_store(tmp_path / "s.db")


def run_replay(store_path: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    book = store_path.with_name("book")
    done = oakleaf(
        "replay", "ses_case", *arguments, "--json", store=store_path, home=store_path.parent, BOOK=str(book)
    )
    assert done.code in (0, 1), done.err
    return done.code, done.json


class TestReplay:
    def test_strict_comes_out_the_same(self, store_path: Path) -> None:
        code, report = run_replay(store_path)
        assert (code, report["same"], report["mode"], report["is_identical"]) == (0, True, "strict", True)

    def test_another_model_diverges_at_the_arguments_and_nothing_is_done(self, store_path: Path) -> None:
        code, report = run_replay(
            store_path, "--model", "scripted:changed.json", "--mode", "dry", "--set", "tools=tools.py"
        )
        assert code == 1
        first = report["first_divergence"]
        assert first["seq_a"] == 6  # type: ignore[index]
        assert report["effects"] == {}
        assert report["dry_runs"] == {"refund": 1}
        assert report["source_before"] == report["source_after"]
        assert not store_path.with_name("book").exists()

    def test_live_runs_only_what_is_named(self, store_path: Path) -> None:
        how = [
            "--model",
            "scripted:changed.json",
            "--set",
            "tools=tools.py",
            "--mode",
            "live",
            "--live",
            "refund",
        ]
        _, report = run_replay(store_path, *how)
        assert report["effects"] == {"refund": 1}
        assert store_path.with_name("book").read_text() == "42\n"

    def test_it_begins_at_any_place(self, store_path: Path) -> None:
        done = oakleaf("replay", "ses_case@8", "--json", store=store_path)
        assert done.json["cut"] == {"at": 8, "requested": 8}
        by_turn = oakleaf("replay", "ses_case", "--from-turn", "1", "--json", store=store_path)
        assert by_turn.json["cut"] == done.json["cut"]
        refused = oakleaf("replay", "ses_case@8", "--from-turn", "1", store=store_path)
        assert (refused.code, "names entry 8" in refused.err) == (2, True)
        assert oakleaf("replay", "ses_case", "--from-turn", "9", store=store_path).code == 2

    def test_a_bundle_is_taken_in_and_replayed(self, store_path: Path, tmp_path: Path) -> None:
        assert oakleaf("export", "ses_case", "-o", tmp_path / "x.oakleaf", store=store_path).code == 0
        done = oakleaf("replay", tmp_path / "x.oakleaf", store=tmp_path / "new.db")
        assert done.code == 0, done.err
        assert oakleaf("verify", store=tmp_path / "new.db").code == 0

    def test_a_bundle_can_be_replayed_beside_its_original(self, store_path: Path, tmp_path: Path) -> None:
        assert oakleaf("export", "ses_case", "-o", tmp_path / "x.oakleaf", store=store_path).code == 0
        done = oakleaf("replay", tmp_path / "x.oakleaf", "--new-id", "--json", store=store_path)
        assert done.code == 0, done.err
        with library.open(store_path) as store:
            original, copy = store.session("ses_case").row, store.session(done.json["source"]).row
        assert copy.session_id != original.session_id
        assert copy.conversation_id != original.conversation_id
        refused = oakleaf("replay", "ses_case", "--new-id", store=store_path)
        assert refused.code == 2
        assert "not one" in refused.err

    @pytest.mark.parametrize(
        "bad",
        [
            ["--mode", "odd"],
            ["--model", "nobody:x"],
            ["--live", "refund"],
            ["--set", "tools=none.py"],
        ],
    )
    def test_bad_input_is_refused(self, store_path: Path, bad: list[str]) -> None:
        done = oakleaf("replay", "ses_case", *bad, store=store_path, home=store_path.parent)
        assert done.code == 2, done.err
        assert len(oakleaf("ls", "is:all", "--json", store=store_path).json["sessions"]) == 3

    def test_a_model_that_gives_no_answer_is_exit_code_four_for_replay_and_diff(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "short.json").write_text(json.dumps(CHANGED[:1]))
        done = oakleaf(
            "replay", "ses_case", "--model", f"scripted:{tmp_path}/short.json", "--json", store=store_path
        )
        assert (done.code, done.json["is_unanswered"]) == (4, True)
        again = oakleaf("diff", "ses_case", str(done.json["replay"]), store=store_path)
        assert again.code == 4
        assert "a replay is incomplete" in again.err
        gone = oakleaf("replay", "ses_case", "--model", "scripted:gone.json", store=store_path)
        assert (gone.code, gone.out) == (4, "")
        alone = oakleaf("replay", "ses_case", "--prompt", "Be strict.", store=store_path)
        assert alone.code == 2
        assert "--model" in alone.err

    def test_the_make_targets_of_the_plan_do_it(self, store_path: Path, tmp_path: Path) -> None:
        root = ROOT

        def make(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["make", "-s", *words],
                cwd=root,
                capture_output=True,
                text=True,
                check=False,
                env={**environment(store=store_path), "PYTHONWARNINGS": ""},
            )

        assert "mode dry" in make("replay", "SESSION_ID=ses_case", "FROM_MESSAGE=1").stdout
        assert "mode strict" in make("replay", "SESSION_ID=ses_case", "MODE=strict").stdout
        changed = make(
            "replay",
            "SESSION=ses_case",
            f"MODEL=scripted:{tmp_path}/changed.json",
            f"TOOLS={tmp_path}/tools.py",
        )
        assert changed.returncode == 0, changed.stderr
        assert "first divergence" in changed.stdout
        assert "1 dry run (refund" in changed.stdout
        done = make("export-session", "SESSION_ID=ses_case", f"OUTPUT={tmp_path}/made.oakleaf")
        assert done.returncode == 0, done.stderr
        imported = make("replay", f"SESSION={tmp_path}/made.oakleaf")
        assert imported.returncode == 0, imported.stderr
        assert "source unchanged" in imported.stdout
        assert not imported.stdout.startswith("ses_case ")

    def test_make_takes_the_model_as_the_plan_writes_it_and_fails_without_an_answer(
        self, store_path: Path
    ) -> None:
        done = subprocess.run(
            ["make", "-s", "replay", "SESSION_ID=ses_case", "MODEL=claude-sonnet-4-20250514"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            env={**environment(store=store_path), "PYTHONWARNINGS": "", "ANTHROPIC_API_KEY": ""},
        )
        assert done.returncode != 0
        assert "anthropic:claude-sonnet-4-20250514" in done.stderr
        assert "ANTHROPIC_API_KEY" in done.stderr


class TestDiff:
    def test_the_exit_code_says_whether_they_differ(self, store_path: Path) -> None:
        assert oakleaf("diff", "ses_case", "ses_case", store=store_path).code == 0
        done = oakleaf("diff", "ses_case", "Another try", "--json", store=store_path)
        assert (done.code, done.json["shared"]) == (1, 8)
        assert oakleaf("diff", "ses_case@8", "Another try", store=store_path).code == 0
        assert "|" in oakleaf("diff", "ses_case", "Another try", "--markdown", store=store_path).out

    def test_a_bundle_is_compared_without_being_taken_in(self, store_path: Path, tmp_path: Path) -> None:
        oakleaf("export", "ses_case", "-o", tmp_path / "x.oakleaf", store=store_path)
        oakleaf("undo", "ses_case", store=store_path)
        assert oakleaf("diff", "ses_case", tmp_path / "x.oakleaf", store=store_path).code == 1
        assert len(oakleaf("ls", "is:all", "--json", store=store_path).json["sessions"]) == 3


class TestSearch:
    def test_a_hit_opens_at_its_entry(self, store_path: Path) -> None:
        done = oakleaf("search", "lost", "role:tool", "--json", store=store_path)
        (hit,) = done.json["hits"]
        assert hit["reference"] == "ses_case@5"
        assert oakleaf("show", hit["reference"], "--json", store=store_path).json["entries"][0]["seq"] == 5
        assert "ses_case@5" in oakleaf("search", "lost", "role:tool", store=store_path).out

    def test_hits_are_grouped_below_what_their_sessions_are_called(self, tmp_path: Path) -> None:
        place = tmp_path / "s.db"
        with library.open(place) as store:
            for name, title in (("ses_a", "Order 41"), ("ses_b", None)):
                session = store.start(session_id=name, title=title)
                session.append(
                    [library.user("Where is my parcel?"), library.assistant("Your parcel is lost.")]
                )
        done = oakleaf("search", "parcel", "after:yesterday", store=place)
        lines = [line.split("  20")[0].split(" · 20")[0] for line in done.out.splitlines()]
        assert lines == [
            "Where is my parcel?  2 hits",
            "  ses_b@2  assistant",
            "    Your parcel is lost.",
            "  ses_b@1  user",
            "    Where is my parcel?",
            "",
            "Order 41  2 hits",
            "  ses_a@2  assistant",
            "    Your parcel is lost.",
            "  ses_a@1  user",
            "    Where is my parcel?",
        ]
        hits = oakleaf("search", "parcel", "--json", store=place).json["hits"]
        assert [hit["heading"] for hit in hits] == ["Where is my parcel?"] * 2 + ["Order 41"] * 2
        assert [hit["turn"] for hit in hits] == [1, 1, 1, 1]
        assert oakleaf("search", "parcel", "before:today", store=place).code == 1
        wrong = oakleaf("search", "parcel", "after:someday", store=place)
        assert (wrong.code, "today, yesterday, monday" in wrong.err) == (2, True)

    def test_a_hit_on_an_abandoned_branch_opens_too(self, store_path: Path) -> None:
        oakleaf("undo", "ses_case", store=store_path)
        (hit,) = oakleaf("search", "welcome", "--json", store=store_path).json["hits"]
        assert hit["on_path"] is False
        assert "You are welcome." in oakleaf("show", hit["reference"], store=store_path).out

    @pytest.mark.parametrize("name", ["ses_case", "ses_cas", "cas"])
    def test_a_session_is_named_as_everywhere(self, store_path: Path, name: str) -> None:
        report = oakleaf("search", "order", f"session:{name}", "--json", store=store_path).json["hits"]
        assert {hit["session_id"] for hit in report} == {"ses_case"}

    def test_what_is_new_is_found_at_once(self, store_path: Path) -> None:
        assert oakleaf("search", "zebra", store=store_path).code == 1
        with library.open(store_path) as store:
            store.session("ses_other").append([library.user("a zebra")])
        assert oakleaf("search", "zebra", store=store_path).code == 0

    def test_pages_go_on_and_bad_filters_are_refused(self, store_path: Path) -> None:
        first = oakleaf("search", "order", "-n", "1", "--json", store=store_path).json
        second = oakleaf(
            "search", "order", "-n", "1", "--page", first["next"], "--json", store=store_path
        ).json
        assert first["hits"][0]["reference"] != second["hits"][0]["reference"]
        done = oakleaf("search", "colour:red", store=store_path)
        assert done.code == 2
        assert "role:" in done.err
        assert oakleaf("search", "after:soon", store=store_path).code == 2

    def test_marks_are_shown_at_a_terminal(self, store_path: Path) -> None:
        with Terminal("search", "refunded", store=store_path) as terminal:
            assert terminal.wait() == 0
            assert "\x1b[33m" in terminal.raw


class TestExport:
    def test_a_bundle_goes_out_and_in_and_out_to_the_same_bytes(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        one, two = tmp_path / "one.oakleaf", tmp_path / "two.oakleaf"
        assert oakleaf("export", "ses_case", "-o", one, store=store_path).code == 0
        added = oakleaf("import", one, "--json", store=tmp_path / "b.db").json["imported"][0]
        assert added["added"] == ["ses_case"]
        assert oakleaf("export", "ses_case", "-o", two, store=tmp_path / "b.db").code == 0
        assert one.read_bytes() == two.read_bytes()
        again = oakleaf("import", one, "--json", store=tmp_path / "b.db").json["imported"][0]
        assert (again["added"], again["existing"]) == ([], ["ses_case"])

    def test_through_a_pipe(self, store_path: Path, tmp_path: Path) -> None:
        there = tmp_path / "b.db"
        command = f"{' '.join(OAKLEAF)} export ses_case -o - | {' '.join(OAKLEAF)} --store {there} import -"
        done = subprocess.run(
            ["sh", "-c", command],
            capture_output=True,
            text=True,
            env=environment(store=store_path),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "ses_case"

    @pytest.mark.parametrize("format_", ["markdown", "jsonl", "events", "finetune", "workflow", "inspect"])
    def test_what_people_and_tools_read_goes_to_stdout_or_a_file(
        self, store_path: Path, tmp_path: Path, format_: str
    ) -> None:
        done = oakleaf("export", "ses_case", "--format", format_, store=store_path)
        assert done.code == 0
        assert "Where is order 41?" in done.out
        assert (
            oakleaf("export", "ses_case", "--format", format_, "-o", tmp_path / "x", store=store_path).out
            == ""
        )
        assert (tmp_path / "x").read_text() == done.out

    def test_what_a_format_does_not_hold_and_a_second_format_are_refused(self, store_path: Path) -> None:
        for line in (
            "export ses_case --format jsonl --blobs",
            "export ses_case --format markdown --no-children",
            "export ses_case --format otel --blobs",
            "export ses_case --format html --content",
            "usage --view tree",
        ):
            done = oakleaf(*line.split(), store=store_path)
            assert (done.code, done.out) == (2, ""), line
            assert re.findall("--[a-z-]+", line)[-1] in done.err, line

    def test_the_ending_of_the_file_says_the_format(self, store_path: Path, tmp_path: Path) -> None:
        for name, start in (("x.html", "<!doctype html>"), ("x.md", "# "), ("x", '{"line":"oakleaf"')):
            assert oakleaf("export", "ses_case", "-o", tmp_path / name, store=store_path).code == 0
            assert (tmp_path / name).read_text().lower().startswith(start)

    def test_two_formats_are_refused(self, store_path: Path) -> None:
        done = oakleaf("export", "ses_case", "--format", "html", "--format", "markdown", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "format=['html', 'markdown'] is invalid; expected one value" in done.err

    def test_it_is_named_after_the_session(self, store_path: Path, tmp_path: Path) -> None:
        assert oakleaf("export", "ses_case", store=store_path, home=tmp_path).code == 0
        assert (tmp_path / "ses_case.oakleaf").exists()
        assert oakleaf("export", "ses_case", "-o", tmp_path / "x", store=store_path).code == 0

    def test_a_secret_is_masked_and_counted(self, tmp_path: Path) -> None:
        key = "sk-ant-api03-" + "Ab1" * 30
        with library.open(tmp_path / "s.db") as store:
            session = store.start(session_id="ses_k")
            session.append([library.user("my word is xyzzy-1234567890-abcdef")])
        done = oakleaf(
            "export", "ses_k", "--redact", "-o", tmp_path / "x.oakleaf", store=tmp_path / "s.db",
            MY_API_KEY="xyzzy-1234567890-abcdef",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "masked 1" in done.err
        assert b"xyzzy" not in (tmp_path / "x.oakleaf").read_bytes()
        assert key not in done.err

    def test_words_and_files_of_words_are_hidden(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "s.db") as store:
            store.start(
                session_id="ses_k", seeds=[library.user("Ann Lee asks for BOB, and zoë listens to them.")]
            )
        (tmp_path / "words.txt").write_text("Bob\n\n  zoë \n", encoding="utf-8")
        line = (
            "export",
            "ses_k",
            "--hide",
            "Ann Lee",
            "--hide",
            f"@{tmp_path}/words.txt",
            "-o",
            tmp_path / "x.oakleaf",
        )
        done = oakleaf(*line, store=tmp_path / "s.db")
        assert (done.code, "masked 3" in done.err) == (0, True), done.err
        data = (tmp_path / "x.oakleaf").read_bytes().decode()
        assert not re.search("ann lee|bob|zoë", data, re.IGNORECASE)
        assert '"redacted":"ses_k"' in data
        for wrong in (
            ("--hide", "an"),
            ("--hide", "Ann", "--blobs"),
            ("--hide", "Ann", "--format", "markdown"),
        ):
            refused = oakleaf("export", "ses_k", *wrong, "-o", tmp_path / "y", store=tmp_path / "s.db")
            assert (refused.code, (tmp_path / "y").exists()) == (2, False), refused.err

    @pytest.mark.parametrize("line", [[], ["--format", "markdown"], ["--format", "workflow"]])
    def test_a_named_pipe_is_written_to_and_not_replaced(
        self, line: list[str], store_path: Path, tmp_path: Path
    ) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
        done = oakleaf("export", "latest", *line, "-o", pipe, store=store_path)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert done.code == 0, done.err
        got, _ = reader.communicate(timeout=20)
        assert len(got) > 100

    def test_a_link_stays_a_link(self, store_path: Path, tmp_path: Path) -> None:
        real, link = tmp_path / "real.oakleaf", tmp_path / "link.oakleaf"
        real.write_text("old")
        link.symlink_to(real)
        assert oakleaf("export", "latest", "-o", link, "--force", store=store_path).code == 0
        assert link.is_symlink()
        assert real.read_bytes().startswith(b'{"line":"oakleaf"')

    @pytest.mark.parametrize(
        "line", [["-o", "-"], ["--format", "markdown"], ["--format", "jsonl", "-o", "-"]]
    )
    def test_a_bundle_on_stdout_and_json_are_never_mixed(self, line: list[str], store_path: Path) -> None:
        done = oakleaf("export", "latest", *line, "--json", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "-o FILE" in done.err

    def test_a_full_disk_leaves_the_old_file(self, store_path: Path, tmp_path: Path) -> None:
        target = tmp_path / "kept.md"
        target.write_text("old")
        code = (
            "import resource, signal, sys\n"
            "from oakleaf.cli.main import outcome\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
            f"sys.exit(outcome(['export', 'latest', '--format', 'markdown', '-o', {str(target)!r}]))"
        )
        run = subprocess.run(
            [OAKLEAF[0], "-c", code], capture_output=True, env=environment(None, store_path), check=False
        )
        assert run.returncode == 1
        assert target.read_text() == "old"
        assert [one.name for one in tmp_path.iterdir() if "kept" in one.name] == ["kept.md"]

    @pytest.mark.parametrize("session_id", ["../up/x", "..", "/etc/x", "a\x1b]0;owned\x07"])
    def test_a_hostile_id_chooses_no_folder(self, session_id: str) -> None:
        name = export_file_name(session_id, ".oakleaf")
        assert name.isprintable()
        assert Path(name).name == name
        assert not name.startswith(".")


class TestSpans:
    def test_content_is_written_if_asked_for(self, store_path: Path) -> None:
        line = ("export", "ses_case", "--format", "otel")
        assert "Where is order 41?" not in oakleaf(*line, store=store_path).out
        assert "Where is order 41?" in oakleaf(*line, "--content", store=store_path).out

    def test_a_place_has_no_spans_of_its_own(self, store_path: Path) -> None:
        done = oakleaf("export", "ses_case@3", "--format", "otel", store=store_path)
        assert (done.code, done.out) == (2, "")
        assert "omit the @" in done.err


class TestImport:
    @pytest.mark.parametrize("damage", ["cut", "altered", "foreign", "empty", "absent"])
    def test_a_damaged_bundle_changes_nothing(self, store_path: Path, tmp_path: Path, damage: str) -> None:
        place = tmp_path / "x.oakleaf"
        oakleaf("export", "ses_case", "-o", place, store=store_path)
        data = place.read_bytes()
        match damage:
            case "cut":
                place.write_bytes(data[:-200])
            case "altered":
                place.write_bytes(data.replace(b"order 41", b"order 42", 1))
            case "foreign":
                place.write_bytes(b"\x89PNG\r\n" * 100)
            case "empty":
                place.write_bytes(b"")
            case "absent":
                place.unlink()
        there, new = tmp_path / "b.db", tmp_path / "new" / "c.db"
        new.parent.mkdir()
        library.open(there).close()
        for store in (there, new):
            done = oakleaf("import", place, store=store)
            assert done.code == (2 if damage == "absent" else 1)
            assert done.err.startswith("oakleaf:")
            assert oakleaf("replay", place, store=store).code in (1, 2)
            assert oakleaf("import", "--from", "chat", place, store=store).code == 1
        assert oakleaf("ls", "--json", store=there).json["sessions"] == []
        assert list(new.parent.iterdir()) == []

    def test_a_clash_is_refused_and_new_id_takes_it_in_beside(self, store_path: Path, tmp_path: Path) -> None:
        oakleaf("export", "ses_case", "-o", tmp_path / "x.oakleaf", store=store_path)
        oakleaf("title", "ses_case", "Changed", store=store_path)
        done = oakleaf("import", tmp_path / "x.oakleaf", store=store_path)
        assert done.code == 1
        assert "--new-id" in done.err
        assert oakleaf("import", tmp_path / "x.oakleaf", "--new-id", store=store_path).code == 0
        assert len(oakleaf("ls", "--json", store=store_path).json["sessions"]) == 4


class TestOverwriting:
    """No command overwrites a file unless it is told to: exit code 2, and the file is as it was."""

    @pytest.mark.parametrize(
        "command",
        [
            ("export", "ses_case", "-o", "FILE"),
            ("export", "ses_case", "--format", "html", "-o", "FILE"),
            ("export", "ses_case", "--format", "markdown", "-o", "FILE"),
            ("backup", "FILE"),
        ],
        ids=" ".join,
    )
    def test_a_file_is_overwritten_only_with_force(
        self, store_path: Path, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        file = tmp_path / "present"
        file.write_text("mine")
        words = [str(file) if word == "FILE" else word for word in command]
        done = oakleaf(*words, store=store_path)
        assert (done.code, f"{file} exists; --force overwrites it" in done.err) == (2, True)
        assert file.read_text() == "mine"
        assert oakleaf(*words, "--force", store=store_path).code == 0
        assert file.read_bytes() != b"mine"

    def test_a_file_that_export_names_itself_is_safe_too(self, store_path: Path, tmp_path: Path) -> None:
        for words in ((), ("-o", tmp_path)):
            assert oakleaf("export", "ses_case", *words, "--force", store=store_path, home=tmp_path).code == 0
            again = oakleaf("export", "ses_case", *words, store=store_path, home=tmp_path)
            assert (again.code, "ses_case.oakleaf exists; --force" in again.err) == (2, True)

    def test_a_device_is_written_without_force(self, store_path: Path) -> None:
        assert oakleaf("export", "ses_case", "-o", "/dev/null", store=store_path).code == 0


class TestCopy:
    def test_sessions_are_copied_to_another_store(self, store_path: Path, tmp_path: Path) -> None:
        there = tmp_path / "b.db"
        assert oakleaf("copy", "--all", "--to", there, "--json", store=store_path).json["copied"]
        for store, name in ((store_path, "one"), (there, "two")):
            oakleaf("export", "ses_case", "-o", tmp_path / name, store=store)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
        assert oakleaf("copy", "ses_case", "--to", there, store=store_path).code == 0
        assert oakleaf("copy", "--to", there, store=store_path).code == 2

    def test_a_session_that_differs_there_is_named_and_the_others_are_copied(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        there = tmp_path / "there.db"
        with library.open(there) as other:
            other.start("other", session_id="ses_case")
        done = oakleaf("copy", "--all", "--to", there, store=store_path)
        assert (done.code, "not copied: ses_case: " in done.err, "--new-id" in done.err) == (1, True, True)
        with library.open(there) as other:
            assert other.session("ses_other")

    def test_a_second_copy_adds_nothing_and_says_so(self, store_path: Path, tmp_path: Path) -> None:
        line = ["copy", "--all", "--to", tmp_path / "to.db"]
        assert "0 sessions copied" not in oakleaf(*line, store=store_path).err
        again = oakleaf(*line, store=store_path)
        assert "0 sessions copied" in again.err
        assert "3 existed" in again.err
