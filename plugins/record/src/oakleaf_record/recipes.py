"""How programs find the proxy that look further than the usual variables: one entry each, and what its own files say.

Knows the programs' arguments, variables and configuration files. Reads them and writes none.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

Variables = Mapping[str, str]


class Recipe(Struct, frozen=True):
    arguments: tuple[str, ...] = ()
    """Written behind the program's name. `{address}` is the address of the proxy."""
    variables: tuple[tuple[str, str], ...] = ()
    """Set unless the environment has them."""
    elsewhere: tuple[str, ...] = ()
    """Settings with which the program calls its model by a way that no proxy is on."""
    configured: Callable[[Variables], dict[str, str]] = lambda environment: {}
    """Reads the program's own files; returns settings, and addresses as variables."""

    def settings(self, environment: Variables) -> dict[str, str]:
        """Return the environment in the program's reading."""
        return {**environment, **self.configured(environment)}

    def obstacle(self, environment: Variables) -> str | None:
        """Return the setting between the program's calls and the proxy; None without an obstacle."""
        settings = self.settings(environment)
        set_ = (name for name in self.elsewhere if settings.get(name, "").lower() not in ("", "0", "false"))
        name = next(set_, None)
        return None if name is None else f"{name}={settings[name]}"

    def apply(
        self, command: tuple[str, ...], environment: Variables, address: str
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return command and environment for the program to find the proxy."""
        arguments = (word.replace("{address}", address) for word in self.arguments)
        variables = {name: value.replace("{address}", address) for name, value in self.variables}
        return (command[0], *arguments, *command[1:]), {**variables, **environment}


def find_recipe(command: tuple[str, ...]) -> Recipe:
    return _RECIPES.get(PurePath(command[0]).stem.lower(), Recipe())


def _claude(environment: Variables) -> dict[str, str]:
    folder = Path(environment.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
    files = (folder / "settings.json", Path(".claude/settings.json"), Path(".claude/settings.local.json"))
    variables: dict[str, Any] = {}
    for file in files:
        variables |= _table(_read(file, json.loads), "env")
    return {name: value for name, value in variables.items() if isinstance(value, str)}


def _codex(environment: Variables) -> dict[str, str]:
    """Codex reads the address from the file alone."""
    folder = Path(environment.get("CODEX_HOME") or Path.home() / ".codex")
    config = _read(folder / "config.toml", tomllib.loads)
    provider = str(config.get("model_provider") or "openai")
    return {
        "OPENAI_BASE_URL": str(config.get("openai_base_url") or ""),
        "OPENAI_API_BASE": "",
        "model_provider": "" if provider == "openai" else provider,
    }


def _gemini(_: Variables) -> dict[str, str]:
    settings = _read(Path.home() / ".gemini" / "settings.json", json.loads)
    login = str(_table(_table(settings, "security"), "auth").get("selectedType") or "gemini-api-key")
    return {"selectedType": "" if login == "gemini-api-key" else login}


def _opencode(environment: Variables) -> dict[str, str]:
    """An address in opencode's files wins over ours: a found address is enough, as comments make the files
    unreadable here.
    """
    folder = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "opencode"
    files = [at / f"opencode.{kind}" for at in (folder, Path()) for kind in ("json", "jsonc")]
    texts = [(str(file), _text(file)) for file in files]
    texts.append(("OPENCODE_CONFIG_CONTENT", environment.get("OPENCODE_CONFIG_CONTENT", "")))
    return {"baseURL": next((name for name, text in texts if "baseURL" in text), "")}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _read(file: Path, decode: Callable[[str], Any]) -> dict[str, Any]:
    """Read a file; a file unreadable for the program, too, says nothing."""
    try:
        value = decode(_text(file))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _table(value: dict[str, Any], name: str) -> dict[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


_RECIPES = {
    "claude": Recipe(
        arguments=("--settings", '{"env": {"ANTHROPIC_BASE_URL": "{address}/anthropic"}}'),
        elsewhere=("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY"),
        configured=_claude,
    ),
    "codex": Recipe(
        arguments=("-c", 'openai_base_url="{address}/openai/v1"'),
        elsewhere=("model_provider",),
        configured=_codex,
    ),
    "gemini": Recipe(
        elsewhere=("selectedType", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"), configured=_gemini
    ),
    "opencode": Recipe(
        variables=(
            (
                "OPENCODE_CONFIG_CONTENT",
                '{"provider": {"google": {"options": {"baseURL": "{address}/gemini/v1beta"}}}}',
            ),
        ),
        elsewhere=("baseURL",),
        configured=_opencode,
    ),
    "aider": Recipe(variables=(("GEMINI_API_BASE", "{address}/gemini/v1beta"),)),
}
"""Other programs need no more than the variables: llm, and those on the vendors' SDKs."""
