"""What a stranger installs: the wheel, made from the source archive, in clean environments of every Python at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv"]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
QUICK_START = """
import oakleaf, sys
with oakleaf.open("agent.db") as store:
    session = store.start("support", [oakleaf.system("You help customers.")])
    result = session.send_sync("Where is order 41?", model=oakleaf.ScriptedModel(["It is lost."]))
    assert result.text == "It is lost."
    assert [entry.message.text for entry in session.transcript()] == ["Where is order 41?", "It is lost."]
optional = {"click", "rich", "psycopg", "litestar", "anthropic", "openai", "yaml"} & set(sys.modules)
assert not optional, optional
print(oakleaf.__version__, "%d.%d" % sys.version_info[:2])
"""


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "OAKLEAF", "VIRTUAL"))
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(  # as the release workflow does; the wheels are made from the source archives
        ["make", "dist", f"DIST={folder}"],
        ROOT,
        GITHUB_SERVER_URL="https://forge.example",
        GITHUB_REPOSITORY="people/oakleaf",
    )
    return folder


def install(dist: Path, place: Path, python: str, extras: str = "") -> Path:
    """Install the wheels without a network: this machine has fetched all that they need for its own environments."""
    (wheel,) = dist.glob("oakleaf-*.whl")
    run([*UV, "venv", "--quiet", "--offline", "--python", python, place / "venv"], place)
    target = place / "venv" / "bin" / "python"
    pip = [*UV, "pip", "install", "--quiet", "--offline", "--python", target, "-c", ROOT / "constraints.txt"]
    run([*pip, "--find-links", dist, f"{wheel}{extras}"], place)
    return target


def pythons() -> list[str]:
    """Return the versions of Python that this machine has."""
    listed = run([*UV, "python", "list", "--only-installed", "--output-format", "json"], ROOT)
    present = {".".join(one["version"].split(".")[:2]) for one in json.loads(listed)}
    return [version for version in VERSIONS if version in present]


def test_every_python_at_hand_runs_the_quick_start_and_the_command_names_its_extra(
    dist: Path, tmp_path: Path
) -> None:
    versions = pythons()
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in versions
    for version in versions:
        place = tmp_path / version
        place.mkdir()
        python = install(dist, place, version)
        assert run([python, "-c", QUICK_START], place).split() == ["0.1.0", version]
    done = subprocess.run([python.parent / "oakleaf", "demo"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (wheel,) = dist.glob("oakleaf-*.whl")
    assert f"pip install '{wheel}[cli]'" in done.stderr
    check_archives(dist)


def test_the_wheels_run_the_code_and_the_commands_of_the_tutorial(dist: Path, tmp_path: Path) -> None:
    python = install(dist, tmp_path, sys.executable, "[cli,server]")
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    blocks = [part.split("```")[0] for part in tutorial.split("```python\n")[1:]]
    (tmp_path / "tutorial.py").write_text("\n".join(blocks))
    run([python, "tutorial.py"], tmp_path)
    shown = tutorial.split("$ export OAKLEAF_STORE=tutorial.db\n")[1].split("```")[0]
    commands = [
        command.split()
        for line in shown.splitlines()
        for command in line.removeprefix("$ ").split("#")[0].split(";")
    ]
    assert commands.pop() == ["oakleaf", "serve"]
    for name, *words in commands:
        assert run([python.parent / name, *words], tmp_path, OAKLEAF_STORE="tutorial.db", HOME=str(tmp_path))


def test_uvx_runs_the_demo_from_a_wheel(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("oakleaf-*.whl")
    uvx = [*UV, "tool", "run", "--offline", "--python", sys.executable, "--from", f"{wheel}[cli]", "oakleaf"]
    cache = run([*UV, "cache", "dir"], tmp_path).strip()
    constraint = str(ROOT / "constraints.txt")
    variables = {"HOME": str(tmp_path), "UV_CACHE_DIR": cache, "UV_CONSTRAINT": constraint}
    done = run([*uvx, "demo", "--folder", "here", "--json"], tmp_path, **variables)
    report = json.loads(done)
    assert report["claims"]
    assert report["passed"], report


def check_archives(dist: Path) -> None:
    """Both hold the licences and no tests, only the core is required, and the links are the repository's."""
    (wheel,), (source,) = dist.glob("oakleaf-*.whl"), dist.glob("oakleaf-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(source) as sources:
        names, source_names = archive.namelist(), sources.getnames()
        metadata = archive.read("oakleaf-0.1.0.dist-info/METADATA").decode()
    assert {
        "oakleaf-0.1.0.dist-info/licenses/LICENSE",
        "oakleaf-0.1.0.dist-info/licenses/THIRD_PARTY.md",
    } <= set(names)
    assert {"oakleaf-0.1.0/README.md", "oakleaf-0.1.0/SECURITY.md", "oakleaf-0.1.0/CHANGELOG.md"} <= set(
        source_names
    )
    assert not [name for name in (*names, *source_names) if "/tests/" in name or "__pycache__" in name]
    assert "Requires-Dist: msgspec" in metadata
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line
    ]
    assert len(required) == 2, required
    assert "Project-URL: Changelog, https://forge.example/people/oakleaf/blob/main/CHANGELOG.md" in metadata
