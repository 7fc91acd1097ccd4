"""The servers behind the proxy: one prefix of its address for each, and which of their paths are calls of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from oakleaf.errors import InvalidArgument

_GEMINI_CALL = re.compile(r"/models/([^/:]+):(?:stream)?[gG]enerateContent")


class Upstream(Struct, frozen=True):
    """A server for requests below a prefix."""

    name: str
    prefix: str
    variables: tuple[str, ...]
    """The environment variables by which programs find its address."""
    url: str
    login_url: str | None = None
    """Where requests of a ChatGPT login go, if others go to the vendor's own address."""
    version: str = ""
    """What is missing before `/messages`: some programs have it in their base URL, and others add it to each path."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(self.name, self.url, "an address that begins with http:// or https://")

    @property
    def display_url(self) -> str:
        """The address without credentials."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("https:")

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or (443 if self.is_tls else 80)

    @property
    def host_header(self) -> bytes:
        return urlsplit(self.url).netloc.rpartition("@")[2].encode()

    def target(self, path: str) -> str:
        """Return the path at the server."""
        version = self.version if path.startswith("/messages") else ""
        return (urlsplit(self.url).path.rstrip("/") + version + path) or "/"

    def serving(self, account: bytes) -> Upstream:
        """Return the upstream of a request; `account` names the account of a ChatGPT login, if any."""
        return replace(self, url=self.login_url) if account and self.login_url else self


_VENDORS = (
    ("anthropic", "/anthropic", ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), "https://api.anthropic.com"),
    ("openai", "/openai/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE"), "https://api.openai.com/v1"),
    ("gemini", "/gemini", ("GOOGLE_GEMINI_BASE_URL",), "https://generativelanguage.googleapis.com"),
)
_LOGIN_URL = "https://chatgpt.com/backend-api/codex"


def find_upstreams(
    environment: Mapping[str, str], urls: Mapping[str, str] | None = None
) -> tuple[Upstream, ...]:
    """Return the upstream of each vendor: as given in `urls`, else where the environment points, else the vendor's own."""
    urls = urls or {}
    unknown = set(urls) - {name for name, *_ in _VENDORS}
    if unknown:
        names = ", ".join(name for name, *_ in _VENDORS)
        raise InvalidArgument("upstream", sorted(unknown)[0], f"one of {names}")
    return tuple(
        _upstream(name, prefix, variables, urls.get(name), _first(environment, variables), url)
        for name, prefix, variables, url in _VENDORS
    )


def _upstream(
    name: str, prefix: str, variables: tuple[str, ...], given: str | None, present: str | None, vendor: str
) -> Upstream:
    upstream = Upstream(name, prefix, variables, given or present or vendor)
    if name == "openai" and upstream.url == vendor:
        return replace(upstream, login_url=_LOGIN_URL)
    if name == "anthropic" and (given or not present) and not upstream.target("").endswith("/v1"):
        return replace(upstream, version="/v1")  # the program's own address is complete for the program
    return upstream


def child_environment(
    environment: Mapping[str, str], address: str, upstreams: tuple[Upstream, ...]
) -> dict[str, str]:
    """Return the environment for a program to find the proxy instead of the vendors."""
    variables = {
        variable: address + upstream.prefix for upstream in upstreams for variable in upstream.variables
    }
    hosts = ",".join(filter(None, [environment.get("NO_PROXY") or environment.get("no_proxy"), "127.0.0.1"]))
    return {**environment, **variables, "NO_PROXY": hosts, "no_proxy": hosts}


def call_provider(path: str) -> tuple[str, str | None] | None:
    """Return the wire format of a model call's path, with the path's model if named; None for other paths."""
    path = path.partition("?")[0].rstrip("/")
    if path.endswith("/chat/completions"):
        return "openai-chat", None
    if path.endswith("/responses"):
        return "openai", None
    if path.endswith("/messages") and "/threads/" not in path:  # those of a thread are OpenAI's
        return "anthropic", None
    match = _GEMINI_CALL.search(path)
    return None if match is None else ("gemini", match[1])


def _first(environment: Mapping[str, str], variables: tuple[str, ...]) -> str | None:
    return next(filter(None, map(environment.get, variables)), None)
