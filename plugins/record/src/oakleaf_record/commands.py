"""`oakleaf record`: record the sessions of programs that know nothing of Oakleaf."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from shutil import which
from typing import TYPE_CHECKING

import click

from oakleaf.cli.terminal import (
    Callbacks,
    CommandError,
    StoreLocation,
    default_store,
    echo,
    notify,
    pass_location,
    plural,
    signal_handlers,
)
from oakleaf.core.usage import format_cost, format_tokens
from oakleaf.errors import NotFound, OakleafError

if TYPE_CHECKING:
    from oakleaf import Store
    from oakleaf_record.recipes import Recipe
    from oakleaf_record.recorder import Recorder
    from oakleaf_record.server import Proxy
    from oakleaf_record.upstreams import Upstream

PORT = 8378
CLOSE_SECONDS = 30.0
"""How long the program's end waits for a store that takes nothing."""
NOTICE_SECONDS = 1.0
"""After how long it says so."""
_USAGE = "write it after --: oakleaf record -- claude -p …"


class ProgramMissing(CommandError):
    exit_code = 127
    """As in a shell."""

    def __init__(self, program: str) -> None:
        super().__init__(f"there is no program {program!r}; {_USAGE}")


class ProgramNotExecutable(CommandError):
    exit_code = 126

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"cannot run {program!r} ({reason}); {_USAGE}")


def _end_signals() -> list[signal.Signals]:
    """Return a request to terminate, and a closed terminal: not under nohup, and Windows does not tell."""
    if not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, signal.SIGHUP]


