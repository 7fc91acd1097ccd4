"""`bough demo`: an agent is killed inside a refund, and nothing is lost and nothing is paid twice.

Every command shown is run, in a process of its own, and every claim is measured afterwards in the store and in the
bank's book: what does not hold is marked and makes the exit code 1. Nothing here says how it ends before it has.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import click
import msgspec

from ...core.usage import Totals, format_cost
from ...session import Session
from ...store import Store
from ...store import open as open_store
from ...wire import PROVIDERS, find_provider, render
from ..rendering.output import bold, clipped, dim, say_json, width

AGENT = (
    "--model",
    "scripted:support.json",
    "--tools",
    "shop.py",
    "--system",
    "@prompt.txt",
    "--title",
    "Order 41",
)
ASKED = "Where is my order 41? I want my money back."
MOST_LINES = 24


@click.command()
@click.option("--keep", is_flag=True, help="Leave the store and the agent's files, to play with.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="Where to keep them; implies --keep."
)
@click.option(
    "--open", "opens", is_flag=True, help="Then show the diff of the replay in the browser; Ctrl-C ends it."
)
@click.option("--json", "is_json", is_flag=True, help="Print the claims and what was measured as JSON.")
def demo(keep: bool, folder: Path | None, opens: bool, is_json: bool) -> int:
    """An agent killed inside a refund, in one minute: no key, no network.

    It is resumed without a second refund, forked, replayed with a stricter prompt, and compared.
    """
    place = _folder(folder)
    began = time.monotonic()
    try:
        stage = Stage(place, is_quiet=is_json)
        with open_store(place / "demo.db") as sessions:
            play(stage, sessions)
        stage.claim(
            "all of this in under a minute",
            f"{time.monotonic() - began:.1f} s",
            time.monotonic() - began < 60,
        )
        stage.end(place if keep or folder else None)
        if opens:
            _open(place, stage.page)
    finally:
        if not keep and not folder:
            shutil.rmtree(place, ignore_errors=True)
    if is_json:
        say_json(held=stage.has_held, claims=stage.claims, folder=str(place) if keep or folder else None)
    return 0 if stage.has_held else 1


def _folder(folder: Path | None) -> Path:
    place = folder or Path(tempfile.mkdtemp(prefix="bough-demo-"))
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise click.UsageError(f"{place} is not empty; name a new folder")
    with as_file(files("bough.cli.demo").joinpath("shop")) as shop:
        for file in ("shop.py", "support.json", "careful.json", "prompt.txt", "stricter.txt"):
            shutil.copy(shop / file, place / file)
    return place


def _open(place: Path, page: str) -> None:
    """The viewer on the demo's store, until Ctrl-C: which is the server's to hear, and ours to wait for."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        subprocess.run(
            [sys.executable, "-m", "bough.cli.main", "serve", "--port", "0", "--page", page, *AGENT[:4]],
            cwd=place,
            env={**os.environ, "BOUGH_STORE": str(place / "demo.db")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
            check=False,
        )
    finally:
        signal.signal(signal.SIGINT, heard)


