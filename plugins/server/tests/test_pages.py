"""Pages that plugins add to the viewer: found by entry points, answered under /api, and left out if they are broken."""

from __future__ import annotations

import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import oakleaf
from oakleaf import plugins
from oakleaf.store import Store
from oakleaf_server.truncate import MAX_RESPONSE
from support.page_plugin import FILES, GARDEN, write_plugin
from support.server import LocalServer

OPEN = "export function openPage() { return { element: document.createElement('main') }; }\n"
_bodies = itertools.count(2_000_001)


Install = Callable[..., None]


@pytest.fixture
def store() -> Iterator[Store]:
    with oakleaf.open("memory:") as opened:
        yield opened


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    monkeypatch.syspath_prepend(tmp_path)

    def write(*arguments: Any) -> None:
        write_plugin(tmp_path, *arguments)
        plugins.providers.cache_clear()

    known = set(sys.modules)
    yield write
    for name in set(sys.modules) - known:
        if name.endswith("_plugin"):
            del sys.modules[name]
    monkeypatch.undo()
    plugins.providers.cache_clear()


def serving(store: Store) -> LocalServer:
    """Return a server that reads the installed pages anew."""
    server = LocalServer(
        store, token="service", client_tokens={"ann": "ann-token"}, max_body_bytes=next(_bodies)
    )
    server.client.headers["authorization"] = "Bearer service"
    return server


@pytest.fixture
def garden(install: Install, store: Store) -> Iterator[LocalServer]:
    install("garden_plugin", GARDEN, FILES, "garden")
    with serving(store) as server:
        yield server


class TestRoutes:
    def test_a_page_answers_under_its_name(self, garden: LocalServer, store: Store) -> None:
        store.start("gardener")
        bed = garden.get("/api/garden/beds/roses")
        assert bed == {"schema_version": 1, "name": "roses", "sessions": 1}
        beds = garden.get("/api/garden", first=298)
        assert [each["name"] for each in beds["beds"]] == ["bed 298", "bed 299"]

    def test_errors_of_a_page_are_problems(self, garden: LocalServer) -> None:
        for path, status in (
            ("/api/garden/beds/none", 404),
            ("/api/garden?first=-1", 400),
            ("/api/garden?frist=1", 400),
            ("/api/garden/other", 404),
        ):
            reply = garden.client.get(path)
            assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")

    def test_clients_may_not_ask_a_page(self, garden: LocalServer) -> None:
        headers = {"authorization": "Bearer ann-token"}
        assert garden.client.get("/api/garden", headers=headers).status_code == 403
        assert garden.client.get("/api", headers=headers).json()["pages"] == []

    def test_no_answer_of_a_page_is_too_large(self, garden: LocalServer) -> None:
        reply = garden.client.get("/api/garden", params={"size": 100_000})
        beds = reply.json()
        assert len(reply.content) <= MAX_RESPONSE
        assert 0 < len(beds["beds"]) < beds["total"] == 300
        assert all(set(each) == {"name", "text"} for each in beds["beds"])
        assert beds["omitted_chars"] > 28_000_000

    def test_the_api_description_has_the_routes(self, garden: LocalServer) -> None:
        schema = garden.client.get("/openapi.json").json()
        operation = schema["paths"]["/api/garden"]["get"]
        assert (operation["operationId"], operation["summary"]) == ("garden_beds", "List the beds")
        first = next(one for one in operation["parameters"] if one["name"] == "first")
        assert (first["schema"]["minimum"], first["description"]) == (0, "Index of the first bed")
        assert set(schema["components"]["schemas"]["Bed"]["properties"]) >= {"name", "schema_version"}
        assert {"name": "garden", "description": "Garden"} in schema["tags"]


