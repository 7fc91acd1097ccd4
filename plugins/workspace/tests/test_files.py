"""The file tools reach what the scope allows and nothing else, whatever the path says."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oakleaf.errors import InvalidArgument, OutOfScope
from oakleaf.ext import ScopeTier
from oakleaf.log.workspace import Workspace
from oakleaf_workspace.files import MAX_SHOWN_BYTES, Files, truncate
from oakleaf_workspace.scope import Scope

SECRET = "the secret of the host"


class SpillStore:
    """Stores spilled output so that a test can read it."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def __call__(self, data: bytes, mime: str) -> str:
        handle = f"blob-{len(self.blobs) + 1}"
        self.blobs[handle] = data
        return handle


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with every kind of trap in it, beside a folder that is out of scope."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret.txt").write_text(SECRET)
    (tmp_path / "root-twin").mkdir()
    (tmp_path / "root-twin" / "secret.txt").write_text(SECRET)
    (root / "src").mkdir(parents=True)
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("[core]\n")
    (root / "src" / "a.py").write_text("one\ntwo\nthree\n")
    (root / "plain.txt").write_text("plain\n")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "linked").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "chain").symlink_to("linked")
    (root / "loop").symlink_to("loop")
    (root / "dangling").symlink_to(outside / "new.txt")
    (root / "inward").symlink_to("plain.txt")
    (root / "proc").symlink_to("/proc/self")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
    return root


@pytest.fixture
def spills() -> SpillStore:
    return SpillStore()


def tools(root: Path, spills: SpillStore, tier: ScopeTier = "sandboxed") -> Files:
    return Files(Scope(root, tier), spills, spills.blobs.__getitem__)


def outside_of(root: Path) -> dict[str, str]:
    paths = (path for path in root.parent.rglob("*") if not path.is_relative_to(root))
    return {str(path): path.read_text() if path.is_file() else "" for path in paths}


ESCAPES = [
    "..",
    "../outside/secret.txt",
    "../root-twin/secret.txt",
    "src/../../outside/secret.txt",
    "src/../../root/plain.txt",
    "./../outside/secret.txt",
    "src/./.././../outside/secret.txt",
    "nowhere/../../outside/secret.txt",
    "../../../../../../../../etc/passwd",
    "/etc/passwd",
    "//etc/passwd",
    "/",
    "{parent}/outside/secret.txt",
    "{parent}/root-twin/secret.txt",
    "{root}/../outside/secret.txt",
    "{root}-twin/secret.txt",
    "/{root}/plain.txt",
    "link.txt",
    "linked/secret.txt",
    "linked/new.txt",
    "chain/secret.txt",
    "up/outside/secret.txt",
    "up/root/plain.txt",
    "src/../linked/secret.txt",
    "loop",
    "loop/x",
    "dangling",
    "inward",
    "proc/environ",
    "proc/cwd/plain.txt",
    "proc/root/etc/passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "/sys/kernel",
    "pipe",
    "sock",
    "pipe/x",
    "plain.txt\0.png",
    "\0",
    "",
    "plain.txt\n",
    "\x7f",
    "~",
    "~/.ssh/id_rsa",
    "~root/x",
    "\ud800",
]


@pytest.mark.parametrize("tier", ["sandboxed", "project"])
@pytest.mark.parametrize("escape", ESCAPES)
def test_no_path_leads_out_of_the_workspace(
    root: Path, spills: SpillStore, tier: ScopeTier, escape: str
) -> None:
    path = escape.format(root=root, parent=root.parent)
    before, files = outside_of(root), tools(root, spills, tier)
    attempts: list[Callable[[], object]] = [
        lambda: files.read_file(path),
        lambda: files.write_file(path, "mine"),
        lambda: files.edit_file(path, "secret", "mine"),
    ]
    for attempt in attempts:
        with pytest.raises(OutOfScope):
            attempt()
    assert outside_of(root) == before
    assert (root / "plain.txt").read_text() == "plain\n"


@pytest.mark.parametrize("folder", ["..", "linked", "up", "chain", "/", "/etc", "proc", "src/../..", "/proc"])
def test_no_folder_outside_is_listed_or_searched(root: Path, spills: SpillStore, folder: str) -> None:
    files = tools(root, spills)
    with pytest.raises(OutOfScope):
        files.list_files("**/*", folder)
    with pytest.raises(OutOfScope):
        files.grep(".", "**/*", folder)