class Stage:
    """Runs commands in plain sight and keeps what was claimed and measured."""

    def __init__(self, folder: Path, *, is_quiet: bool) -> None:
        self.folder, self.is_quiet = folder, is_quiet
        self.claims: list[dict[str, Any]] = []
        self.page = "/"
        """What the viewer is to show of it."""
        self._acts = 0

    @property
    def has_held(self) -> bool:
        return all(claim["held"] for claim in self.claims)

    def show(self, text: str = "") -> None:
        if not self.is_quiet:
            click.echo(text)

    def act(self, title: str) -> None:
        self._acts += 1
        self.show(f"\n{bold(f'{self._acts}  {title}')}")

    def run(
        self, *arguments: str, shown: Callable[[str], bool] = lambda line: True, **env: str
    ) -> tuple[int, str]:
        """One command of the command line; what it said is shown, shortened, and returned whole."""
        asked = " ".join([*(f"{k}={v}" for k, v in env.items()), "bough", *map(shlex.quote, arguments)])
        for number, line in enumerate(textwrap.wrap(asked, width() - 8, break_on_hyphens=False)):
            self.show(f"   {click.style('$', fg='green') if number == 0 else ' '} {line}")
        done = subprocess.run(
            [sys.executable, "-m", "bough.cli.main", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "BOUGH_STORE": str(self.folder / "demo.db"),
                "COLUMNS": str(width() - 5),
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.strip() and shown(line)]
        for line in lines[:MOST_LINES]:
            self.show(dim(f"     {cut(line)}"))
        if len(lines) > MOST_LINES:
            self.show(dim(f"     … {len(lines) - MOST_LINES} more lines"))
        return done.returncode, done.stdout

    def data(self, *arguments: str) -> tuple[int, Any]:
        """A command with --json, its lines not shown."""
        code, said = self.run(*arguments, "--json", shown=lambda line: False)
        return code, json.loads(said[said.index("{") : said.rindex("}") + 1])

    def claim(self, what: str, measured: object, held: bool) -> None:
        self.claims.append({"claim": what, "measured": str(measured), "held": held})
        mark = click.style("✓", fg="green") if held else click.style("✗", fg="red")
        self.show(f"   {mark} {what}: {bold(clipped(str(measured), max(20, width() - len(what) - 8)))}")

    def end(self, kept: Path | None) -> None:
        held = sum(claim["held"] for claim in self.claims)
        self.show(f"\n{bold(f'{held} of {len(self.claims)} claims held')}")
        if kept is None:
            self.show("   bough demo --open shows the replay's diff in the browser")
            self.show("   bough demo --keep leaves the store and the agent's files, to play with")
            return
        self.show(f"   to play with it:\n     cd {kept}\n     export BOUGH_STORE={kept / 'demo.db'}")
        for line in (
            "bough ls --all",
            "bough show latest",
            "bough search refund",
            "bough diff latest@7 latest",
            "bough export latest",
        ):
            self.show(f"     {line}")


def cut(line: str) -> str:
    """What runs over the edge of the terminal goes."""
    room = width() - 6
    return line if len(line) <= room else line[: room - 1] + "…"


def short(session_id: str) -> str:
    """As people write it: any prefix that is unique will do."""
    return session_id[:12]


def play(stage: Stage, sessions: Store) -> None:
    killed(stage)
    session = sessions.session(sessions.sessions(limit=1).sessions[0].session_id)
    before = prefix(session, session.leaf.seq)
    seen(stage, session)
    resumed(stage, session, before)
    forked(stage, sessions, session)
    replayed(stage, session)
    stage.act("The tree, with its leaf")
    stage.run("tree", short(session.session_id))


def payments(stage: Stage) -> int:
    book = stage.folder / "bank.txt"
    return len(book.read_text().splitlines()) if book.exists() else 0


def killed(stage: Stage) -> None:
    stage.act("A support agent refunds an order; its process gets kill -9 inside refund()")
    code, _ = stage.run("run", ASKED, *AGENT, DIE_INSIDE_REFUND="1")
    died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    stage.claim("how the process ended", died, died == "SIGKILL")
    stage.claim("payments in the bank's book", payments(stage), payments(stage) == 1)


def seen(stage: Stage, session: Session) -> None:
    stage.act("What is durable, in a new process")
    _, said = stage.run(
        "show", short(session.session_id), shown=lambda line: not line.startswith("bough resume")
    )
    stage.claim("entries kept", session.leaf.seq, session.leaf.seq == 5)
    marked = "outcome unknown" in said
    stage.claim("the call is shown as", "outcome unknown" if marked else "something else", marked)


def resumed(stage: Stage, session: Session, before: dict[str, bytes]) -> None:
    stage.act("Resume: refund() has a verify function, which asks the bank")
    code, _ = stage.run("resume", short(session.session_id), "--tools", "shop.py")
    stage.claim("exit code", code, code == 0)
    stage.claim("payments in the bank's book", payments(stage), payments(stage) == 1)
    session.refresh()
    refused = {name: find_provider(name).violations(session.request(name)) for name in PROVIDERS}
    sound = [name for name, found in refused.items() if not found]
    stage.claim("providers whose rules the history keeps", ", ".join(sound), len(sound) == len(PROVIDERS))
    after = prefix(session, 5)
    same = sum(after[name] == before[name] for name in PROVIDERS)
    stage.claim(
        "providers given the same bytes as before the crash, for the first 5 entries",
        f"{same} of {len(PROVIDERS)}",
        same == len(PROVIDERS),
    )
    problems = session.verify()
    stage.claim("problems found by verify", len(problems), not problems)
    stage.run("run", "--resume", short(session.session_id), "When will I see it?", "--tools", "shop.py")
    session.refresh()


def prefix(session: Session, seq: int) -> dict[str, bytes]:
    """What each provider would be given behind entry `seq`, as bytes."""
    from ..reference import Place

    there = Place(session, session.log.leaf_at(seq)).standing()
    return {name: render(there.request(name)) for name in PROVIDERS}


def forked(stage: Stage, sessions: Store, session: Session) -> None:
    stage.act("Fork: another line of the story; no entry is copied")
    own = len(session.entries())
    _, said = stage.run("fork", f"{short(session.session_id)}@7", "--title", "Order 41, another line")
    made = said.split()[-1]
    stage.run("log", short(made), "-n", "2")
    fork = sessions.session(made)
    stage.claim("entries copied", len(fork.entries()), not fork.entries())
    stage.claim("entries both share", fork.leaf.seq, fork.leaf.seq == 7)
    stage.claim("entries of the source", len(session.entries()), len(session.entries()) == own)


def replayed(stage: Stage, session: Session) -> None:
    stage.act("Replay: the same inputs, a stricter prompt, another model, no effects")
    paid = payments(stage)
    how = [
        "--model",
        "scripted:careful.json",
        "--prompt",
        "@stricter.txt",
        "--mode",
        "dry",
        "--tools",
        "shop.py",
    ]
    code, report = stage.data("replay", short(session.session_id), *how)
    first = report["first_divergence"] or {}
    stage.claim("exit code (1: different)", code, code == 1)
    stage.claim("first divergence", divergence(first), "refund" in first.get("expected", ""))
    effects = sum(report["effects"].values())
    stage.claim("effects sent", effects, effects == 0)
    stage.claim("payments in the bank's book", payments(stage), payments(stage) == paid)
    before, after = (msgspec.convert(report[side], Totals) for side in ("usage_before", "usage_after"))
    stage.claim("cost of these turns", f"{format_cost(before)} → {format_cost(after)}", before != after)
    unchanged = report["source_before"] == report["source_after"]
    stage.claim(
        "hash of the source, before = after",
        f"{report['source_before'][:12]} = {report['source_after'][:12]}",
        unchanged,
    )
    stage.page = f"/diff?a={session.session_id}&b={report['replay']}"
    stage.run("diff", short(session.session_id), short(report["replay"]))


def divergence(first: dict[str, Any]) -> str:
    if not first:
        return "none"
    return clipped(f"entry {first['seq_a']}, {first['expected']} became “{first['actual']}”", 150)
