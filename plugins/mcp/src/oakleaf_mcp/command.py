"""`oakleaf mcp`: past sessions for other agents, as an MCP server."""

from __future__ import annotations

import click
from click.core import ParameterSource

from oakleaf.cli.terminal import CommandError, StoreLocation, echo, notify, pass_location
from oakleaf_mcp.client.server import shadowing_file

PORT = 8379


@click.command()
@click.option("--http", is_flag=True, help="Serve streamable HTTP instead of standard input and output.")
@click.option(
    "--host",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="With --http: the address to listen on; anything but loopback needs --token.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="With --http; 0 picks a free port.",
)
@click.option(
    "--token",
    metavar="SECRET",
    envvar="OAKLEAF_TOKEN",
    help="With --http: what clients must send as Authorization: Bearer SECRET.",
)
@pass_location
def mcp(location: StoreLocation, http: bool, host: str, port: int, token: str | None) -> None:
    """Let other agents read past sessions: an MCP server.

    Its tools are the commands that read: ls, search, show, log, tree, diff, usage and more. They read only, within the --space and --owner given to
    oakleaf, and their answers are bounded. docs/mcp.md shows how to add it to a client.

    \b
    claude mcp add oakleaf -- oakleaf mcp
    oakleaf --owner ann mcp --http --token SECRET
    """
    if not http:
        for name in ("host", "port", "token"):
            if click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise CommandError(
                    f"--{name} needs --http: without it no port is open; add it: oakleaf mcp --http"
                )
    file = shadowing_file()
    if file is not None:
        raise CommandError(f"{file} hides the Python package mcp; rename that file")
    from oakleaf_mcp.serving import HttpServer, serve_stdio

    sessions = location.open_or_create()
    if not http:
        serve_stdio(sessions)
        return
    try:
        web = HttpServer(sessions, host, port, token)
    except OSError as error:
        raise CommandError(
            f"cannot listen on {host}:{port}: {error.strerror}; name another with --port or --host"
        ) from None

    def ready() -> None:
        echo(web.address)
        notify(f"serving {location.display_url}, read only; Ctrl-C stops it")

    web.run(ready)
