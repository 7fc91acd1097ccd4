"""Files that a person names: what a verb writes, and the key of an encrypted store."""

from __future__ import annotations

from pathlib import Path

from oakleaf.errors import InvalidValue


def check_target(target: Path, *, force: bool) -> None:
    """Check, before the work that would be lost, that the target's folder exists and no file is overwritten."""
    if not target.parent.is_dir():
        raise InvalidValue(
            f"cannot write {target}: there is no folder {target.parent}", "create the folder first"
        )
    if target.is_file() and not force:
        raise InvalidValue(f"{target} exists", "--force overwrites it")


def read_key(file: str) -> str:
    """Return the key of an encrypted store: the first line of a file."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"cannot read the key in {file} ({error})") from None
    return lines[0] if lines else ""
