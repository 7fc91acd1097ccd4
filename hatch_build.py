"""Metadata that only the place of the build knows: a release is linked to the repository whose workflow makes it."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RepositoryLinks(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("GITHUB_REPOSITORY")
        address = f"{os.environ.get('GITHUB_SERVER_URL')}/{repository}"
        files = {
            "Source": "",
            "Documentation": "/tree/main/docs",
            "Changelog": "/blob/main/CHANGELOG.md",
            "Issues": "/issues",
        }
        metadata["urls"] = {name: address + path for name, path in files.items()} if repository else {}
