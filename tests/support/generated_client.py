"""A Python client that is generated from the description of a server."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints


class GeneratedClient:
    """The package that openapi-python-client writes into a folder, which must be on the path of Python."""

    def __init__(self, description: bytes, folder: Path, name: str) -> None:
        (folder / "openapi.json").write_bytes(description)
        (folder / "config.yaml").write_text("post_hooks: []")
        generator = Path(sys.executable).with_name("openapi-python-client")
        options = ["--path", "openapi.json", "--config", "config.yaml", "--meta", "none", "--fail-on-warning"]
        subprocess.run(
            [generator, "generate", *options, "--output-path", name],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        self.name = name

    @property
    def models(self) -> ModuleType:
        return import_module(f"{self.name}.models")

    def operation(self, tag: str, name: str) -> Any:
        return import_module(f"{self.name}.api.{tag}.{name}")

    def call(self, url: str, operation: str, *args: object, **options: object) -> Any:
        """Call `TAG.NAME` and return what it answers."""
        with import_module(self.name).Client(base_url=url, timeout=30) as client:
            return self.operation(*operation.split(".")).sync(*args, client=client, **options)

    def call_with(self, url: str, operation: str, values: dict[str, Any]) -> Any:
        """Call an operation with JSON values, each put where the generated function takes it."""
        hints = get_type_hints(self.operation(*operation.split(".")).sync)
        names = {hint.rstrip("_"): hint for hint in hints}  # `from_` is `from`
        given = {
            names[name]: _typed(hints[names[name]], values[name]) for name in names.keys() & values.keys()
        }
        if "body" in hints:
            body = next(kind for kind in _kinds(hints["body"]) if hasattr(kind, "from_dict"))
            given["body"] = body.from_dict({name: values[name] for name in values.keys() - names.keys()})
        return self.call(url, operation, **given)


def _typed(hint: Any, value: Any) -> Any:
    enums = [kind for kind in _kinds(hint) if isinstance(kind, type) and issubclass(kind, Enum)]
    return enums[0](value) if enums else value


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)
