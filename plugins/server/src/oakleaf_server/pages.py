"""Pages that plugins add to the viewer, and their routes under `/api/NAME`.

Finds the pages by entry points of the group `oakleaf.pages`. A page that cannot be used is left out and logged; the viewer
and all other pages work.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args, get_origin

import msgspec
from anyio import to_thread
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from msgspec import UNSET, Meta, Struct, UnsetType

from oakleaf import plugins
from oakleaf.core.pages import Page
from oakleaf.errors import OakleafError
from oakleaf.verbs.schema import components
from oakleaf_server import openapi, schemas
from oakleaf_server.context import ApiRequest, context_and_caller
from oakleaf_server.es_modules import join_page
from oakleaf_server.json_views import SCHEMA_VERSION
from oakleaf_server.offline_page import ENTRY, read_folder
from oakleaf_server.truncate import bounded
from oakleaf_server.verb_routes import verbs

log = logging.getLogger("oakleaf.server")
OPEN = "openPage"
"""What the module of a page exports."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_IN_PATH = re.compile(r"\{(\w+)\}")
_LIMITS = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern", "title", "description")


class AddedPage(Struct, frozen=True):
    """A usable page of a plugin."""

    name: str
    title: str
    style: str
    script: str
    handlers: list[HTTPRouteHandler]


def added_pages(viewer: Mapping[str, str], viewer_url: str, taken: frozenset[str]) -> list[AddedPage]:
    """Return the pages of installed plugins by name. `taken` are the names of addresses that the server has itself."""
    pages = []
    for name in plugins.names(plugins.PAGES):
        try:
            pages.append(_read_page(name, viewer, viewer_url, taken))
        except OakleafError as error:
            log.warning("page %r is left out: %s", name, error)
    return pages


def _read_page(name: str, viewer: Mapping[str, str], viewer_url: str, taken: frozenset[str]) -> AddedPage:
    page = plugins.find(plugins.PAGES, name)
    broken = partial(plugins.broken, plugins.PAGES, name)
    if not isinstance(page, Page):
        raise broken(f"it is {type(page).__name__}, not a Page of oakleaf.ext")
    if not _NAME.fullmatch(name) or name in taken:
        raise broken("the server has this address itself, or the name is no address")
    try:
        files = read_folder(page.folder, f"{name}/")
        handlers = [_handler(name, path, function) for path, function in page.routes.items()]
        style = "".join(files[f"{name}/{file}"] for file in page.styles)
        script = join_page({**viewer, **files}, f"{name}/{page.module}", OPEN, ENTRY, viewer_url)
    except Exception as error:
        raise broken(f"{type(error).__name__}: {error}") from error
    return AddedPage(name, page.title, style, script, handlers)


# -- routes ------------------------------------------------------------------------------------


def _handler(page: str, path: str, function: Callable[..., Struct]) -> HTTPRouteHandler:
    described = signature(function, eval_str=True)
    _, *others = described.parameters.values()
    in_path = set(_IN_PATH.findall(path))
    parameters = [_parameter(one, one.name in in_path) for one in others]
    if missing := in_path - {one.name for one in others}:
        raise ValueError(f"{function.__name__} has no parameter {min(missing)!r}, which its path has")
    result = _answer_type(function.__name__, described.return_annotation)

    async def answer(request: ApiRequest, **given: Any) -> dict[str, Any]:
        context, _ = context_and_caller(request)
        return bounded(await to_thread.run_sync(partial(function, context.store, **given)))

    asked = Parameter("request", Parameter.KEYWORD_ONLY, annotation=ApiRequest)
    described = Signature([asked, *parameters], return_annotation=result)
    answer.__signature__ = described  # type: ignore[attr-defined]
    answer.__annotations__ = {one.name: one.annotation for one in [asked, *parameters]} | {"return": result}
    answer.__name__, answer.__doc__ = f"{page.replace('-', '_')}_{function.__name__}", function.__doc__
    address = _IN_PATH.sub(r"{\1:str}", path)
    return get(f"/api/{page}{address}", tags=[page])(answer)


def _parameter(one: Parameter, is_in_path: bool) -> Parameter:
    annotation: Any = one.annotation
    if is_in_path:
        from_path: Any = FromPath
        return Parameter(one.name, Parameter.KEYWORD_ONLY, annotation=from_path[annotation])
    limits: dict[str, Any] = {}
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        metas = [note for note in notes if isinstance(note, Meta)]
        limits = {
            key: value for meta in metas for key in _LIMITS if (value := getattr(meta, key)) is not None
        }
    return Parameter(
        one.name,
        Parameter.KEYWORD_ONLY,
        default=one.default,
        annotation=Annotated[annotation, QueryParameter(**limits)],
    )


def _answer_type(function: str, result: Any) -> type[Struct]:
    """Return the type of an answer with the fields common to every answer of the server."""
    if not (isinstance(result, type) and issubclass(result, Struct)):
        raise TypeError(f"{function} does not say that it returns a Struct")
    _, components = msgspec.json.schema_components([result])
    if own := sorted(components.keys() & _own_names()):
        raise ValueError(f"{function} returns {own[0]}, and the server has a type of that name")
    fields = [("schema_version", int, SCHEMA_VERSION), ("omitted_chars", int | UnsetType, UNSET)]
    return msgspec.defstruct(result.__name__, fields, bases=(result,), kw_only=True, module=result.__module__)


def _own_names() -> set[str]:
    named = (
        name
        for module in (schemas, openapi)
        for name, value in vars(module).items()
        if isinstance(value, type)
    )
    return {*named, *components(verbs(), "{name}"), "ProblemDetails"}
