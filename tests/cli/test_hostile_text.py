"""What a store holds may be a stranger's: no command prints a character of it that a terminal obeys."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import Attachment, Note, Text, ToolCall, assistant, tool_result, user
from oakleaf.cli.rendering.output import guard
from oakleaf.core.drafts import Draft
from oakleaf.core.usage import Call, Usage
from support.hostile_text import FORBIDDEN, HOSTILE, assert_harmless
from support.paths import ROOT
from support.terminal import Terminal
from support.terminal import oakleaf as command

pytestmark = pytest.mark.attack

SESSION = "hostile"
READING = [
    ["ls"],
    ["ls", "is:all"],
    ["ls", "--json"],
    ["show", SESSION],
    ["show", SESSION, "--full", "--trace"],
    ["show", SESSION, "--json"],
    ["show", f"{SESSION}@2"],
    ["show", f"{SESSION}@2", "--json"],
    ["log", SESSION],
    ["log", SESSION, "--all"],
    ["tree", SESSION],
    ["tree", SESSION, "--json"],
    ["tail", SESSION],
    ["search", "owned"],
    ["search", "owned", "--json"],
    ["usage"],
    ["usage", "--by", "model"],
    ["usage", "--by", "agent"],
    ["usage", SESSION],
    ["context", SESSION],
    ["context", SESSION, "--json"],
    ["title", SESSION],
    ["tag", SESSION],
    ["label", SESSION],
    ["diff", SESSION, "other"],
    ["replay", SESSION, "--dry-run"],
    ["verify", "--all"],
    ["verify", SESSION],
    ["doctor"],
    ["doctor", "--json"],
    ["restore", HOSTILE],
    ["show", HOSTILE],
    ["show", "gone"],
    ["rm", SESSION, "--dry-run"],
    ["purge"],
    ["approve", SESSION],
    ["fork", f"{SESSION}@1"],
    ["undo", SESSION],
    ["redo", SESSION],
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one session whose every text is hostile, and another to compare it with."""
    path = tmp_path_factory.mktemp("hostile") / "s.db"
    with library.open(path) as opened:
        for name in (SESSION, "other"):
            session = opened.start(
                HOSTILE,
                [library.system(f"seed {HOSTILE}")],
                session_id=name,
                conversation_id=f"c{HOSTILE}",
                title=f"owned {HOSTILE} {name}",
                tags={f"t{HOSTILE}": HOSTILE},
                model=f"scripted:{HOSTILE}",
                tool_names=[HOSTILE],
                trigger_type=HOSTILE,
                trigger_id=HOSTILE,
                state={HOSTILE: HOSTILE},
                owner=HOSTILE,
            )
            call = ToolCall(f"call{HOSTILE}", f"tool{HOSTILE}", {HOSTILE: [HOSTILE]})
            session.append([user(f"owned {HOSTILE}", Attachment(b"x", "image/png", HOSTILE))])
            answer = assistant(Text(f"owned {HOSTILE}{name}"), call)
            model = f"scripted:{HOSTILE}"
            ledger = Call("paid", 0, 1, 2, 0, Usage(1, 1), "answer", provider=HOSTILE, model=model)
            session.log.append([Draft(answer, model, HOSTILE)], calls=[ledger])
            session.append([tool_result(call.id, f"owned {HOSTILE}", error=True), Note({HOSTILE: HOSTILE})])
            session.log.append([Draft(assistant(f"second {HOSTILE}"), model)])
            session.label(1, f"label {HOSTILE}")
            session.end("failed", error=f"failed {HOSTILE}")
    return path


@pytest.mark.parametrize(
    "line", READING, ids=lambda line: " ".join(line)[:30].encode("ascii", "replace").decode()
)
class TestAReadingCommand:
    def test_prints_no_control_into_a_pipe(self, store: Path, line: list[str]) -> None:
        done = command(*line, store=store)
        assert_harmless(done.out + done.err)
        assert "Traceback" not in done.err

    def test_prints_no_control_to_a_terminal(self, store: Path, line: list[str]) -> None:
        with Terminal(*line, store=store, OAKLEAF_PAGER="") as terminal:
            terminal.wait()
            assert_harmless(terminal.raw)


