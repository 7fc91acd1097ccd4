"""`oakleaf headlines`."""

from __future__ import annotations

import click

from oakleaf.cli.terminal import StoreLocation, echo, pass_location


@click.command()
@click.option("--limit", default=10, show_default=True, help="How many sessions.")
@pass_location
def headlines(location: StoreLocation, limit: int) -> None:
    """Print the first words of the latest sessions."""
    store = location.open()
    rows = store.sessions(limit=limit, order="active").sessions
    for session_id, heading in store.headings(rows).items():
        echo(f"{session_id}  {heading}")
