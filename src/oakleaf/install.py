"""How to install more of this very Oakleaf: the one place where an install line is made.

The names are not published yet. So a line leads back to where this Oakleaf came from, its checkout or its wheel, and never
to what a package index may hold under the same name. Does not know what an extra is for.
"""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

CHECKOUT = Path("/path/to/oakleaf")
PLUGINS_OF = {
    "postgres": ("postgres",),
    "absurd": ("postgres",),
    "server": ("server",),
    "lab": ("lab",),
    "importers": ("importers",),
    "redis": ("importers",),
    "zstd": ("importers",),
    "record": ("record",),
    "mcp": ("mcp",),
    "workspace": ("workspace",),
    "langgraph": ("frameworks", "importers"),
    "openai-agents": ("frameworks",),
    "claude-agent": ("frameworks", "importers"),
    "adk": ("frameworks", "importers"),
    "pydantic-ai": ("frameworks",),
}
"""The library's extras with distributions of their own, and the folders in `plugins/`."""

EXTRAS_OF_NAMES = {
    "oakleaf.stores": {"postgresql": "postgres", "postgres": "postgres"},
    "oakleaf.importers": {
        **dict.fromkeys(
            ("adk", "chat", "chatgpt", "claude-ai", "claude-code", "cline", "codex"), "importers"
        ),
        **dict.fromkeys(("copilot-cli", "droid", "gemini-cli", "goose", "inspect", "langgraph"), "importers"),
        **dict.fromkeys(("llm", "openai-agents", "opencode", "pi", "qwen-code", "roo-code"), "importers"),
        "redis": "redis",
    },
    "oakleaf.exports": {"html": "server"},
    "oakleaf.tools": {"mcp": "mcp", "workspace": "workspace"},
    "oakleaf.tasks": {"oakleaf-lab-cell": "lab"},
    "oakleaf.verbs": {
        "serve": "server",
        "enqueue": "absurd",
        "worker": "absurd",
        "record": "record",
        "lab": "lab",
        "lab.cohort": "lab",
        "lab.show": "lab",
        "test": "lab",
        "mcp": "mcp",
        "import.watch": "importers",
        "doctor.folder": "importers",
    },
}
"""The names added by this project's plugins, for the hint of an error. The plugins' own metadata decide."""


def extra_of(group: str, name: str) -> str | None:
    """Return the extra with a group's name; None if no plugin of this project has the name."""
    return EXTRAS_OF_NAMES.get(group, {}).get(name)


def install_line(extra: str) -> str:
    """Return the command to add an extra: `pip install '/path/to/oakleaf[server]' '/path/to/oakleaf/plugins/server'`."""
    origin, names = find_origin() or CHECKOUT, PLUGINS_OF.get(extra, ())
    if origin.suffix == ".whl":
        added = [origin.with_name(origin.name.replace("oakleaf-", f"oakleaf_{name}-", 1)) for name in names]
    else:
        added = [origin / "plugins" / name for name in names]
    return " ".join(["pip install", f"'{origin}[{extra}]'", *(f"'{path}'" for path in added)])


def find_origin() -> Path | None:
    """Return the checkout or the wheel of the installed Oakleaf; None if the installer recorded neither."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        written = distribution("oakleaf").read_text("direct_url.json")
    except PackageNotFoundError:
        written = None
    url = urlsplit(json.loads(written)["url"]) if written else None
    return Path(url2pathname(url.path)) if url is not None and url.scheme == "file" else None
