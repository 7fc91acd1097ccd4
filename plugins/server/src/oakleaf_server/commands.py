"""`oakleaf serve`: the API and the viewer over HTTP."""

from __future__ import annotations

import sys
import webbrowser
from errno import EADDRNOTAVAIL
from socket import gaierror
from typing import TYPE_CHECKING

import click

from oakleaf.cli.terminal import (
    AgentFile,
    AgentOptions,
    CommandError,
    StoreLocation,
    agent_for,
    agent_options,
    command_tools,
    connect_once,
    default_models,
    echo,
    is_terminal,
    log_format_option,
    model_option,
    needs_extra,
    pass_location,
    start_log,
)
from oakleaf.core.time_text import parse_duration
from oakleaf.ext import available_models, observe_commits, read_store

if TYPE_CHECKING:
    from oakleaf.models.base import Model
    from oakleaf_server.context import ServerAgent

PORT = 8377
OF_A_REQUEST = ("prompt", "context", "session", "trigger", "policy")
"""Keys of an agent that are of a session or an input, which requests start."""


def _tokens(_: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    tokens = {}
    for pair in pairs:
        name, equals, token = pair.partition("=")
        if not (name and equals and token):
            raise click.BadParameter(f"write {parameter.metavar}", param=parameter)
        tokens[name] = token
    return tokens


@click.command()
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; anything but loopback needs --token.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="0 picks a free port.",
)
@click.option(
    "--open/--no-open",
    "opens",
    default=None,
    help="Open the viewer in a browser. Default: only at a terminal.",
)
@click.option("--page", default="/", metavar="PATH", help="Page to open, such as /s/ses_3f or /diff?a=…&b=….")
@click.option(
    "--token", metavar="SECRET", envvar="OAKLEAF_TOKEN", help="Grants access to everything in the space."
)
@click.option(
    "--client-token",
    "clients",
    metavar="OWNER=SECRET",
    multiple=True,
    callback=_tokens,
    help="Grants access to this owner's public entries, and to send; repeatable.",
)
@click.option(
    "--person",
    "persons",
    metavar="NAME=SECRET",
    multiple=True,
    callback=_tokens,
    help="Grants what --token grants, and records decisions with this name; repeatable.",
)
@click.option(
    "--accept-names",
    is_flag=True,
    help="Record decisions with the name that a request with --token says: the service knows its users.",
)
@click.option(
    "--internal-token",
    metavar="SECRET",
    envvar="OAKLEAF_INTERNAL_TOKEN",
    help="Grants the right to export bundles.",
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A host name this server accepts.")
@click.option(
    "--max-import",
    metavar="MEGABYTES",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Largest bundle to import.",
)
@click.option(
    "--metrics", is_flag=True, help="Count requests, commits, sessions and cost at /metrics, for Prometheus."
)
@click.option(
    "--all-spaces",
    is_flag=True,
    help="Count the sessions of all spaces at /metrics, by name; whoever has the token reads these.",
)
@click.option(
    "--grace",
    metavar="TIME",
    default="60s",
    show_default=True,
    help="How long to wait for running steps when stopping.",
)
@model_option(
    "--offer",
    "offered",
    multiple=True,
    must_exist=True,
    help="A model that a request may name, beside those of --model; repeatable.",
)
@log_format_option
@agent_options
@pass_location
def serve(
    location: StoreLocation,
    options: AgentOptions,
    host: str,
    port: int,
    opens: bool | None,
    page: str,
    token: str | None,
    clients: dict[str, str],
    persons: dict[str, str],
    accept_names: bool,
    internal_token: str | None,
    hosts: tuple[str, ...],
    max_import: int,
    metrics: bool,
    all_spaces: bool,
    grace: str,
    offered: tuple[str, ...],
    log_format: str,
) -> None:
    """Serve the API and the viewer over HTTP; Ctrl-C stops it.

    On loopback every local user has full access; on other addresses --token is required. With --model and tools the
    server answers what is sent to it. No request and no stored session makes it ask another model than those of --model
    and --offer. docs/http.md describes the API.

    On Ctrl-C or SIGTERM every turn finishes its step and is left as interrupted, for oakleaf resume; a second signal exits
    at once.
    """
    if all_spaces and not metrics:
        raise CommandError("--all-spaces counts for --metrics; name both")
    grace_seconds = parse_duration("grace", grace) / 1_000_000
    with needs_extra("server"):
        from oakleaf_server import app
        from oakleaf_server.auth import AccessSettings
        from oakleaf_server.context import ServerContext
        from oakleaf_server.metrics import Metrics
        from oakleaf_server.uvicorn_server import open_listener
    access = AccessSettings(
        host=host,
        token=token,
        client_tokens=clients,
        persons=persons,
        accepts_names=accept_names,
        internal_token=internal_token,
        allowed_hosts=tuple(name.lower() for name in hosts),
        max_import_bytes=max_import * 1_000_000,
    )
    store = location.open_or_create()
    report = start_log(log_format, read_store(store).redactor, "serve")
    counters = Metrics(all_spaces=all_spaces) if metrics else None
    if counters is not None:
        if all_spaces:
            store.spaces()  # refused now if this caller may not see them
        observe_commits(store, counters.commits.observe)
    context = ServerContext(store, access, _agent(options, offered), counters)
    try:
        listener = open_listener(host, port)
    except OSError as error:
        is_the_host = isinstance(error, gaierror) or error.errno == EADDRNOTAVAIL
        other = "--host" if is_the_host else "--port"
        raise CommandError(
            f"cannot listen on {host}:{port}: {error.strerror}; name another with {other}"
        ) from None
    address = _address(host, listener.getsockname()[1], page, token)
    wants_page = is_terminal() and sys.stdout.isatty() if opens is None else opens

    def ready() -> None:
        echo(address)
        report(f"serving {location.display_url}; Ctrl-C stops it")
        if wants_page:
            webbrowser.open(address)

    app.serve(app.create_server(context, ready, report, grace_seconds), listener)
    report("stopped")


def _agent(options: AgentOptions, offered: tuple[str, ...]) -> ServerAgent:
    """Return the answering agent; without --model, $OAKLEAF_MODEL and a configured model only an offered
    model answers.
    """
    from oakleaf_server.context import ServerAgent

    if "name" in options.typed:
        raise CommandError("--agent NAME: the server answers every agent's sessions; name an agent file")
    options.refuse_typed(OF_A_REQUEST, "it is of a session or an input; the request says it")
    others = tuple(model for name in offered for model in available_models([name]))
    if not options.models and not default_models():
        return _agent_without_models(options, others)
    agent = agent_for(options, None)
    return ServerAgent(
        tuple(agent.models),
        (*agent.own_tools, *agent.sources),
        agent.limits,
        agent.default_limits,
        agent.workspace,
        options.commands,
        options.env,
        agent.model_options,
        others,
        options.agent.effects,
        options.agent.approval or (),
    )


def _agent_without_models(options: AgentOptions, others: tuple[Model, ...]) -> ServerAgent:
    from oakleaf_server.context import ServerAgent

    agent = options.agent
    if agent.workspace.dir or options.model_options or agent.limits != AgentFile().limits:
        raise CommandError("workspace, limits and options need --model")
    tools, servers = command_tools(options)
    connect_once(tools, servers)
    return ServerAgent(
        tools=(*tools.values(), *servers), default_limits=options.default_limits, offered=others
    )


def _address(host: str, port: int, page: str, token: str | None) -> str:
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/{page.removeprefix('/')}" + (f"#token={token}" if token else "")
