"""`oakleaf demo`: an agent is killed during a refund; nothing is lost and nothing is paid twice.

Every command shown runs in a process of its own, and every claim is measured in the store and in the bank's ledger. A
claim that fails is marked and makes the exit code 1.
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

from oakleaf.cli.rendering.output import bold, clip, dim, echo, fit_line, print_json, width
from oakleaf.core.usage import Totals, format_cost
from oakleaf.ext import read, session_at
from oakleaf.session import Session
from oakleaf.store import Store
from oakleaf.store import open as open_store
from oakleaf.wire import PROVIDERS, find_provider, render

SHOP = ("--model", "scripted:support.json", "--set", "tools=shop.py")
AGENT = (*SHOP, "--set", "prompt=@prompt.txt", "--set", "session.title=Order 41")
QUESTION = "Where is my order 41? I want my money back."
MAX_LINES = 24


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the store and the agent's files to this new folder. Default: a temporary one, which stays.",
)
@click.option(
    "--open", "opens", is_flag=True, help="Open the replay's diff in the browser afterwards; Ctrl-C stops it."
)
@click.option("--json", "is_json", is_flag=True, help="Print the claims and measurements as JSON.")
def demo(folder: Path | None, opens: bool, is_json: bool) -> int:
    """Watch an agent get killed during a refund and recover; needs no key and no network.

    The session is resumed without a second refund, forked, tried again from before the refund, which waits for a person,
    replayed with a stricter prompt, and compared. The store stays, to play with.
    """
    target = _folder(folder)
    started_at = time.monotonic()
    presenter = Presenter(target, is_quiet=is_json)
    presenter.show(f"The store and the agent's files stay in {target}")
    with open_store(target / "demo.db") as store:
        run_demo(presenter, store)
    presenter.claim(
        "finished in under a minute",
        f"{time.monotonic() - started_at:.1f} s",
        time.monotonic() - started_at < 60,
    )
    presenter.end()
    if opens:
        _open(target, presenter.page)
    if is_json:
        print_json(passed=presenter.all_passed, claims=presenter.claims, folder=str(target))
    return 0 if presenter.all_passed else 1


def _folder(folder: Path | None) -> Path:
    # Absolute, because the commands run in it.
    target = (folder or Path(tempfile.mkdtemp(prefix="oakleaf-demo-"))).absolute()
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise click.UsageError(f"{target} is not empty; name a new folder")
    with as_file(files("oakleaf.cli.demo").joinpath("shop")) as shop:
        for file in ("shop.py", "support.json", "careful.json", "prompt.txt", "stricter.txt"):
            shutil.copy(shop / file, target / file)
    return target


def _open(target: Path, page: str) -> None:
    """Serve the viewer on the demo's store. Ctrl-C goes to the server; this process waits for it."""
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        subprocess.run(
            [sys.executable, "-m", "oakleaf.cli.main", "serve", "--port", "0", "--page", page, *SHOP],
            cwd=target,
            env={**os.environ, "OAKLEAF_STORE": str(target / "demo.db")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
            check=False,
        )
    finally:
        signal.signal(signal.SIGINT, previous_handler)


class Presenter:
    """Runs commands, shows the output, and records each claim with a measurement."""

    def __init__(self, folder: Path, *, is_quiet: bool) -> None:
        self.folder, self.is_quiet = folder, is_quiet
        self.claims: list[dict[str, Any]] = []
        self.page = "/"
        """The viewer's page for --open."""
        self._headings = 0

    @property
    def all_passed(self) -> bool:
        return all(claim["passed"] for claim in self.claims)

    def show(self, text: str = "") -> None:
        if not self.is_quiet:
            echo(text)

    def heading(self, title: str) -> None:
        self._headings += 1
        self.show(f"\n{bold(f'{self._headings}  {title}')}")

    def run(
        self, *arguments: str, keep_line: Callable[[str], bool] = lambda line: True, **env: str
    ) -> tuple[int, str]:
        """Run an oakleaf command; show the output shortened and return the full output."""
        command_line = " ".join(
            [*(f"{k}={v}" for k, v in env.items()), "oakleaf", *map(shlex.quote, arguments)]
        )
        for number, line in enumerate(textwrap.wrap(command_line, width() - 8, break_on_hyphens=False)):
            self.show(f"   {click.style('$', fg='green') if number == 0 else ' '} {line}")
        process = subprocess.run(
            [sys.executable, "-m", "oakleaf.cli.main", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "OAKLEAF_STORE": str(self.folder / "demo.db"),
                "COLUMNS": str(width() - 5),
                "PYTHONIOENCODING": "utf-8",
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            check=False,
        )
        lines = [line for line in process.stdout.splitlines() if line.strip() and keep_line(line)]
        for line in lines[:MAX_LINES]:
            self.show(dim(f"     {fit_line(line, width() - 6)}"))
        if len(lines) > MAX_LINES:
            self.show(dim(f"     … {len(lines) - MAX_LINES} more lines"))
        return process.returncode, process.stdout

    def data(self, *arguments: str) -> tuple[int, Any]:
        """Run a command with --json without showing the output."""
        code, output = self.run(*arguments, "--json", keep_line=lambda line: False)
        return code, json.loads(output[output.index("{") : output.rindex("}") + 1])

    def claim(self, what: str, measured: object, passed: bool) -> None:
        self.claims.append({"claim": what, "measured": str(measured), "passed": passed})
        mark = click.style("✓", fg="green") if passed else click.style("✗", fg="red")
        self.show(f"   {mark} {what}: {bold(clip(str(measured), max(20, width() - len(what) - 8)))}")

    def end(self) -> None:
        passed = sum(claim["passed"] for claim in self.claims)
        self.show(f"\n{bold(f'{passed} of {len(self.claims)} claims hold')}")
        store = shlex.quote(str(self.folder / "demo.db"))
        self.show("   oakleaf demo --open shows the replay's diff in the browser")
        self.show(
            f"   to explore it:\n     cd {shlex.quote(str(self.folder))}\n     export OAKLEAF_STORE={store}"
        )
        if not shutil.which("oakleaf"):  # as after `make demo`
            self.show(f"     export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH")
        for line in (
            "oakleaf ls is:all",
            "oakleaf show latest",
            "oakleaf search refund",
            "oakleaf export latest",
        ):
            self.show(f"     {line}")


def short_id(session_id: str) -> str:
    """Return a short prefix: any unique prefix is accepted."""
    return session_id[:12]


def run_demo(presenter: Presenter, store: Store) -> None:
    kill_inside_refund(presenter)
    session = store.session(store.sessions(limit=1).sessions[0].session_id)
    before = rendered_prefix(session, session.leaf.seq)
    show_durable_entries(presenter, session)
    resume(presenter, session, before)
    fork(presenter, store, session)
    try_again(presenter, session)
    replay(presenter, session)
    presenter.heading("The tree, with its leaf")
    presenter.run("tree", short_id(session.session_id))


def payments(presenter: Presenter) -> int:
    book = presenter.folder / "bank.txt"
    return len(book.read_text().splitlines()) if book.exists() else 0


def kill_inside_refund(presenter: Presenter) -> None:
    presenter.heading("A support agent refunds an order; its process gets kill -9 inside refund()")
    code, _ = presenter.run("run", QUESTION, *AGENT, DIE_INSIDE_REFUND="1")
    died = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    presenter.claim("signal that ended the process", died, died == "SIGKILL")
    presenter.claim("payments in the bank's ledger", payments(presenter), payments(presenter) == 1)


def show_durable_entries(presenter: Presenter, session: Session) -> None:
    presenter.heading("What was saved, seen from a new process")
    _, output = presenter.run(
        "show", short_id(session.session_id), keep_line=lambda line: not line.startswith("oakleaf resume")
    )
    presenter.claim("entries saved", session.leaf.seq, session.leaf.seq == 6)
    marked = "outcome unknown" in output
    presenter.claim("the call is shown as", "outcome unknown" if marked else "something else", marked)


def resume(presenter: Presenter, session: Session, before: dict[str, bytes]) -> None:
    presenter.heading("Resume: refund() has a verify function, which asks the bank")
    code, _ = presenter.run("resume", short_id(session.session_id), *SHOP)
    presenter.claim("exit code", code, code == 0)
    presenter.claim("payments in the bank's ledger", payments(presenter), payments(presenter) == 1)
    session.refresh()
    violations = {name: find_provider(name).violations(session.request(name)) for name in PROVIDERS}
    accepted = [name for name, problems in violations.items() if not problems]
    presenter.claim("providers that accept the history", ", ".join(accepted), len(accepted) == len(PROVIDERS))
    after = rendered_prefix(session, 6)
    same = sum(after[name] == before[name] for name in PROVIDERS)
    presenter.claim(
        "providers that receive the same bytes as before the crash, for the first 6 entries",
        f"{same} of {len(PROVIDERS)}",
        same == len(PROVIDERS),
    )
    problems = session.verify()
    presenter.claim("problems found by verify", len(problems), not problems)
    presenter.run("run", "--resume", short_id(session.session_id), "When will I see it?", *SHOP)
    session.refresh()


def rendered_prefix(session: Session, seq: int) -> dict[str, bytes]:
    """Return each provider's request after entry `seq`, as bytes."""
    at_entry = session_at(session, read(session).leaf_at(seq))
    return {name: render(at_entry.request(name)) for name in PROVIDERS}


def fork(presenter: Presenter, store: Store, session: Session) -> None:
    presenter.heading("Fork: start another session from entry 8; no entry is copied")
    own = len(session.entries())
    _, output = presenter.run("fork", f"{short_id(session.session_id)}@8", "--title", "Order 41, second try")
    fork_id = output.split()[-1]
    presenter.run("log", short_id(fork_id), "-n", "2")
    forked = store.session(fork_id)
    presenter.claim("entries copied", len(forked.entries()), not forked.entries())
    presenter.claim("entries shared", forked.leaf.seq, forked.leaf.seq == 8)
    presenter.claim("entries of the source", len(session.entries()), len(session.entries()) == own)


def try_again(presenter: Presenter, session: Session) -> None:
    presenter.heading("Try again from before the refund: the same call waits for a person")
    code, output = presenter.run("run", "--copy", short_id(session.session_id), "--to-point", "5", *SHOP)
    presenter.claim("exit code (1: it waits for approval)", code, code == 1)
    shown = "made before" in output and "left behind" in output
    presenter.claim("the first refund is shown", "yes" if shown else "no", shown)
    presenter.claim("payments in the bank's ledger", payments(presenter), payments(presenter) == 1)


def replay(presenter: Presenter, session: Session) -> None:
    presenter.heading("Replay: the same inputs, a stricter prompt, another model, no effects")
    paid = payments(presenter)
    change = ("--model", "scripted:careful.json", "--prompt", "@stricter.txt")
    code, report = presenter.data(
        "replay", short_id(session.session_id), *change, "--mode", "dry", "--set", "tools=shop.py"
    )
    first = report["first_divergence"] or {}
    presenter.claim("exit code (1: different)", code, code == 1)
    presenter.claim("first divergence", divergence_text(first), "refund" in first.get("expected", ""))
    effects = sum(report["effects"].values())
    presenter.claim("effects sent", effects, effects == 0)
    presenter.claim("payments in the bank's ledger", payments(presenter), payments(presenter) == paid)
    before, after = (msgspec.convert(report[side], Totals) for side in ("usage_before", "usage_after"))
    presenter.claim("cost of these turns", f"{format_cost(before)} → {format_cost(after)}", before != after)
    unchanged = report["source_before"] == report["source_after"]
    presenter.claim(
        "hash of the source session, before and after",
        f"{report['source_before'][:12]} = {report['source_after'][:12]}",
        unchanged,
    )
    presenter.page = f"/diff?a={session.session_id}&b={report['replay']}"
    presenter.run("diff", short_id(session.session_id), short_id(report["replay"]))


def divergence_text(first: dict[str, Any]) -> str:
    if not first:
        return "none"
    return clip(f"entry {first['seq_a']}, {first['expected']} became “{first['actual']}”", 150)
