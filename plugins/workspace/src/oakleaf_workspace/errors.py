"""The error of files that cannot be restored. `OutOfScope` is one of `oakleaf.errors`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from oakleaf.errors import OakleafError, list_some


class FilesChanged(OakleafError):
    """Files in the way of a rewind were changed elsewhere; nothing was done. `files` are the locations, each
    with
    the reason why it is not restored."""

    http_status = 409

    def __init__(self, files: Sequence[tuple[str, str]]) -> None:
        self.files = tuple(files)
        listed = list_some(
            [f"{PurePath(location).name} ({reason})" for location, reason in files], length=120
        )
        super().__init__(
            f"{len(self.files)} of the files cannot be restored: {listed}",
            "look at them first; oakleaf_workspace.rewind(…, skip_changed=True) leaves them as they are",
            "look at them first; --skip-changed leaves them as they are",
        )
