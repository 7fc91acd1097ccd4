"""Read `data:` URLs, in which several tools store images."""

from __future__ import annotations

from ..core.messages import Attachment
from ..errors import BoughError
from ..wire.parsing import parse_base64


def parse_data_url(url: object, name: object = None) -> Attachment | None:
    """Return the bytes of a base64 `data:` URL; None for anything else."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, _, data = url[len("data:") :].partition(",")
    mime, *options = head.split(";")
    if "base64" not in options:
        return None
    try:
        return parse_base64(data, mime or "application/octet-stream", name)
    except BoughError:
        return None