def _urls(_: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    from oakleaf_record.upstreams import find_upstreams

    urls = dict(pair.partition("=")[::2] for pair in pairs)
    for name in (name for name, url in urls.items() if not url):
        raise click.BadParameter(f"{name!r} has no address; write NAME=URL", param=parameter)
    try:
        find_upstreams({}, urls)
    except OakleafError as error:
        raise click.BadParameter(f"{error}; write NAME=URL", param=parameter) from None
    return urls


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--upstream",
    "urls",
    multiple=True,
    metavar="NAME=URL",
    callback=_urls,
    help="Where requests go: anthropic=…, openai=… or gemini=…; repeatable. Default: the base URL in the environment, else the vendor.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="A site whose pages may send requests, such as http://localhost:3000; repeatable. Default: programs only.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help=f"Where the proxy listens; 0 picks a free port. Default: {PORT}, with a command a free port.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@pass_location
def record(
    location: StoreLocation,
    /,
    urls: dict[str, str],
    origins: tuple[str, ...],
    port: int | None,
    command: tuple[str, ...],
) -> None:
    """Run a program and record its model calls; without a command, record every program that uses the proxy.

    \b
    oakleaf record -- claude -p "Fix the failing test"
    oakleaf record -- python my_agent.py
    oakleaf record

    ANTHROPIC_BASE_URL, OPENAI_BASE_URL and GOOGLE_GEMINI_BASE_URL point the program to a local proxy. Requests and
    answers pass through unchanged; keys are never stored. The exit code is the program's own. Without a command the
    variables are printed, and Ctrl-C stops the proxy.
    """
    from oakleaf_record.recipes import Recipe, find_recipe
    from oakleaf_record.upstreams import find_upstreams

    if command:
        _check_program(command[0])  # before a store is created for it
    recipe = find_recipe(command) if command else Recipe()
    upstreams = find_upstreams(recipe.settings(os.environ), urls)
    if obstacle := recipe.obstacle(os.environ):
        notify(f"{command[0]} calls its model by another way, which is not recorded: {obstacle}")
        recipe = Recipe()
    store = location.open_or_create()
    with _recorder(location, store) as recorder:
        proxy = _proxy(upstreams, recorder, origins)
        used = port if port is not None else 0 if command else PORT
        code = asyncio.run(_run(command, recipe, proxy, used) if command else _serve(proxy, used, location))
    _report(location, store, recorder, command[0] if command else None)
    sys.exit(code)


def _check_program(name: str) -> None:
    if which(name) is not None:
        return
    if os.path.exists(name):
        raise ProgramNotExecutable(name, "it is not executable")
    raise ProgramMissing(name)


async def _listen(proxy: Proxy, port: int) -> str:
    try:
        return await proxy.start(port)
    except OSError as error:
        # Asyncio's own text repeats the address.
        why = os.strerror(error.errno) if error.errno else str(error)
        raise CommandError(f"cannot listen on 127.0.0.1:{port}: {why}; name another with --port") from None


def _proxy(upstreams: tuple[Upstream, ...], recorder: Recorder, origins: tuple[str, ...]) -> Proxy:
    from oakleaf_record.server import Proxy

    return Proxy(upstreams, recorder, origins)


@contextmanager
def _recorder(location: StoreLocation, store: Store) -> Iterator[Recorder]:
    from oakleaf_record.recorder import Recorder

    recorder = Recorder(store, notify)
    try:
        yield recorder
    finally:
        with suppress(KeyboardInterrupt):
            if not recorder.finish(NOTICE_SECONDS):
                notify("waiting for the store as long as it takes calls; Ctrl-C stops waiting")
                _wait(recorder)
        recorder.close(0)
        if calls := sum(job.is_ended for job in recorder.unrecorded):
            _record_elsewhere(location, recorder, calls)


def _wait(recorder: Recorder) -> None:
    """Wait until the store has taken the queue."""
    written = -1
    while written != recorder.written:
        written = recorder.written
        if recorder.finish(CLOSE_SECONDS):
            return


def _record_elsewhere(location: StoreLocation, recorder: Recorder, calls: int) -> None:
    """Write the calls not taken by the server to a file, and say how to restore the calls."""
    if location.is_file:  # it may be encrypted, and another file would not be
        notify(f"not recorded: {plural(calls, 'call')}: {recorder.outage}")
        return
    name = f"unrecorded-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.db"
    spare = StoreLocation(str(default_store().with_name(name)), location.space, location.owner)
    try:
        with closing(spare):
            elsewhere = recorder.record_elsewhere(spare.open_or_create())
    except (OakleafError, CommandError) as error:
        why = error.command_text if isinstance(error, OakleafError) else error.message
        notify(f"not recorded: {plural(calls, 'call')}: {recorder.outage}; {why}")
        return
    recorder.gaps += elsewhere.gaps
    tenant = {"--space": location.space, "--owner": location.owner}
    flags = [
        word for flag, value in tenant.items() if value not in (None, "default") for word in (flag, value)
    ]
    copy = ["oakleaf", "--store", spare.url, *flags, "copy", "--all", "--to", location.display_url]
    notify(
        f"{recorder.outage}; {plural(elsewhere.calls, 'call')} recorded in {spare.url} instead. When it is back: {shlex.join(copy)}"
    )


async def _run(command: tuple[str, ...], recipe: Recipe, proxy: Proxy, port: int) -> int:
    """Run the command with the proxy; return the exit code."""
    from oakleaf_record.upstreams import child_environment

    address = await _listen(proxy, port)
    try:
        words, environment = recipe.apply(
            command, child_environment(os.environ, address, proxy.upstreams), address
        )
        try:
            child = await asyncio.create_subprocess_exec(*words, env=environment)
        except FileNotFoundError:
            raise ProgramMissing(command[0]) from None
        except OSError as error:
            raise ProgramNotExecutable(command[0], str(error.strerror)) from None

        def pass_on(number: signal.Signals) -> None:
            if child.returncode is None:
                child.send_signal(number)

        # The program decides about Ctrl-C, which the terminal sends to both; a request to terminate or hang up is passed on.
        callbacks: Callbacks = {signal.SIGINT: lambda: None}
        callbacks |= {number: partial(pass_on, number) for number in _end_signals()}
        with signal_handlers(asyncio.get_running_loop(), callbacks):
            code = await child.wait()
        return code if code >= 0 else 128 - code
    finally:
        await proxy.close()


async def _serve(proxy: Proxy, port: int, location: StoreLocation) -> int:
    """Serve every program until a signal."""
    address = await _listen(proxy, port)
    stop = asyncio.Event()
    with signal_handlers(
        asyncio.get_running_loop(), dict.fromkeys((signal.SIGINT, *_end_signals()), stop.set)
    ):
        for upstream in proxy.upstreams:
            echo(f"export {upstream.variables[0]}={address}{upstream.prefix}")
        notify(f"recording to {location.display_url}; Ctrl-C stops it")
        await stop.wait()
        await proxy.close()
    return 0


def _report(location: StoreLocation, store: Store, recorder: Recorder, program: str | None) -> None:
    """Report the recorded calls, the cost, and the unrecorded calls. Whatever became of the store, it does
    not raise.
    """
    if not location.exists:
        notify(f"{location.display_url} was removed meanwhile, and with it what was recorded")
    for session_id in () if recorder.outage else recorder.sessions:
        try:
            row = store.session(session_id).row
        except NotFound:
            notify(f"recorded {session_id}, which was purged meanwhile")
            continue
        except OakleafError as error:
            notify(f"recorded {session_id}, which cannot be read: {error.problem}")
            continue
        used = f"{format_tokens(row.totals)}, {format_cost(row.totals)}"
        notify(f"recorded {session_id}: {plural(row.turns, 'turn')}, {used}")
    if recorder.sessions:
        newest = next(reversed(recorder.sessions))
        notify(
            f"{plural(recorder.calls, 'call')} in {plural(len(recorder.sessions), 'session')}; look at one: oakleaf show {newest}"
        )
    for path, count in recorder.passed.items():
        why = "not recorded over WebSocket" if path.endswith(" over WebSocket") else "not a call of a model"
        notify(f"passed through, {why}: {path} ({count} ×)")
    for path, count in recorder.refused_paths.items():
        notify(f"refused, because no upstream has this path: {path} ({count} ×)")
    for reason in dict.fromkeys(recorder.gaps):
        notify(f"not recorded: {plural(recorder.gaps.count(reason), 'call')}: {reason}")
    if program is None or recorder.calls or recorder.gaps:
        return
    if recorder.passed or recorder.refused_paths:
        notify(f"{program} called no model through the proxy")
    else:
        notify(
            f"{program} sent nothing to the proxy, so nothing was recorded; it must take its base URL from "
            "ANTHROPIC_BASE_URL, OPENAI_BASE_URL or GOOGLE_GEMINI_BASE_URL"
        )
