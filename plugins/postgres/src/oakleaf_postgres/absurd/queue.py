"""The tables of a queue."""

from psycopg import sql


def queue_tables(queue: str) -> dict[str, str]:
    """Return the tables of a queue in Absurd's schema, quoted, by the names in our SQL."""
    names = ("tasks", "runs", "checkpoints")
    return {name: sql.Identifier(f"{name[0]}_{queue}").as_string(None) for name in names}
