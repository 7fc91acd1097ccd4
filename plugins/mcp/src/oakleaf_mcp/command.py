"""`oakleaf mcp`: past sessions for other agents, as an MCP server."""

from __future__ import annotations

import click
from click.core import ParameterSource

from oakleaf.cli.terminal import CommandError, StoreLocation, echo, notify, pass_location
from oakleaf_mcp.client.server import shadowing_file

HOST, PORT = "127.0.0.1", 8379


def _address(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal() and int(port) < 65_536):
        raise click.BadParameter(f"{text!r} is no address; write it like {HOST}:{PORT}")
    return host.strip("[]"), int(port)


@click.command()
@click.option(
    "--http",
    is_flag=False,
    flag_value=f"{HOST}:{PORT}",
    callback=_address,
    metavar="[ADDRESS:PORT]",
    help=f"Serve streamable HTTP there instead of standard input and output, by default at {HOST}:{PORT}; port 0 picks a free one, "
    "and an address that is not loopback needs --token.",
)
@click.option(
    "--token",
    metavar="SECRET",
    envvar="OAKLEAF_TOKEN",
    help="With --http: what clients must send as Authorization: Bearer SECRET.",
)
@pass_location
def mcp(location: StoreLocation, http: tuple[str, int] | None, token: str | None) -> None:
    """Let other agents read past sessions: an MCP server.

    Its tools are the commands that read: ls, search, show, log, tree, diff, usage and more. They read only, within the --space and --owner given to
    oakleaf, and their answers are bounded. docs/mcp.md shows how to add it to a client.

    \b
    claude mcp add oakleaf -- oakleaf mcp
    oakleaf --owner ann mcp --http --token SECRET
    """
    if (
        http is None
        and click.get_current_context().get_parameter_source("token") is ParameterSource.COMMANDLINE
    ):
        raise CommandError("--token needs --http: without it no port is open; add it: oakleaf mcp --http")
    file = shadowing_file()
    if file is not None:
        raise CommandError(f"{file} hides the Python package mcp; rename that file")
    from oakleaf_mcp.serving import HttpServer, serve_stdio

    sessions = location.open_or_create()
    if http is None:
        serve_stdio(sessions)
        return
    try:
        web = HttpServer(sessions, *http, token)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {http[0]}:{http[1]}: {error.strerror}; name another with --http"
        ) from None

    def ready() -> None:
        echo(web.address)
        notify(f"serving {location.display_url}, read only; Ctrl-C stops it")

    web.run(ready)