class TestFiles:
    def test_a_page_is_a_script_of_its_own(self, garden: LocalServer) -> None:
        (link,) = (one for one in garden.get("/api")["pages"] if one["name"] == "garden")
        script = garden.client.get(link["script"])
        assert script.headers["cache-control"].endswith("immutable")
        assert "const $garden$words_js =" in script.text
        assert "const $dom_js =" not in script.text
        index = garden.client.get("/garden/some.id")
        assert index.status_code == 200
        viewer = next(part for part in index.text.split('"') if part.endswith("viewer.js"))
        assert f"import {{ $api_js, $dom_js }} from '{viewer}';" in script.text
        style = next(part for part in index.text.split('"') if part.endswith("viewer.css"))
        assert FILES["garden.css"] in garden.client.get(style).text


BROKEN = {
    "raises": ("raise RuntimeError('frost')", FILES, "importing broken_plugin raised RuntimeError: frost"),
    "no module": ("import not_there", FILES, "needs not_there"),
    "no value": ("", FILES, "has no attribute 'page'"),
    "nonsense": ("page = 7", FILES, "it is int, not a Page of oakleaf.ext"),
    "no file": (GARDEN, {}, "garden.css"),
    "no module file": (GARDEN, {"garden.css": ""}, "there is no module broken/garden_page.js"),
    "no function": (
        GARDEN,
        {**FILES, "garden_page.js": "export const a = 1;\n"},
        "broken/garden_page.js exports no openPage",
    ),
    "unknown import": (
        GARDEN,
        {**FILES, "garden_page.js": f'import {{ gone }} from "../dom.js";\n{OPEN}'},
        "dom.js of the viewer exports no gone",
    ),
    "foreign import": (
        GARDEN,
        {**FILES, "garden_page.js": f'import {{ root }} from "../offline.js";\n{OPEN}'},
        "offline.js is no module that main.js of the viewer needs",
    ),
    "path without parameter": (
        GARDEN.replace("{name}", "{title}"),
        FILES,
        "bed has no parameter 'title', which its path has",
    ),
    "no answer type": (GARDEN.replace("-> Bed:", ":"), FILES, "bed does not say that it returns a Struct"),
    "known answer type": (
        GARDEN.replace("Beds", "SessionList"),
        FILES,
        "beds returns SessionList, and the server has a type of that name",
    ),
}


class TestBrokenPages:
    @pytest.mark.parametrize("kind", BROKEN)
    def test_a_broken_page_is_left_out_and_named(
        self, kind: str, install: Install, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        module, files, words = BROKEN[kind]
        module = module.replace("garden_plugin", "broken_plugin")
        install("broken_plugin", module, files, "broken")
        install("garden_plugin", GARDEN, FILES, "garden")
        with caplog.at_level(logging.WARNING, "oakleaf.server"), serving(store) as server:
            names = [page["name"] for page in server.get("/api")["pages"]]
            assert "garden" in names
            assert "broken" not in names
            assert server.client.get("/openapi.json").status_code == 200
        assert "page 'broken' is left out" in caplog.text
        assert words in caplog.text
        assert "broken-plugin 1.0" in caplog.text

    @pytest.mark.parametrize("name", ["sessions", "s", "api", "assets", "login", "Upper", "a b"])
    def test_a_page_may_not_take_an_address_of_the_server(
        self, name: str, install: Install, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        install("garden_plugin", GARDEN, FILES, name)
        with caplog.at_level(logging.WARNING, "oakleaf.server"), serving(store) as server:
            assert name not in [page["name"] for page in server.get("/api")["pages"]]
            assert "sessions" in server.get("/api/sessions")
        assert f"page {name!r} is left out" in caplog.text

    def test_a_route_that_fails_is_an_internal_error(self, install: Install, store: Store) -> None:
        module = GARDEN.replace("return Bed(name, len(list(store.all_sessions())))", "return 1 / 0")
        install("garden_plugin", module, FILES, "garden")
        with serving(store) as server:
            reply = server.client.get("/api/garden/beds/roses")
            assert (reply.status_code, "reference" in json.loads(reply.content)) == (500, True)
            assert server.get("/api/garden", first=299)["beds"] != []
