"""The experiment file: a lab run in TOML.

    cohort = ["agent:support after:7d"]
    prompt = "@new.txt"                 # the change: also model, prompt_patch, tools, [options]
    fail_if = ["tool_changed > baseline + 5%"]
    max_cost = 5                        # dollars

    [baseline]
    model = "openai:MODEL"              # default: the one that each session ran with

Every path in the file is relative to the file. `ExperimentFile` is the one declaration of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from oakleaf.cli.terminal import (
    CommandError,
    known_model,
    merge,
    merge_changes,
    model_beside,
    read_text,
    read_toml,
    text_beside,
    tool_beside,
)
from oakleaf.core.typed_json import converter

Text = Annotated[str, Meta(min_length=1, description="a text")]
LongText = Annotated[str, Meta(description="a text, or @FILE")]
ModelName = Annotated[str, Meta(min_length=1, description="the name of a model")]
Tools = Annotated[tuple[str, ...], Meta(description="a list of FILE.py, FILE.py:NAME or modules")]
Count = Annotated[int, Meta(ge=1, description="a whole number from 1 on")]


class BaselineTable(Struct, frozen=True, kw_only=True):
    """`[baseline]`: the recorded setup, replayed."""

    model: ModelName | None = None
    tools: Tools | None = None


class JudgeTable(Struct, frozen=True, kw_only=True):
    """`[judge]`: a model that scores each turn from 0 to 1."""

    model: ModelName | None = None
    prompt: LongText | None = None


class ExperimentFile(Struct, frozen=True, kw_only=True):
    """A lab run, as a file, --set and flags describe it."""

    cohort: Annotated[tuple[str, ...], Meta(description="a list of queries, sessions and cohorts")] | None = (
        None
    )
    sample: Count | None = None
    seed: Annotated[int, Meta(description="a whole number")] | None = None
    model: ModelName | None = None
    prompt: LongText | None = None
    prompt_patch: LongText | None = None
    options: Annotated[dict[str, Any], Meta(description="a table of options of the model's calls")] | None = (
        None
    )
    tools: Tools | None = None
    mode: (
        Annotated[Literal["strict", "recorded", "dry"], Meta(description="strict, recorded or dry")] | None
    ) = None
    repeat: Count | None = None
    after_divergence: Annotated[Literal["stop", "continue"], Meta(description="stop or continue")] | None = (
        None
    )
    score: (
        Annotated[tuple[str, ...], Meta(description="a list of FILE.py, FILE.py:NAME or scorers")] | None
    ) = None
    fail_if: Annotated[tuple[str, ...], Meta(description="a list of gates")] | None = None
    max_cost: Annotated[float, Meta(ge=0, lt=1e9, description="an amount of dollars")] | None = None
    workers: Count | None = None
    queue: Text | None = None
    baseline: BaselineTable = BaselineTable()
    judge: JudgeTable = JudgeTable()


_experiment = converter(ExperimentFile)


def read_experiment(
    cohort: Iterable[str], changes: Iterable[str], flags: Mapping[str, Any]
) -> ExperimentFile:
    """Return the experiment of a file, or of a cohort: flags come first, then --set, then the file."""
    files: list[str] = []
    named: list[str] = []
    for one in cohort:
        (files if one.endswith(".toml") else named).append(one)
    if len(files) > 1:
        raise CommandError(f"{' and '.join(files)} are two experiments; name one")
    typed = {name: value for name, value in flags.items() if value not in (None, (), {})}
    if named:
        typed["cohort"] = named
    data = merge(merge_changes(ExperimentFile, changes), typed)
    if files:
        data = merge(_beside(Path(files[0]), read_toml(ExperimentFile, Path(files[0]))), data)
    if not data.get("cohort"):
        raise CommandError("name a COHORT, or an EXPERIMENT.toml that has one")
    return _experiment(_resolved(data))


def _beside(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Return the file's data with paths relative to the file's folder."""
    folder, changed = path.parent, dict(data)
    for name, value in data.items():
        match name:
            case "prompt" | "prompt_patch":
                changed[name] = text_beside(folder, value, f"{path}: {name}")
            case "model":
                changed[name] = model_beside(folder, value)
            case "tools":
                changed[name] = [tool_beside(folder, one) for one in value]
            case "score":
                changed[name] = [tool_beside(folder, one) if ".py" in one else one for one in value]
            case "baseline" | "judge":
                changed[name] = _beside(path, value)
    return changed


def _resolved(data: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the data with the texts of files, and with the models of aliases."""
    resolved = dict(data)
    for name, value in data.items():
        if name in ("prompt", "prompt_patch"):
            resolved[name] = read_text(value, f"{above}{name}")
        elif name == "model":
            resolved[name] = known_model(value, f"{above}{name}")
        elif name in ("baseline", "judge"):
            resolved[name] = _resolved(value, f"{name}.")
    return resolved