@pytest.mark.parametrize(
    "glob", ["../*", "../outside/*", "/etc/*", "src/../../*", "**/../../*", "*.{py,txt}"]
)
def test_a_glob_that_could_lead_out_is_refused(root: Path, spills: SpillStore, glob: str) -> None:
    with pytest.raises(InvalidArgument):
        tools(root, spills).list_files(glob)
    with pytest.raises(InvalidArgument):
        tools(root, spills).grep("x", glob)


def test_lists_and_searches_follow_no_link(root: Path, spills: SpillStore) -> None:
    files = tools(root, spills)
    assert files.list_files().splitlines()[:-1] == ["plain.txt", "src/a.py"]
    assert "links not followed" in files.list_files()
    assert SECRET not in files.grep("secret|root:|plain")


@pytest.mark.parametrize(
    "name", ["%2e%2e%2fx", "..\\x", "file:", "...", "..x", "x..", " ", "$HOME", "-rf", "a\u202eb"]
)
def test_what_only_looks_like_an_escape_is_a_name_inside(root: Path, spills: SpillStore, name: str) -> None:
    before, files = outside_of(root), tools(root, spills)
    files.write_file(name, "text\n")
    assert (root / name).read_text() == "text\n"
    assert files.read_file(name).endswith("text")
    assert outside_of(root) == before


@pytest.mark.parametrize(
    "path",
    [".git", ".git/config", ".git/hooks/pre-commit", "src/.git", "src/.GIT/config", "x/../.git/config"],
)
def test_settings_and_hooks_of_git_are_not_written(root: Path, spills: SpillStore, path: str) -> None:
    for tier in ("sandboxed", "project"):
        with pytest.raises(OutOfScope):
            tools(root, spills, tier).write_file(path, "[core]\nfsmonitor = evil\n")
    assert (root / ".git" / "config").read_text() == "[core]\n"
    assert not (root / "src" / ".git").exists()


def flipping(path: Path, inside: Path, outside: Path) -> Callable[[threading.Event], None]:
    def flip(stop: threading.Event) -> None:
        for turn in itertools.count():
            if stop.is_set():
                return
            spare, aside = path.with_name(f"spare{turn}"), path.with_name(f"aside{turn}")
            if turn % 2:
                spare.symlink_to(outside)
            elif inside.is_dir():
                spare.mkdir()
            else:
                spare.write_text("harmless")
            with contextlib.suppress(OSError):  # the tool under test may have made a folder there meanwhile
                os.rename(path, aside)
                os.rename(spare, path)

    return flip


