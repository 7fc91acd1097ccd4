"""`oakleaf chat`, as a person at a terminal meets it, and as a pipe does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakleaf import Leaf, Session, assistant, user
from oakleaf.cli.chat.chat import COMMANDS
from oakleaf.cli.chat.line_input import read_input
from oakleaf.cli.rendering.turn_screen import MarkdownBlocks
from support import cli_process
from support.processes import wait_until
from support.terminal import OAKLEAF, PROMPT, Start, Terminal, environment, oakleaf, start_interpreter
from tests.cli.test_run_commands import AGENT, MODEL, TOOLS, calls, open_store, script, texts

UP, CLEAR_LINE = "\x1b[A", "\x15"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    script(tmp_path, "One.", "Two.", "Three.", "Four.")
    (tmp_path / "config.toml").write_text('[aliases]\nscript = "scripted:script.json"\n')
    return tmp_path


def latest(home: Path) -> Session:
    store = open_store(home)
    return store.session(store.sessions().sessions[0].session_id)


class TestTalking:
    @pytest.mark.parametrize(
        "start", [start_interpreter, cli_process.start], ids=["a new interpreter", "a fork"]
    )
    def test_an_answer_is_shown_and_the_way_back_is_told(self, home: Path, start: Start) -> None:
        with Terminal("chat", *MODEL, home=home, start=start) as terminal:
            terminal.wait_for(PROMPT)
            assert "One." in terminal.prompt("hi")
            assert "this path     1 call, " in terminal.prompt("/usage")
            assert "Two." in terminal.prompt("more")
            terminal.type("\x04")
            assert terminal.wait() == 0
            assert f"oakleaf chat --resume {latest(home).session_id}" in terminal.screen
        assert texts(latest(home)) == ["hi", "One.", "more", "Two."]

    def test_looking_around_leaves_nothing_behind(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            screen = terminal.prompt("/help")
            assert all(name in screen for name in COMMANDS)
            assert max(map(len, screen.splitlines())) < 80
            assert "There is no session yet" in terminal.prompt("/tree")
            assert "--set with tools" in terminal.prompt("/tools")
            terminal.enter("/quit")
            assert terminal.wait() == 0
        assert not (home / "agent.db").exists()

    def test_several_lines_make_one_input(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.enter("one \\")
            terminal.wait_for("… ")
            terminal.enter("two")
            terminal.wait_for("One.")
            terminal.wait_for(PROMPT)
            terminal.enter('"""')
            terminal.wait_for("… ")
            terminal.enter("three")
            terminal.wait_for("… ")
            terminal.enter('four"""')
            terminal.wait_for("Two.")
        assert texts(latest(home))[::2] == ["one \ntwo", "three\nfour"]

    def test_a_tool_is_one_line_however_narrow_the_terminal(self, home: Path) -> None:
        script(home, calls("look_up"), "Lost.")
        with Terminal("chat", *AGENT, home=home, columns=24) as terminal:
            terminal.wait_for(PROMPT)
            screen = terminal.prompt("hi")
            (line,) = [line for line in screen.splitlines() if "✓" in line]
            assert len(line[line.index("✓") :]) <= 22

    def test_no_escape_of_a_model_or_a_tool_reaches_the_terminal(self, home: Path) -> None:
        (home / "tools.py").write_text(
            "import oakleaf\n@oakleaf.tool(effect='read')\ndef evil() -> str:\n    'x'\n    return '\\x1b]0;owned\\x07'\n"
        )
        script(home, {"text": "\x1b[2Jnow", "calls": [{"name": "evil"}]}, "done\x1b[8m")
        with Terminal("chat", *AGENT, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt("hi")
            assert not any(bad in terminal.raw for bad in ("\x1b[2J", "\x1b]0;", "\x1b[8m"))
            assert "␛[2Jnow" in terminal.raw

    def test_a_failed_turn_can_be_tried_again(self, home: Path) -> None:
        script(home)
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            assert "/resume tries again" in terminal.prompt("hi")
            script(home, "Now.")
            terminal.enter("/model scripted:script.json")
            terminal.wait_for(PROMPT)
            assert "Now." in terminal.prompt("/resume")

    @pytest.mark.parametrize(("word", "effects"), [("y", 1), ("n", 0)])
    def test_a_person_allows_or_denies(self, home: Path, word: str, effects: int) -> None:
        script(home, calls("refund"), "Very well.")
        with Terminal("chat", *AGENT, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.enter("refund it")
            assert "order: 41" in terminal.wait_for("Allow it? [y/N]")
            terminal.enter(word)
            terminal.wait_for("Very well.")
        book = home / "book"
        assert len(book.read_text().splitlines() if book.exists() else []) == effects

    def test_a_person_who_does_not_know_yet_is_asked_again(self, home: Path) -> None:
        script(home, calls("refund"), "Very well.")
        with Terminal("chat", *AGENT, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.enter("refund it")
            terminal.wait_for("Allow it? [y/N]")
            terminal.interrupt("/resume asks you again")
            terminal.wait_for(PROMPT)
            terminal.enter("/resume")
            terminal.wait_for("Allow it? [y/N]")
            terminal.enter("y")
            terminal.wait_for("Very well.")
        assert len((home / "book").read_text().splitlines()) == 1


class TestKeys:
    @pytest.mark.parametrize(
        "start", [start_interpreter, cli_process.start], ids=["a new interpreter", "a fork"]
    )
    def test_ctrl_c_stops_the_turn_and_not_the_chat(self, home: Path, start: Start) -> None:
        script(home, {"text": "Wait.", "calls": [{"name": "sleeps"}]}, "Never.", "Here.")
        with Terminal("chat", *AGENT, home=home, start=start) as terminal:
            terminal.wait_for(PROMPT)
            terminal.enter("hi")
            wait_until((home / "asleep").exists)
            terminal.type("\x03")
            terminal.wait_for("Cancelled")
            terminal.wait_for(PROMPT)
            assert "Here." in terminal.prompt("still there?")
            terminal.enter("/quit")
            assert terminal.wait() == 0
        assert latest(home).verify() == []

    def test_ctrl_c_at_the_prompt_drops_the_line_and_says_how_to_leave(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.interrupt("Type /quit or Ctrl-D to quit")
            terminal.wait_for(PROMPT)
            terminal.type("never sent")
            terminal.wait_for("never sent")
            terminal.interrupt(PROMPT)
            terminal.type("\x04")
            assert terminal.wait() == 0
        assert not (home / "agent.db").exists()

    def test_options_and_model_of_a_new_chat_wait_for_its_first_message(self, home: Path) -> None:
        script(home, "Other.", name="other.json")
        configuration = home / "config.toml"
        configuration.write_text('[aliases]\nother = "scripted:other.json"\n[options.other]\ntop_p = 0.5\n')
        options = ("--set", "options.temperature=1", "--set", "options.seed=7")
        with Terminal("chat", *MODEL, *options, home=home, OAKLEAF_CONFIG=str(configuration)) as terminal:
            terminal.wait_for(PROMPT)
            assert "temperature=1\n  seed=7" in terminal.prompt("/options")
            terminal.prompt("/options temperature=0")
            terminal.prompt("/model other")
            assert not (home / "agent.db").exists()
            assert "Other." in terminal.prompt("hi")
        session = latest(home)
        assert session.context().settings.options == {"temperature": 0, "seed": 7, "top_p": 0.5}
        assert session.row.model == "scripted:other.json"

    def test_tab_completes_models_and_options(self, home: Path) -> None:
        with open_store(home) as store:
            store.start(model="anthropic:claude-known")
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.type("/mod\tanth\t")
            terminal.wait_for("/model anthropic:claude-known")
            terminal.type(f"{CLEAR_LINE}/opt\ttemp\t")
            terminal.wait_for("/options temperature=")

    def test_tab_completes_a_command(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.type("/too\t")
            terminal.wait_for("/tools")
            terminal.enter("")
            terminal.wait_for("--set with tools")

    def test_history_comes_back_privately_and_without_secrets(self, home: Path) -> None:
        secret = "sk-ant-api03-" + "a1B2" * 20
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt(f"my key is {secret}")
        place = home / "data" / "oakleaf" / "chat_history"
        assert place.stat().st_mode & 0o777 == 0o600
        assert secret not in place.read_text()
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.type("\x1b[A")
            terminal.wait_for("my key is")


class TestCommands:
    @pytest.fixture
    def terminal(self, home: Path) -> Iterator[Terminal]:
        with open_store(home) as store:
            session = store.start(model="scripted:script.json", title="Order 41")
            session.append([user("hi " * 150), assistant("hello " * 150), user("more"), assistant("sure")])
        with Terminal("chat", "--resume", "latest", home=home) as terminal:
            terminal.wait_for("sure")
            terminal.wait_for(PROMPT)
            yield terminal

    def test_a_resumed_chat_shows_where_it_stands(self, terminal: Terminal) -> None:
        assert "Order 41" in terminal.screen
        assert "sure" in terminal.screen

    def test_show_usage_and_tools(self, terminal: Terminal) -> None:
        assert "sure" in terminal.prompt("/show 4")
        screen = terminal.prompt("/usage")
        assert "0 calls" in screen
        assert "next request  about " in screen
        assert "--set with tools" in terminal.prompt("/tools")

    def test_undo_gives_the_message_back_for_editing_and_redo_returns(
        self, terminal: Terminal, home: Path
    ) -> None:
        terminal.prompt("/undo")
        terminal.wait_for("more")
        assert latest(home).leaf.seq == 2
        terminal.type(CLEAR_LINE)
        terminal.prompt("/redo")
        assert latest(home).leaf.seq == 4
        assert "nothing was rewound" in terminal.prompt("/redo")
        terminal.prompt("/undo")
        terminal.wait_for("more")
        terminal.enter(" of it?")
        terminal.wait_for("Two.")
        terminal.wait_for(PROMPT)
        assert texts(latest(home))[2:] == ["more of it?", "Two."]

    def test_rewind_goes_before_the_message_that_is_picked_and_says_what_is_left_behind(
        self, terminal: Terminal, home: Path
    ) -> None:
        terminal.enter("/rewind")
        assert "hi hi" in terminal.wait_for("Enter picks")
        terminal.type("q")
        terminal.wait_for(PROMPT)
        assert latest(home).leaf.seq == 4
        terminal.enter("/rewind")
        terminal.wait_for("Enter picks")
        terminal.enter("")
        screen = terminal.wait_for(f"{PROMPT}more")
        assert "Now at entry 2" in screen
        assert "entries 3 to 4 of branch 1\n  › more" in screen
        assert latest(home).leaf.seq == 2
        terminal.type(CLEAR_LINE)
        assert "Now at entry 0" in terminal.prompt("/rewind 0")
        assert "this path has 0" in terminal.prompt("/rewind 99")
        assert "not an entry number" in terminal.prompt("/rewind two")
        assert "no message to go back to" in terminal.prompt("/rewind")
        terminal.prompt("/redo")
        assert latest(home).leaf.seq == 2

    def test_tree_is_walked_with_the_arrow_keys_across_branches(self, terminal: Terminal, home: Path) -> None:
        latest(home).rewind(2)
        terminal.enter("")
        terminal.wait_for("Another process moved")
        terminal.wait_for(PROMPT)
        terminal.prompt("else")
        terminal.enter("/tree")
        screen = terminal.wait_for("q leaves")
        assert "├╮ branch 1" in screen
        assert "❯ ●   4 assistant" in screen
        terminal.type(UP + UP)
        screen = terminal.wait_for("q leaves")
        terminal.wait_for("❯ ││   4 assistant  sure")
        terminal.enter("")
        screen = terminal.wait_for(PROMPT)
        assert "entries 3 to 4 of branch 2\n  › else" in screen
        assert (latest(home).leaf, texts(latest(home))[2:]) == (Leaf(1, 4), ["more", "sure"])
        assert "You are there already" in terminal.prompt("/tree 4")
        assert "Now at entry 3" in terminal.prompt("/tree 2:3")
        assert "/resume gets one" in terminal.screen
        for typed in ("9:1", "1:x", "99"):
            assert "/tree lists" in terminal.prompt(f"/tree {typed}")
        for key in ("\x03", "\x04", "\x1b", "q"):
            terminal.enter("/tree")
            terminal.wait_for("q leaves")
            terminal.type(key)
            terminal.wait_for(PROMPT)
        assert latest(home).leaf == Leaf(2, 3)
        assert "\x1b[?25h" in terminal.raw[terminal.raw.rindex("\x1b[?25l") :], "the cursor is shown again"

    def test_options_hold_from_here_on_and_are_taken_back(self, terminal: Terminal, home: Path) -> None:
        assert "No options are set" in terminal.prompt("/options")
        assert "temperature=0.5" in terminal.prompt("/options temperature=0.5 stop=END")
        assert latest(home).context().settings.options == {"temperature": 0.5, "stop": "END"}
        for wrong, problem in [
            ("temperature", "not NAME=VALUE"),
            ("temperature=hot", "a number from 0 to 2"),
            ("temprature=1", "did you mean temperature?"),
        ]:
            assert problem in terminal.prompt(f"/options {wrong}")
        assert "stop" not in terminal.prompt("/options stop=")
        assert 'stop="a b"' in terminal.prompt("/options seed=7 stop=a b")
        terminal.prompt("/options seed=null stop=")
        terminal.prompt("go")
        assert latest(home).context().settings.options == {"temperature": 0.5}

    def test_fork_goes_on_in_a_session_of_its_own(self, terminal: Terminal, home: Path) -> None:
        source = latest(home)
        assert "a fork at entry 2" in terminal.prompt("/fork 2")
        terminal.prompt("else")
        with open_store(home) as store:
            (row,) = store.sessions(relation="fork").sessions
            assert texts(store.session(row.session_id))[2:] == ["else", "Two."]
        assert source.refresh().leaf.seq == 4
        assert f"Now in {source.session_id}" in terminal.prompt(f"/resume {source.session_id}")

    @pytest.mark.parametrize(("text", "summary"), [("", "user: hi hi"), (" They greeted.", "They greeted.")])
    def test_compact_puts_a_summary_in_front(
        self, terminal: Terminal, home: Path, text: str, summary: str
    ) -> None:
        terminal.prompt(f"/compact{text}")
        first = latest(home).context().items[0].message.text
        assert summary in first
        assert "everything before entry 3" in terminal.screen

    def test_model_holds_from_here_on_and_is_remembered(self, terminal: Terminal, home: Path) -> None:
        script(home, "", "", "", "Other.", name="other.json")
        assert "✗" in terminal.prompt("/model nobody:x")
        terminal.prompt("/model scripted:other.json")
        assert "scripted:other.json" in terminal.prompt("/model")
        session = latest(home)
        assert session.context().settings.model == "scripted:other.json"

    def test_title_and_export(self, terminal: Terminal, home: Path) -> None:
        terminal.prompt("/title Another name")
        assert latest(home).row.title == "Another name"
        assert "Written to" in terminal.prompt("/export out.oakleaf")
        assert (home / "out.oakleaf").stat().st_size > 0
        assert "out.oakleaf exists" in terminal.prompt("/export out.oakleaf")

    def test_what_is_no_command_is_said_and_not_sent(self, terminal: Terminal, home: Path) -> None:
        assert "did you mean /undo?" in terminal.prompt("/und")
        assert "not an entry number" in terminal.prompt("/fork x")
        assert "There is no open turn" in terminal.prompt("/resume")
        assert latest(home).leaf.seq == 4


class TestWhatStandsInTheWay:
    def test_a_turn_that_was_cut_off_goes_on_if_wanted(self, home: Path) -> None:
        self.start_unanswered_session(home)
        with Terminal("chat", "--resume", "latest", home=home) as terminal:
            terminal.wait_for("Continue it? [y/N]")
            terminal.enter("y")
            terminal.wait_for("One.")
            terminal.wait_for(PROMPT)
        assert texts(latest(home)) == ["hi", "One."]

    def test_a_turn_that_was_cut_off_is_left_behind_if_wanted(self, home: Path) -> None:
        self.start_unanswered_session(home)
        with Terminal("chat", "--resume", "latest", home=home) as terminal:
            terminal.wait_for("Continue it? [y/N]")
            terminal.enter("n")
            terminal.wait_for("Abandon it")
            terminal.wait_for("[y/N]")
            terminal.enter("y")
            terminal.wait_for(PROMPT)
            terminal.prompt("else")
        assert texts(latest(home)) == ["else", "One."]
        assert len(latest(home).entries()) == 3

    @staticmethod
    def start_unanswered_session(home: Path) -> None:
        with open_store(home) as store:
            store.start(model="scripted:script.json").append([user("hi")])

    def test_what_another_process_said_is_shown_before_the_next_input(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt("hi")
            oakleaf("run", "--resume", "latest", "from elsewhere", home=home)
            terminal.enter("")
            terminal.wait_for("Another process moved this session")
            terminal.wait_for("Two.")
            terminal.wait_for(PROMPT)
            assert "Three." in terminal.prompt("and here")
        assert texts(latest(home)) == ["hi", "One.", "from elsewhere", "Two.", "and here", "Three."]

    def test_words_typed_before_another_process_spoke_are_sent_only_if_wanted(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt("hi")
            oakleaf("run", "--resume", "latest", "from elsewhere", home=home)
            terminal.enter("and here")
            terminal.wait_for("Another process moved this session")
            terminal.wait_for("Two.")
            terminal.wait_for("Send your message anyway? [y/N]")
            terminal.enter("n")
            terminal.wait_for(PROMPT)
            assert len(latest(home).path()) == 4
            assert "Three." in terminal.prompt("then this")

    def test_a_command_that_comes_too_late_changes_nothing_and_says_so(self, home: Path) -> None:
        with Terminal("chat", *MODEL, home=home) as terminal:
            terminal.wait_for(PROMPT)
            terminal.prompt("hi")
            oakleaf("run", "--resume", "latest", "from elsewhere", home=home)
            terminal.enter("/undo")
            terminal.wait_for("nothing was written")
            terminal.wait_for("Two.")
            terminal.wait_for(PROMPT)
            terminal.prompt("/undo")
            terminal.wait_for("from elsewhere")
        assert texts(latest(home)) == ["hi", "One."]

    def test_while_another_process_drives_the_input_can_be_queued(self, home: Path) -> None:
        script(home, {"calls": [{"name": "sleeps"}]}, "One.", "Two.")
        driving = subprocess.Popen(
            [*OAKLEAF, "run", "hi", *AGENT], cwd=home, env=environment(home), stdin=subprocess.DEVNULL
        )
        try:
            wait_until((home / "asleep").exists)
            with Terminal("chat", "--resume", "latest", "--set", "tools=tools.py", home=home) as terminal:
                terminal.wait_for("is running a turn")
                terminal.wait_for(PROMPT)
                terminal.enter("more")
                terminal.wait_for("Queue your message, to be answered next? [y/N]")
                terminal.enter("y")
                terminal.wait_for("Queued")
                terminal.wait_for(PROMPT)
        finally:
            driving.kill()
            driving.wait()
        session = latest(home)
        assert len(session.log.store.inbox(session.session_id)) == 1


class TestPick:
    @pytest.fixture
    def sessions(self, home: Path) -> Path:
        with open_store(home) as store:
            for text in ("Where is order 41?", "Book a table", "Where is order 42?"):
                session = store.start(model="scripted:script.json")
                session.append([user(text), assistant("Here.")])
            store.start(model="scripted:script.json").append([user("Never answered")])
        return home

    def test_a_session_is_picked_by_its_first_message(self, sessions: Path) -> None:
        with Terminal("chat", "--resume", *MODEL, home=sessions) as terminal:
            assert "Where is order 41?" in terminal.wait_for("Esc leaves")
            terminal.type("order")
            terminal.wait_for("❯ just now           Where is order 42?")
            terminal.type("xx\x7f\x7f")
            terminal.wait_for("❯ just now           Where is order 42?")
            terminal.type("\x1b[B")
            terminal.wait_for("❯ just now           Where is order 41?")
            terminal.enter("")
            terminal.wait_for("Here.")
            terminal.wait_for(PROMPT)
            terminal.prompt("and now?")
        rows = open_store(sessions).sessions(order="created").sessions
        assert [row.turns for row in rows] == [1, 1, 1, 2]

    @pytest.mark.parametrize("key", ["\x03", "\x04", "\x1b"])
    def test_leaving_opens_nothing(self, sessions: Path, key: str) -> None:
        with Terminal("chat", "--resume", home=sessions) as terminal:
            terminal.wait_for("Esc leaves")
            terminal.type("nothing like it")
            terminal.wait_for("nothing matches")
            terminal.enter("")
            terminal.type(key)
            assert terminal.wait() == 0

    def test_resume_offers_only_sessions_whose_turn_is_open(self, sessions: Path) -> None:
        with Terminal("resume", home=sessions) as terminal:
            screen = terminal.wait_for("Esc leaves")
            assert "Never answered" in screen
            assert "order" not in screen
            terminal.enter("")
            terminal.wait_for("One.")
            assert terminal.wait() == 0
        done = oakleaf("resume", home=sessions)
        assert (done.code, "no session has an interrupted turn" in done.err) == (2, True)

    @pytest.mark.parametrize("command", [("chat", "--resume"), ("resume",)])
    def test_without_a_terminal_it_names_ls(self, sessions: Path, command: tuple[str, ...]) -> None:
        done = oakleaf(*command, home=sessions)
        assert (done.code, "oakleaf ls" in done.err) == (2, True), done.err

    def test_without_a_session_it_says_so(self, home: Path) -> None:
        with open_store(home):
            pass
        assert "there is no session yet" in oakleaf("chat", "--resume", home=home).err


class TestPiped:
    def test_each_line_is_an_input_and_only_answers_are_on_stdout(self, home: Path) -> None:
        done = oakleaf("chat", *MODEL, home=home, stdin='hi\n\nmore\n"""\na\nb\n"""\n')
        assert (done.returncode, done.stdout) == (0, "One.\nTwo.\nThree.\n")
        assert "oakleaf chat --resume" in done.stderr
        assert texts(latest(home))[::2] == ["hi", "more", "a\nb"]

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ("/rewind", "no message to go back to"),
            ("/undo", "no message to undo"),
            ("/show 99", "no entry 99"),
            ("/show 0", "no entry 0"),
        ],
    )
    def test_a_command_that_finds_nothing_says_so(self, home: Path, command: str, message: str) -> None:
        with open_store(home) as store:
            store.start(session_id="ses_new", model=MODEL[1])
        done = oakleaf("chat", "--resume", "ses_new", home=home, stdin=f"{command}\n")
        assert (done.code, message in done.err) == (2, True), done.err

    def test_tree_and_rewind_print_numbers_that_can_be_typed(self, home: Path) -> None:
        done = oakleaf(
            "chat", *MODEL, home=home, stdin="hi\nmore\n/rewind\n/rewind 2\nelse\n/tree\n/tree 1:4\n"
        )
        assert done.code == 0, done.err
        assert "/rewind 0    before › hi\n  /rewind 2    before › more\n" in done.out
        assert "├╮ branch 1" in done.out
        assert "/tree BRANCH:N" in done.err
        assert texts(latest(home)) == ["hi", "One.", "more", "Two."]

    def test_a_turn_that_fails_ends_it(self, home: Path) -> None:
        script(home, "One.")
        done = oakleaf("chat", *MODEL, home=home, stdin="hi\nmore\nnever\n")
        assert (done.returncode, done.stdout) == (1, "One.\n")
        assert texts(latest(home)) == ["hi", "One.", "more"]

    def test_an_approval_stops_it_and_says_what_to_do(self, home: Path) -> None:
        script(home, calls("refund"), "Refunded.")
        done = oakleaf("chat", *AGENT, home=home, stdin="refund it\nyes\n")
        assert done.returncode == 1
        assert "oakleaf approve" in done.stderr
        assert not (home / "book").exists()

    def test_without_a_model_it_says_how_to_name_one(self, home: Path) -> None:
        done = oakleaf("chat", home=home, stdin="hi\n")
        assert done.returncode == 2
        assert "OAKLEAF_MODEL" in done.stderr


class TestBlocks:
    def test_a_block_is_whole_when_the_next_begins(self) -> None:
        blocks = MarkdownBlocks()
        assert blocks.add("one\ntwo\n\n") == []
        assert blocks.add("three\n") == ["one\ntwo"]
        assert blocks.rest() == ["three"]

    @pytest.mark.parametrize(
        "text",
        ["```\na\n\nb\n```", "- a\n\n- b", "1. a\n\n   more of a\n\n2. b", "~~~\n```\n\nx\n~~~"],
    )
    def test_code_and_lists_stay_together(self, text: str) -> None:
        assert split_blocks(f"{text}\n\nafter\n") == [text, "after"]

    def test_it_does_not_matter_in_which_pieces_text_comes(self) -> None:
        text = "# A\n\npara\ngraph\n\n```py\n\nx = 1\n```\n\n- a\n\n- b\n\nend"
        assert split_blocks(text) == split_blocks(*text)

    def test_nothing_is_lost(self) -> None:
        text = "a\n\nb\n\n\n\nc"
        assert "".join("".join(split_blocks(text)).split()) == "abc"


def split_blocks(*pieces: str) -> list[str]:
    blocks = MarkdownBlocks()
    return [*(block for piece in pieces for block in blocks.add(piece)), *blocks.rest()]


class TestWhole:
    @pytest.mark.parametrize(
        ("lines", "text"),
        [
            (["one"], "one"),
            (["one\\", "two\\", "three"], "one\ntwo\nthree"),
            (['"""one', "", 'two"""'], "one\n\ntwo"),
            (['"""one"""'], "one"),
            (['"""', "one"], "one"),
            (["one\\"], "one\n"),
        ],
    )
    def test_lines_make_one_input(self, lines: list[str], text: str) -> None:
        remaining = list(lines)

        def line(is_more: bool) -> str:
            if not remaining:
                raise EOFError
            return remaining.pop(0)

        assert read_input(line) == text
        assert not remaining

    def test_the_end_of_everything_is_no_input(self) -> None:
        def line(is_more: bool) -> str:
            raise EOFError

        with pytest.raises(EOFError):
            read_input(line)
