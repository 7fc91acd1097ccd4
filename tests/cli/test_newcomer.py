"""What somebody who has only read the README meets: every suggestion runs, and nothing that was typed is passed over."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path

import pytest

import oakleaf as library
from oakleaf import assistant, system, user
from oakleaf.cli.rendering.output import format_age
from support.terminal import CommandResult, Terminal, oakleaf

NO_KEYS = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "ANTHROPIC_BASE_URL": "", "OPENAI_BASE_URL": ""}


@pytest.fixture
def branched_store(tmp_path: Path) -> Path:
    """A session of two branches, its leaf on the second, and a fork with nothing of its own."""
    place = tmp_path / "f.db"
    with library.open(place) as store:
        session = store.start("oak", [system("You grow.")], session_id="ses_oak", title="The oak")
        session.append([user("first"), assistant("one")])
        session.rewind(1)
        session.append([user("second"), assistant("two"), user("third"), assistant("three")])
        session.fork(at=3, title="cutting")
    return place


def suggested_command(text: str) -> list[str]:
    """The command behind `more: oakleaf`, as a shell would read it."""
    return shlex.split(text.partition("more: oakleaf ")[2])


class TestTheFirstMinute:
    def test_oakleaf_alone_says_what_to_do_first(self, tmp_path: Path) -> None:
        result = oakleaf(home=tmp_path)
        assert len(result.out.splitlines()) <= 15
        assert "demo  " in result.out
        assert "oakleaf help all" in result.out

    @pytest.mark.parametrize(
        ("typed", "verb"), [("checkout", "rewind"), ("list", "ls"), ("delete", "rm"), ("history", "log")]
    )
    def test_the_verb_of_another_tool_names_ours(self, tmp_path: Path, typed: str, verb: str) -> None:
        result = oakleaf(typed, home=tmp_path)
        assert (result.code, f"oakleaf {verb}" in result.err) == (2, True)

    def test_an_empty_name_of_a_store_is_not_taken_for_the_default_one(self, tmp_path: Path) -> None:
        for arguments, problem in (
            (("--store", "", "ls"), "the name of the store is empty"),
            (("doctor", ""), "folder='' is invalid"),
            (("copy", "--all", "--to", ""), "to='' is invalid"),
        ):
            result = oakleaf(*arguments, home=tmp_path)
            assert (result.code, problem in result.err) == (2, True)

    def test_the_name_that_sqlite_has_for_memory_names_ours(self, tmp_path: Path) -> None:
        result = oakleaf("--store", ":memory:", "ls", home=tmp_path)
        assert (result.code, 'use "memory:"' in result.err) == (2, True)

    def test_a_file_of_tools_that_is_not_python_is_said_to_be_none(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("hello")
        (tmp_path / "one.json").write_text('["One."]')
        words = ("--model", "scripted:one.json", "--set", "tools=notes.txt")
        result = oakleaf("run", "hi", *words, home=tmp_path)
        assert (result.code, "must end in .py" in result.err) == (2, True)

    def test_a_store_in_a_folder_that_is_missing_is_not_promised(self, tmp_path: Path) -> None:
        result = oakleaf("--store", tmp_path / "no" / "s.db", "ls", home=tmp_path)
        assert (result.code, f"no folder {tmp_path / 'no'}" in result.err, "chat" in result.err) == (
            2,
            True,
            False,
        )

    @pytest.mark.parametrize("verb", ["run", "chat"])
    def test_without_a_key_nothing_is_made(self, tmp_path: Path, verb: str) -> None:
        words = ["hello"] if verb == "run" else []
        result = oakleaf(
            verb, *words, "--model", "anthropic:claude", home=tmp_path, stdin="hello\n", **NO_KEYS
        )
        assert (result.code, "ANTHROPIC_API_KEY" in result.err) == (2, True)
        assert not (tmp_path / "agent.db").exists()

    def test_without_a_key_nothing_is_sent_to_a_session_that_is_there(self, store_path: Path) -> None:
        before = oakleaf("log", "ses_case", "--json", store=store_path).out
        result = oakleaf(
            "run",
            "more",
            "--resume",
            "ses_case",
            "--model",
            "openai:gpt",
            store=store_path,
            stdin="",
            **NO_KEYS,
        )
        assert result.code == 2
        assert oakleaf("log", "ses_case", "--json", store=store_path).out == before

    def test_without_a_key_no_replay_is_made(self, store_path: Path) -> None:
        result = oakleaf("replay", "ses_case", "--model", "openai:gpt", store=store_path, **NO_KEYS)
        assert (result.code, "OPENAI_API_KEY" in result.err) == (4, True)
        assert oakleaf("ls", "is:replay", "--json", store=store_path).json["sessions"] == []

    def test_a_fallback_that_has_a_key_is_enough(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('["hello"]')
        chain = ["--model", "anthropic:claude", "--model", f"scripted:{tmp_path / 'a.json'}"]
        assert oakleaf("run", "hi", *chain, home=tmp_path, **NO_KEYS).code == 0

    @pytest.mark.parametrize("verb", ["run", "chat", "ls", "export", "replay", "usage", "import", "copy"])
    def test_the_help_of_a_verb_shows_how_it_is_typed(self, tmp_path: Path, verb: str) -> None:
        assert f"\n  oakleaf {verb} " in oakleaf(verb, "--help", home=tmp_path).out


class TestPlaces:
    @pytest.mark.parametrize(
        "line",
        [
            "rm ses_oak@2 --yes",
            "title ses_oak@2 other",
            "tag ses_oak@2 a=b",
            "undo ses_oak@2",
            "redo ses_oak@2",
            "compact ses_oak@2",
            "uncompact ses_oak@2",
            "verify ses_oak@2",
            "tail ses_oak@2",
            "resume ses_oak@2",
            "approve ses_oak@2",
            "copy ses_oak@2 --to memory:",
        ],
    )
    def test_a_verb_of_whole_sessions_refuses_a_place(self, branched_store: Path, line: str) -> None:
        result = oakleaf(*line.split(), store=branched_store)
        assert (result.code, "ses_oak@2 names an entry" in result.err) == (2, True), result.err

    def test_a_rewind_to_a_branch_goes_to_that_branch(self, branched_store: Path) -> None:
        moved = oakleaf("rewind", "ses_oak@1:3", "--json", store=branched_store).json
        assert moved["leaf"] == "1:3"
        assert "one" in oakleaf("show", "ses_oak", store=branched_store).out

    def test_an_overwrite_of_a_branch_goes_on_from_that_branch(
        self, branched_store: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "a.json").write_text('["", "on the first branch"]')
        model = f"scripted:{tmp_path / 'a.json'}"
        assert (
            oakleaf("run", "go on", "--overwrite", "ses_oak@1:3", "--model", model, store=branched_store).code
            == 0
        )
        output = oakleaf("show", "ses_oak", store=branched_store).out
        assert "one" in output
        assert "two" not in output

    def test_a_replay_of_another_branch_is_refused(self, branched_store: Path) -> None:
        result = oakleaf("replay", "ses_oak@1:2", store=branched_store)
        assert (result.code, "oakleaf fork ses_oak@1:2" in result.err) == (2, True)

    def test_a_branch_that_holds_no_such_entry_says_where_branches_are_listed(
        self, branched_store: Path
    ) -> None:
        result = oakleaf("show", "ses_oak@1:5", store=branched_store)
        assert (result.code, "oakleaf log ses_oak --all" in result.err) == (2, True)

    def test_the_log_of_all_branches_names_each_place_as_it_is_typed(self, branched_store: Path) -> None:
        output = oakleaf("log", "ses_oak", "--all", store=branched_store).out
        for place, text in (("1:2", "first"), ("2:2", "second")):
            assert any(place in line and text in line for line in output.splitlines())
            assert text in oakleaf("show", f"ses_oak@{place}", store=branched_store).out

    def test_the_log_of_all_branches_holds_all_of_the_path(self, branched_store: Path) -> None:
        """A fork owns none of the entries it stands on."""
        path = oakleaf("log", "cutting", "--json", store=branched_store).json["entries"]
        every = oakleaf("log", "cutting", "--all", "--json", store=branched_store).json["entries"]
        assert [line["entry_id"] for line in every] == [line["entry_id"] for line in path]
        assert len(oakleaf("log", "cutting", "--all", "-n", "2", store=branched_store).out.splitlines()) == 2

    def test_show_takes_the_newest_so_many(self, branched_store: Path) -> None:
        result = oakleaf("show", "ses_oak", "-n", "1", store=branched_store)
        assert ("three" in result.out, "third" in result.out) == (True, False)
        assert [
            e["seq"]
            for e in oakleaf("show", "-n", "2", "ses_oak", "--json", store=branched_store).json["entries"]
        ] == [4, 5]


class TestSuggestions:
    def test_the_next_page_of_a_list_asks_for_the_same_list(self, store_path: Path) -> None:
        result = oakleaf("ls", "status:idle", "after:7d", "is:all", "-n", "1", store=store_path)
        words = suggested_command(result.err)
        assert words[-3:] == ["--limit", "1", "status:idle after:7d is:all"]
        following = oakleaf(*words, store=store_path)
        assert following.code == 0
        assert following.out.splitlines()[1:] not in ([], result.out.splitlines()[1:])

    def test_the_next_page_of_a_search_asks_for_the_same_words(self, branched_store: Path) -> None:
        with library.open(branched_store) as store:
            store.start("b", session_id="ses_b").append(
                [user("two of us"), assistant("two of you; no third")]
            )
            store.start("c", session_id="ses_c").append([user("two of them")])
        result = oakleaf("search", '"two of" -third', "-n", "1", store=branched_store)
        following = oakleaf(*suggested_command(result.err), store=branched_store)
        assert (following.code, "ses_b@1" in following.out) == (0, True)
        assert "--page" not in following.err

    def test_a_word_to_leave_out_is_typed_without_quotes(self, branched_store: Path) -> None:
        result = oakleaf("search", "second", "-third", "-n", "3", "--json", store=branched_store)
        assert [hit["seq"] for hit in result.json["hits"]] == [2]
        assert oakleaf("search", "kind:message", "-nothing", "-n2", store=branched_store).code == 0

    def test_a_session_that_is_a_replay_is_not_offered_to_go_on(self, branched_store: Path) -> None:
        replay = oakleaf("replay", "ses_oak", "--mode", "strict", "--json", store=branched_store).json[
            "replay"
        ]
        model = ["--model", "openai-chat:m@http://127.0.0.1:1/v1"]
        for verb in (["resume", replay], ["run", "hello", "--resume", replay]):
            result = oakleaf(*verb, *model, store=branched_store)
            assert f"oakleaf fork {replay}" in result.err
            assert f"oakleaf run --resume {replay}" not in result.err
        assert oakleaf("fork", replay, store=branched_store).code == 0

    @pytest.mark.parametrize(
        ("line", "flag"),
        [
            ("uncompact ses_case", "oakleaf compact"),
            ("replay ses_case --prompt brief", "--model"),
            ("replay ses_case --mode live", "--live"),
            ("replay ses_case --mode live --live refund", "--agent FILE.py"),
            ("replay ses_case --mode strict --model openai:x", "--model"),
            ("ls --page zz", "page="),
            ("ls after:never", "after:never"),
            ("usage --since never", "since="),
            ("usage latest --since ²", "since="),
            ("import {store}", "oakleaf export"),
            ("import nosuch.oakleaf", "nosuch.oakleaf: no such file; oakleaf export"),
            ("restore nosuch", "oakleaf ls is:trashed"),
            ("ls tag:blue", "NAME=VALUE"),
            ("compact ses_case --keep-from 99", "99"),
            ("export ses_case@3", "oakleaf fork ses_case@3"),
            ("export ses_case --format htlm", "use one of bundle, "),
            ("backup /nowhere/at/all.db", "there is no folder /nowhere/at"),
            ("run hi --model openai:x --set tools=.", "--set tools .: . is a folder"),
            ("export ses_case -o /nowhere/at/all", "there is no folder /nowhere/at"),
        ],
    )
    def test_an_error_speaks_the_words_of_the_command_line(
        self, store_path: Path, line: str, flag: str
    ) -> None:
        result = oakleaf(
            *line.format(store=store_path).split(), store=store_path, **{**NO_KEYS, "OPENAI_API_KEY": "k"}
        )
        assert result.code in (1, 2)
        assert flag in result.err
        for python in ("session.", "source.", "live=", "tools=", "before=", "blobs="):
            assert python not in result.err

    def test_a_home_that_cannot_be_written_names_the_option_for_another_store(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text('["hello"]')
        result = oakleaf(
            "run", "hi", "--model", f"scripted:{tmp_path}/a.json", XDG_DATA_HOME=f"{tmp_path}/a.json"
        )
        assert (result.code, "--store PATH" in result.err) == (2, True)

    def test_a_bundle_whose_id_is_taken_is_replayed_by_the_commands_that_are_named(
        self, store_path: Path, tmp_path: Path
    ) -> None:
        oakleaf("export", "ses_case", "-o", tmp_path / "x.oakleaf", store=store_path)
        oakleaf("title", "ses_case", "Changed", store=store_path)
        result = oakleaf("replay", tmp_path / "x.oakleaf", store=store_path)
        assert result.code == 2
        words = shlex.split(result.err.partition("under a new id: oakleaf ")[2])
        assert words[0] == "replay"
        assert oakleaf(*words, store=store_path).code == 0

    def test_a_page_too_large_names_the_options_that_make_it_smaller(self) -> None:
        from oakleaf.cli.rendering.error_text import describe_error
        from oakleaf.errors import PageTooLarge

        text = describe_error(PageTooLarge(50_000_000))
        assert text is not None
        assert "--no-children" in text.text
        assert "blobs=False" not in text.text

    def test_a_session_named_twice_is_put_away_once(self, store_path: Path) -> None:
        result = oakleaf("rm", "ses_case", "ses_case", "--yes", store=store_path)
        assert (result.code, result.err.count("moves to the trash")) == (0, 1)
        assert "moved 1 session to the trash" in result.err

    @pytest.mark.parametrize("verb", [["log"], ["context"], ["export", "--format", "finetune"]])
    def test_what_is_empty_says_so(self, store_path: Path, verb: list[str]) -> None:
        result = oakleaf(*verb, "ses_other", store=store_path)
        assert (result.code, result.out, bool(result.err)) == (0, "", True)

    def test_a_summary_that_is_empty_is_refused_by_its_name(self, store_path: Path) -> None:
        result = oakleaf("rewind", "ses_case@2", "--summary", "", store=store_path)
        assert (result.code, "summary='' is invalid" in result.err) == (2, True)

    def test_undo_with_nothing_to_undo_says_so(self, store_path: Path) -> None:
        assert "no input to undo" in oakleaf("undo", "ses_other", store=store_path).err

    def test_an_empty_store_says_how_the_first_session_is_made(self, tmp_path: Path) -> None:
        library.open(tmp_path / "e.db").close()
        assert "oakleaf chat starts one" in oakleaf("ls", store=tmp_path / "e.db").err
        assert "the trash is empty" in oakleaf("ls", "is:trashed", store=tmp_path / "e.db").err

    def test_a_session_without_a_title_is_named_once(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "e.db") as store:
            store.start(session_id="ses_nameless")
        assert oakleaf("show", "ses_nameless", store=tmp_path / "e.db").out.splitlines()[0] == "ses_nameless"
        assert "  ses_nameless  (0 turns)" in oakleaf("rm", "ses_nameless", store=tmp_path / "e.db").err

    def test_what_was_put_away_comes_back_by_the_command_that_is_named(self, store_path: Path) -> None:
        output = oakleaf("rm", "ses_case", "ses_other", "--yes", store=store_path).err
        words = output.partition("undo with: oakleaf ")[2].split()
        assert oakleaf(*words, store=store_path).out.split() == ["ses_case", "ses_other"]

    def test_a_diff_is_coloured_at_a_terminal(self, store_path: Path) -> None:
        with Terminal("diff", "ses_case", "ses_other", store=store_path) as terminal:
            assert terminal.wait() == 1
            assert "\x1b[31m  a  Where" in terminal.raw
            assert "\x1b[32m  b  " in terminal.raw

    def test_the_newest_of_one_entry_is_refused(self, store_path: Path) -> None:
        result = oakleaf("show", "ses_case@3", "-n", "2", store=store_path)
        assert result.code == 2
        words = result.err.partition("use oakleaf ")[2].split()
        assert len(oakleaf(*words, store=store_path).out.splitlines()) == 2

    def test_a_title_may_have_several_words(self, store_path: Path) -> None:
        assert oakleaf("title", "ses_case", "Order", "forty", "one", store=store_path).code == 0
        assert oakleaf("title", "ses_case", store=store_path).out == "Order forty one\n"


class TestPager:
    PAGED = "sed s/^/paged:/"

    def run_in_terminal(self, store_path: Path, *line: str, **variables: str) -> Terminal:
        with Terminal(*line, store=store_path, **variables) as terminal:
            assert terminal.wait() == 0
            return terminal

    @pytest.fixture
    def long(self, tmp_path: Path) -> Path:
        with library.open(tmp_path / "l.db") as store:
            store.start("a", session_id="ses_long").append([user(f"line {n}") for n in range(100)])
        return tmp_path / "l.db"

    @pytest.mark.parametrize("verb", ["log", "show", "tree", "context"])
    def test_what_does_not_fit_the_terminal_is_paged(self, long: Path, verb: str) -> None:
        screen = self.run_in_terminal(long, verb, "ses_long", OAKLEAF_PAGER=self.PAGED).screen
        assert screen.count("paged:") >= 100
        assert "line 99" in screen

    def test_colours_go_through_it(self, long: Path) -> None:
        terminal = self.run_in_terminal(long, "log", "ses_long", OAKLEAF_PAGER=self.PAGED)
        assert "\x1b[36m" in terminal.raw

    @pytest.mark.parametrize("rows", ["2", "60"])
    def test_what_is_said_comes_behind_what_was_printed(self, long: Path, rows: str) -> None:
        screen = self.run_in_terminal(long, "search", "line", "-n", rows, OAKLEAF_PAGER=self.PAGED).screen
        assert ("paged:" in screen) == (rows == "60")
        assert screen.index("more: oakleaf search") > screen.rindex("    line")
        assert "paged:more" not in screen

    def test_what_fits_is_printed_as_ever(self, long: Path) -> None:
        assert "paged:" not in self.run_in_terminal(long, "log", "-n", "5", OAKLEAF_PAGER=self.PAGED).screen

    @pytest.mark.parametrize("how", [{"OAKLEAF_PAGER": ""}, {"OAKLEAF_PAGER": "cat"}, {"TERM": "dumb"}])
    def test_it_can_be_switched_off(self, long: Path, how: dict[str, str]) -> None:
        screen = self.run_in_terminal(long, "log", "ses_long", **{"PAGER": self.PAGED, **how}).screen
        assert ("paged:" in screen, screen.count("line ")) == (False, 100)

    def test_a_pipe_has_none(self, long: Path) -> None:
        assert "paged:" not in oakleaf("log", "ses_long", store=long, OAKLEAF_PAGER=self.PAGED).out

    def test_one_that_is_left_early_is_no_error(self, long: Path) -> None:
        screen = self.run_in_terminal(long, "show", "ses_long", "--json", OAKLEAF_PAGER="head -n 3").screen
        assert "Traceback" not in screen
        assert "oakleaf:" not in screen

    def test_one_that_does_not_exist_is_named_and_everything_is_shown(self, long: Path) -> None:
        screen = self.run_in_terminal(long, "log", "ses_long", OAKLEAF_PAGER="nosuchpager").screen
        assert "nosuchpager" in screen
        assert screen.count("line ") == 100


class TestTimes:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (-5, "just now"),
            (20, "just now"),
            (60, "1 minute ago"),
            (3_599, "59 minutes ago"),
            (7_200, "2 hours ago"),
            (86_400 * 2, "2 days ago"),
            (86_400 * 60, "2026-09-02 00:00"),
        ],
    )
    def test_a_time_is_told_as_people_say_it_until_it_is_long_ago(self, seconds: int, text: str) -> None:
        now = int(datetime(2026, 11, 1).timestamp() * 1e6)
        assert format_age(now - seconds * 1_000_000, now) == text

    def test_a_list_says_how_long_ago_at_a_terminal_and_when_in_a_pipe(self, store_path: Path) -> None:
        with Terminal("ls", store=store_path) as terminal:
            assert terminal.wait() == 0
            assert " now" in terminal.screen or " ago" in terminal.screen
        today = datetime.now(UTC).astimezone().strftime("%Y-")
        assert today in oakleaf("ls", store=store_path).out


class TestCompletion:
    def complete(self, store: Path, words: str, shell: str = "bash") -> CommandResult:
        count = len(words.split(" ")) - 1
        return oakleaf(
            store=store, _OAKLEAF_COMPLETE=f"{shell}_complete", COMP_WORDS=words, COMP_CWORD=str(count)
        )

    def test_ids_come_with_their_titles_where_the_shell_shows_them(self, store_path: Path) -> None:
        assert "Order 41" in self.complete(store_path, "oakleaf show ses_c", "zsh").out

    def test_an_old_session_is_completed_however_many_are_newer(self, tmp_path: Path) -> None:
        with library.open(tmp_path / "a.db") as store:
            for number in range(-1, 220):
                store.start(session_id=f"ses_new{number}" if number >= 0 else "ses_old")
        assert self.complete(tmp_path / "a.db", "oakleaf show ses_o").out == "plain,ses_old\n"

    @pytest.mark.parametrize("words", ["--store s", "run --agent s", "show case.b", "copy latest --to s"])
    def test_the_shell_completes_files_where_one_can_be_named(self, store_path: Path, words: str) -> None:
        typed = words.split(" ")[-1]
        assert self.complete(store_path, f"oakleaf {words}").out == f"file,{typed}\n"

    def test_bash_tears_a_flag_with_its_value_apart(self, store_path: Path, tmp_path: Path) -> None:
        result = self.complete(tmp_path / "none.db", f"oakleaf --store = {store_path} show ses_cas")
        assert (result.out, result.err) == ("plain,ses_case\n", "")
        assert self.complete(store_path, "oakleaf nonsense ses_cas").err == ""

    def test_nothing_is_offered_that_a_shell_would_tear_apart(self, store_path: Path) -> None:
        offered = [
            line.partition(",")[2] for line in self.complete(store_path, "oakleaf show ").out.splitlines()
        ]
        assert "ses_case" in offered
        assert all(" " not in name for name in offered)

    def test_a_store_that_cannot_be_read_is_not_said_across_the_line(self, tmp_path: Path) -> None:
        (tmp_path / "no.db").write_text("no store")
        result = self.complete(tmp_path / "no.db", "oakleaf show s")
        assert (result.code, result.out.strip(), result.err) == (0, "", "")

    def test_sessions_are_those_of_the_store_space_and_owner_that_are_typed(self, tmp_path: Path) -> None:
        """It offered those of the default space, whatever was typed."""
        place = tmp_path / "a.db"
        for space, owner in (("default", None), ("blue", "ann"), ("blue", "bob")):
            with library.open(place, space=space, owner=owner) as store:
                store.start(session_id=f"ses_{space}_{owner}")
                store.start(session_id=f"ses_trash_{space}_{owner}")
                store.delete(f"ses_trash_{space}_{owner}")

        def offers(words: str) -> set[str]:
            lines = self.complete(
                tmp_path / "none.db", f"oakleaf --store {place} {words} ses"
            ).out.splitlines()
            return {line.partition(",")[2] for line in lines}

        assert offers("show") == {"ses_default_None"}
        assert offers("--space blue show") == {"ses_blue_ann", "ses_blue_bob"}
        assert offers("--space blue --owner ann show") == {"ses_blue_ann"}
        assert offers("restore") == offers("purge") == {"ses_trash_default_None"}

    def test_providers_are_offered(self, store_path: Path) -> None:
        assert "openai-chat" in self.complete(store_path, "oakleaf context --provider op").out
