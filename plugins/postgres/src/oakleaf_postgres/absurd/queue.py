"""The queue of Oakleaf's tasks."""

DEFAULT_QUEUE = "oakleaf"
"""Oakleaf's own: a worker that claims a task of another program puts it off by 15 to 30 seconds."""


def queue_tables(queue: str) -> dict[str, str]:
    """Return the tables of a queue in Absurd's schema, quoted, by the names that our SQL has for them."""
    from psycopg import sql  # not above: stores without PostgreSQL import this module, too

    names = ("tasks", "runs", "checkpoints")
    return {name: sql.Identifier(f"{name[0]}_{queue}").as_string(None) for name in names}