def test_a_pager_gets_no_control(store: Path) -> None:
    with Terminal("show", SESSION, "--full", store=store, PAGER="cat -u", TERM="xterm") as terminal:
        terminal.wait()
        assert_harmless(terminal.raw)


def test_the_report_of_an_import_has_no_control(tmp_path: Path) -> None:
    (tmp_path / f"a{HOSTILE}.jsonl".replace("/", "")).write_text(
        json.dumps({"role": "user", "content": HOSTILE}) + "\n{\n"
    )
    for dry in ([], ["--dry-run"]):
        done = command("import", "--from", "chat", tmp_path, *dry, store=tmp_path / "s.db")
        assert_harmless(done.out + done.err)


def test_a_chat_shows_no_control(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "model.json"
    script.write_text(json.dumps([f"answer {HOSTILE}"]))
    with Terminal(
        "chat", "--resume", SESSION, "--model", f"scripted:{script}", store=store, TERM="xterm"
    ) as chat:
        chat.wait_for("› ")
        for line in ("/show", "/usage", "/model", "/show 2", "hello"):
            chat.enter(line)
            chat.wait_for("› ")
        chat.enter("/tree")
        chat.wait_for("q leaves")
        chat.type("q")
        chat.wait_for("› ")
        chat.enter("/quit")
        chat.wait()
        own = chat.raw.replace("\x1b[?2004h", "").replace("\x08", "")  # of the line that is typed
        assert not [each for each in FORBIDDEN if each != "\x08" and each in own]


def test_styles_of_the_program_stay_and_all_others_become_visible() -> None:
    assert (
        guard("\x1b[31mred\x1b[0m\x1b[1m\n\ta\x1b[8mb\x9bc\u202ed")
        == "\x1b[31mred\x1b[0m\x1b[1m\n\ta␛[8mb·c·d"
    )


def test_every_text_of_the_command_line_passes_one_function() -> None:
    """`click.echo` is called where text is constant, made visible on the line, or data that must stay as it is."""
    allowed = {
        "main.py": 2,
        "error_text.py": 1,
        "output.py": 1,
        "turn_events.py": 1,
        "watch.py": 2,
        "completion.py": 1,
    }
    calls: dict[str, int] = {}
    files = [*ROOT.glob("src/oakleaf/cli/**/*.py"), *ROOT.glob("plugins/*/src/*/commands/*.py")]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.Name("click"), "echo" | "secho")) | ast.Call(
                    ast.Name("print")
                ):
                    calls[path.name] = calls.get(path.name, 0) + 1
    present = {path.name for path in files}  # a plugin's commands are gone with the plugin
    assert calls == {name: count for name, count in allowed.items() if name in present}


def test_json_holds_the_text_unchanged(store: Path) -> None:
    done = command("show", "other", "--json", store=store)
    texts = [part.get("text") for entry in done.json["entries"] for part in entry["payload"].get("parts", [])]
    assert f"owned {HOSTILE}" in texts
    assert done.json["session"]["title"] == f"owned {HOSTILE} other"


@pytest.mark.parametrize("form", ["jsonl", "markdown", "workflow"])
def test_an_export_shows_a_terminal_no_control(store: Path, form: str) -> None:
    """A pipe gets the text as it is."""
    with Terminal("export", "other", "--format", form, store=store) as terminal:
        terminal.wait()
        assert_harmless(terminal.raw)


def test_the_question_of_a_command_has_no_control(store: Path) -> None:
    with Terminal("rm", SESSION, store=store) as terminal:
        terminal.wait_for("trash?")
        terminal.enter("n")
        terminal.wait()
        assert_harmless(terminal.raw)