@pytest.fixture
def race(tmp_path: Path) -> Iterator[Callable[[Path, Path, Path], None]]:
    stop, threads = threading.Event(), []

    def start(path: Path, inside: Path, outside: Path) -> None:
        threads.append(threading.Thread(target=flipping(path, inside, outside), args=(stop,)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def test_a_folder_swapped_for_a_link_between_check_and_use_leads_nowhere(
    root: Path, spills: SpillStore, race: Callable[[Path, Path, Path], None]
) -> None:
    outside, files = root.parent / "outside", tools(root, spills)
    (root / "swap").mkdir()
    race(root / "swap", root / "src", outside)
    for turn in range(400):
        try:
            files.write_file("swap/planted.txt", str(turn))
            output = files.read_file("swap/secret.txt")
        except (OutOfScope, OSError):
            continue
        assert SECRET not in output
    assert sorted(path.name for path in outside.iterdir()) == ["secret.txt"]


def test_a_file_swapped_for_a_link_between_check_and_use_is_not_read_or_written(
    root: Path, spills: SpillStore, race: Callable[[Path, Path, Path], None]
) -> None:
    secret, files = root.parent / "outside" / "secret.txt", tools(root, spills)
    (root / "src" / "swap").write_text("harmless")
    race(root / "src" / "swap", root / "plain.txt", secret)
    for _ in range(400):
        for attempt in (lambda: files.read_file("src/swap"), lambda: files.write_file("src/swap", "mine")):
            try:
                assert SECRET not in attempt()
            except (OutOfScope, OSError, InvalidArgument):
                continue
    assert secret.read_text() == SECRET


class TestSwapAtTheWorstMoment:
    """The races above, made certain: the swap happens right before the system call that would follow it."""

    def before(
        self, monkeypatch: pytest.MonkeyPatch, call: str, when: object, swap: Callable[[], None]
    ) -> None:
        real, done = getattr(os, call), []

        def swapped(first: object, *args: object, **named: object) -> object:
            if (when is None or first == when) and not done:
                done.append(first)
                swap()
            return real(first, *args, **named)

        monkeypatch.setattr(os, call, swapped)

    def test_a_file_for_a_link(self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch) -> None:
        def swap() -> None:
            (root / "plain.txt").unlink()
            (root / "plain.txt").symlink_to(root.parent / "outside" / "secret.txt")

        self.before(monkeypatch, "open", "plain.txt", swap)
        with pytest.raises(OutOfScope, match="symbolic link"):
            tools(root, spills).read_file("plain.txt")

    def test_a_file_for_a_pipe_that_would_hang(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def swap() -> None:
            os.replace(root / "pipe", root / "plain.txt")

        self.before(monkeypatch, "open", "plain.txt", swap)
        with pytest.raises(OutOfScope, match="pipe"):
            tools(root, spills).read_file("plain.txt")

    def test_a_folder_for_a_link(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def swap() -> None:
            os.rename(root / "src", root / "aside")
            (root / "src").symlink_to(root.parent / "outside")

        self.before(monkeypatch, "open", "src", swap)
        with pytest.raises(OutOfScope, match="symbolic link"):
            tools(root, spills).write_file("src/planted.txt", "x")
        assert not (root.parent / "outside" / "planted.txt").exists()

    def test_a_target_for_a_link_is_replaced_not_followed(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = root.parent / "outside" / "secret.txt"
        self.before(monkeypatch, "rename", None, lambda: (root / "new.txt").symlink_to(secret))
        tools(root, spills).write_file("new.txt", "mine")
        assert secret.read_text() == SECRET
        assert not (root / "new.txt").is_symlink()

    def test_a_file_that_another_wrote_meanwhile_is_not_overwritten(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.before(monkeypatch, "fsync", None, lambda: (root / "plain.txt").write_text("theirs\n") and None)
        with pytest.raises(InvalidArgument, match="read it again"):
            tools(root, spills).edit_file("plain.txt", "plain", "mine")
        assert (root / "plain.txt").read_text() == "theirs\n"
        assert not list(root.glob("*.part"))


class TestTier:
    def test_full_goes_anywhere_but_not_to_devices(self, root: Path, spills: SpillStore) -> None:
        files = tools(root, spills, "full")
        assert SECRET in files.read_file("../outside/secret.txt")
        assert SECRET in files.read_file("link.txt")
        files.write_file(str(root.parent / "outside" / "new.txt"), "x")
        for path in ("/proc/self/environ", "proc/environ", "/dev/zero", "/dev/stdin", "pipe", "x\0y"):
            with pytest.raises(OutOfScope):
                files.read_file(path)

    def test_full_writes_through_a_link_to_where_it_leads(self, root: Path, spills: SpillStore) -> None:
        tools(root, spills, "full").write_file("link.txt", "new")
        assert (root / "link.txt").is_symlink()
        assert (root.parent / "outside" / "secret.txt").read_text() == "new"

    def test_comes_from_the_workspace_and_is_sandboxed_unless_said(self, root: Path) -> None:
        assert Scope.of(Workspace(working_dir=str(root))).tier == "sandboxed"
        assert Scope.of(Workspace(working_dir=str(root), fs_scope_tier="full"), ["x"]).commands == {"x"}
        with pytest.raises(InvalidArgument):
            Scope(root, "everything")  # type: ignore[arg-type]

    def test_a_root_of_slash_still_keeps_the_kernel_out(self, spills: SpillStore) -> None:
        with pytest.raises(OutOfScope):
            tools(Path("/"), spills).read_file("proc/self/environ")

    def test_a_root_behind_a_link_is_the_folder_it_leads_to(
        self, root: Path, spills: SpillStore, tmp_path: Path
    ) -> None:
        (tmp_path / "alias").symlink_to(root)
        assert "plain" in tools(tmp_path / "alias", spills).read_file("plain.txt")
        assert Scope(tmp_path / "alias").locate("src/new.py") == (str(root), "src/new.py")


class TestRead:
    def test_numbers_the_lines(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).read_file("src/a.py") == "     1\tone\n     2\ttwo\n     3\tthree"

    def test_a_window_says_where_to_go_on(self, root: Path, spills: SpillStore) -> None:
        output = tools(root, spills).read_file("src/a.py", offset=2, limit=1)
        assert output == "     2\ttwo\n[lines 2–2 of 3; continue with offset=3]"

    def test_an_absolute_path_inside_is_fine(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).read_file(f"{root}/src/../plain.txt") == "     1\tplain"

    @pytest.mark.parametrize(("offset", "limit"), [(0, 1), (4, 1), (1, 0), (-1, 1)])
    def test_a_window_that_is_none_is_refused(
        self, root: Path, spills: SpillStore, offset: int, limit: int
    ) -> None:
        with pytest.raises(InvalidArgument):
            tools(root, spills).read_file("src/a.py", offset, limit)

    def test_binary_and_empty_files_are_said_to_be(self, root: Path, spills: SpillStore) -> None:
        (root / "x.bin").write_bytes(b"\x7fELF\0\0")
        (root / "empty").touch()
        assert "binary file of 6 bytes" in tools(root, spills).read_file("x.bin")
        assert tools(root, spills).read_file("empty") == "empty is empty"

    def test_what_is_not_utf8_is_shown_as_text_any_store_keeps(self, root: Path, spills: SpillStore) -> None:
        (root / "latin").write_bytes(b"caf\xe9 \xed\xa0\x80")
        tools(root, spills).read_file("latin").encode()

    def test_errors_name_the_whole_path(self, root: Path, spills: SpillStore) -> None:
        with pytest.raises(FileNotFoundError, match="src/none/x"):
            tools(root, spills).read_file("src/none/x")
        with pytest.raises(IsADirectoryError, match="src"):
            tools(root, spills).read_file("src")
        with pytest.raises(NotADirectoryError, match=r"plain\.txt/x"):
            tools(root, spills).read_file("plain.txt/x")
        with pytest.raises(IsADirectoryError):
            tools(root, spills).write_file(".", "x")


class TestWrite:
    def test_makes_folders_and_files(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).write_file("new/deep/x.txt", "ä") == "created new/deep/x.txt: 2 bytes"
        assert (root / "new" / "deep" / "x.txt").read_text() == "ä"

    def test_keeps_the_mode_and_leaves_nothing_beside(self, root: Path, spills: SpillStore) -> None:
        (root / "src" / "a.py").chmod(0o751)
        tools(root, spills).write_file("src/a.py", "x")
        assert stat.S_IMODE((root / "src" / "a.py").stat().st_mode) == 0o751
        assert os.listdir(root / "src") == ["a.py"]

    def test_a_read_only_file_stays(self, root: Path, spills: SpillStore) -> None:
        (root / "plain.txt").chmod(0o444)
        with pytest.raises(PermissionError):
            tools(root, spills).write_file("plain.txt", "x")
        assert (root / "plain.txt").read_text() == "plain\n"

    def test_another_hard_link_keeps_the_old_text(self, root: Path, spills: SpillStore) -> None:
        secret = root.parent / "outside" / "secret.txt"
        os.link(secret, root / "hard.txt")
        tools(root, spills).write_file("hard.txt", "mine")
        assert secret.read_text() == SECRET

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            tools(root, spills).write_file("src/a.py", "x")
        assert os.listdir(root / "src") == ["a.py"]
        assert (root / "src" / "a.py").read_text().startswith("one")

    def test_half_a_character_is_refused(self, root: Path, spills: SpillStore) -> None:
        with pytest.raises(InvalidArgument):
            tools(root, spills).write_file("x", "\ud800")


class TestEdit:
    def test_replaces_the_one_place(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).edit_file("src/a.py", "two\n", "2\n") == "edited src/a.py at line 2"
        assert (root / "src" / "a.py").read_text() == "one\n2\nthree\n"

    @pytest.mark.parametrize("old", ["", "four", "e", "one\ntwo\nthree\n\n"])
    def test_text_that_is_not_there_exactly_once_changes_nothing(
        self, root: Path, spills: SpillStore, old: str
    ) -> None:
        with pytest.raises(InvalidArgument):
            tools(root, spills).edit_file("src/a.py", old, "x")
        assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"

    def test_places_that_overlap_are_two(self, root: Path, spills: SpillStore) -> None:
        (root / "x").write_text("aaa")
        with pytest.raises(InvalidArgument, match="once"):
            tools(root, spills).edit_file("x", "aa", "b")

    def test_all_other_bytes_stay(self, root: Path, spills: SpillStore) -> None:
        (root / "x").write_bytes(b"\xff\xfe one\r\ntwo\r\n\xe9")
        tools(root, spills).edit_file("x", "one\ntwo", "1\n2")
        assert (root / "x").read_bytes() == b"\xff\xfe 1\r\n2\r\n\xe9"

    def test_a_missing_file_is_not_made(self, root: Path, spills: SpillStore) -> None:
        with pytest.raises(FileNotFoundError):
            tools(root, spills).edit_file("none.txt", "a", "b")
        assert not (root / "none.txt").exists()


class TestList:
    @pytest.mark.parametrize(
        ("pattern", "files"),
        [
            ("*.py", ["src/a.py", "src/deep/b.py"]),
            ("src/*.py", ["src/a.py"]),
            ("src/**/*.py", ["src/a.py", "src/deep/b.py"]),
            ("**/b.*", ["src/deep/b.py"]),
            ("?lain.txt", ["plain.txt"]),
            ("[a-b].py", ["src/a.py", "src/deep/b.py"]),
            (".git/*", [".git/config"]),
        ],
    )
    def test_a_glob_finds(self, root: Path, spills: SpillStore, pattern: str, files: list[str]) -> None:
        (root / "src" / "deep").mkdir()
        (root / "src" / "deep" / "b.py").touch()
        output = tools(root, spills).list_files(pattern).splitlines()
        assert [line for line in output if not line.startswith("[")] == files

    def test_below_a_folder(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).list_files("*.py", "src") == "src/a.py"
        assert tools(root, spills).list_files("*.rs", "src") == "[nothing found]"

    def test_a_name_cannot_forge_a_line(self, root: Path, spills: SpillStore) -> None:
        (root / "src" / "x\nforged.py").touch()
        (root / "src" / os.fsdecode(b"\xff.py")).touch()
        output = tools(root, spills).list_files("*.py", "src")
        output.encode()
        assert sorted(output.splitlines()) == ["src/a.py", "src/x�forged.py", "src/�.py"]

    def test_a_nasty_glob_is_quick(self, root: Path, spills: SpillStore) -> None:
        (root / ("a" * 200)).touch()
        assert "nothing" in tools(root, spills).list_files("*a" * 30 + "*b")
        assert "nothing" in tools(root, spills).list_files("**/" * 200 + "b")


class TestGrep:
    def test_finds_lines_with_their_numbers(self, root: Path, spills: SpillStore) -> None:
        assert tools(root, spills).grep("^t", "*.py", "src") == "src/a.py:2: two\nsrc/a.py:3: three"

    def test_says_what_it_did_not_search(self, root: Path, spills: SpillStore) -> None:
        (root / "src" / "x.bin").write_bytes(b"two\0")
        (root / "src" / "big.txt").write_bytes(b"two\n" * 600_000)
        output = tools(root, spills).grep("two", "*", "src")
        assert output == "src/a.py:2: two\n[1 files too large to search; 1 binary files not searched]"

    def test_matches_are_limited(self, root: Path, spills: SpillStore) -> None:
        (root / "src" / "many").write_text("x\n" * 2_000)
        assert "only the first 500 matches" in tools(root, spills).grep("x", "many")

    def test_a_pattern_that_would_never_end_is_stopped(
        self, root: Path, spills: SpillStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("oakleaf_workspace.files._SEARCH_SECONDS", 0.3)
        (root / "src" / "x").write_text("a" * 64 + "!")
        with pytest.raises(InvalidArgument, match="nested repeats"):
            tools(root, spills).grep("(a+)+$", "x")

    def test_a_pattern_that_is_none_is_refused(self, root: Path, spills: SpillStore) -> None:
        with pytest.raises(InvalidArgument, match="regular expression"):
            tools(root, spills).grep("(")


class TestSpill:
    def test_short_output_is_not_spilled(self, spills: SpillStore) -> None:
        assert truncate("x" * MAX_SHOWN_BYTES, spills) == "x" * MAX_SHOWN_BYTES
        assert not spills.blobs

    def test_every_byte_of_a_long_output_can_be_paged_through(self, root: Path, spills: SpillStore) -> None:
        text = "".join(f"{n} – ä€😀\n" for n in range(4_000))
        (root / "long").write_text(text)
        files = tools(root, spills)
        output = files.read_file("long", limit=10_000)
        assert len(output.encode()) < MAX_SHOWN_BYTES + 200
        assert "read_spill('blob-1'" in output
        whole, offset = "", 0
        while offset < len(spills.blobs["blob-1"]):
            page, _, note = files.read_spill("blob-1", offset).rpartition("\n[")
            whole += page
            offset = int(note.split("–")[1].split(" ")[0])
        assert whole.encode() == spills.blobs["blob-1"]
        assert [line.partition("\t")[2] for line in whole.splitlines()] == text.splitlines()

    def test_head_and_tail_are_shown_and_no_character_is_cut(self, spills: SpillStore) -> None:
        output = truncate("€" * 10_000 + "end", spills, head=100, tail=100)
        assert "�" not in output
        assert output.endswith("end")

    def test_a_page_that_is_none_is_refused(self, root: Path, spills: SpillStore) -> None:
        spills(b"abc", "text/plain")
        for offset, limit in ((3, 10), (-1, 10), (0, 0)):
            with pytest.raises(InvalidArgument):
                tools(root, spills).read_spill("blob-1", offset, limit)
