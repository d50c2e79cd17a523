"""The inspector as an ASGI application: addresses, pages as HTML or JSON, and the files that draw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

import tape
from tape.web import acting, live
from tape.web.addresses import split
from tape.web.guard import Access, Guard
from tape.web.page_request import NotThere, PageRequest
from tape.web.pages import context, conversation, diff, entry, graph, health, log, search, tapes, usage
from tape.web.stores import Served

__all__ = ["inspector"]

Page = Callable[[PageRequest], dict[str, Any]]

_PAGES: dict[str, tuple[str, Page]] = {
    "/": ("tapes", tapes.tapes),
    "/activity": ("activity", tapes.activity),
    "/search": ("search", search.search),
    "/diff": ("diff", diff.diff),
    "/health": ("health", health.health),
    "/t/{ref}": ("conversation", conversation.conversation),
    "/t/{ref}/log": ("log", log.log),
    "/t/{ref}/graph": ("graph", graph.graph),
    "/t/{ref}/usage": ("usage", usage.usage),
    "/t/{ref}/context": ("context", context.context),
    "/t/{ref}/context/{seq:int}": ("context", context.context),
    "/e/{ref}/{seq:int}": ("entry", entry.entry),
    "/e/{ref}/{seq:int}/text": ("text", conversation.text_of),
}
"""The pages by their addresses. Each has its JSON there, too."""

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATIC = files("tape.web") / "static"
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("tape.web"), autoescape=True, undefined=jinja2.StrictUndefined
)


def inspector(stores: Sequence[Served], access: Access) -> Guard:
    """Return the application that serves these stores to whoever ``access`` lets in."""
    by_name = {served.name: served for served in stores}
    routes: list[BaseRoute] = [Route("/static/{name}", _static)]
    for prefix in ("", "/s/{store}"):
        for path, (name, page) in _PAGES.items():
            routes.append(Route(prefix + path, partial(_page, by_name, access, name, page)))
        routes.append(Route(f"{prefix}/e/{{ref}}/{{seq:int}}/raw", partial(_raw, by_name)))
        routes.append(Route(f"{prefix}/t/{{ref}}/live", partial(_live, by_name)))
        routes.append(Route(f"{prefix}/health/live", partial(_examined, by_name)))
        if access.write:
            routes.append(Route(f"{prefix}/t/{{ref}}/act", partial(_act, by_name), methods=["POST"]))
    handlers: Any = {NotThere: _not_there, tape.TapeError: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), access)


def _page_request(stores: dict[str, Served], request: Request) -> tuple[Served, PageRequest]:
    """Return what a request asks for. Raises NotThere for an address that leads nowhere."""
    name = request.path_params.get("store")
    served = next(iter(stores.values())) if name is None else stores.get(name)
    if served is None or (name is not None and not served.base):
        raise NotThere("there is no such store")
    store = served.of(request.scope["state"]["owner"])
    ref, seq = request.path_params.get("ref"), request.path_params.get("seq")
    try:
        id, point = ("", None) if ref is None else split(ref)
    except ValueError as error:
        raise NotThere("there is no such tape") from error
    return served, PageRequest(store, dict(request.query_params), id, point if seq is None else seq)


def _wants_json(request: Request) -> bool:
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


async def _page(stores: dict[str, Served], access: Access, name: str, page: Page, request: Request) -> Response:
    served, page_request = _page_request(stores, request)
    data = await run_in_threadpool(page, page_request)
    content = {"page": name, "store": served.name, "base": served.base, "write": access.write, **data}
    if _wants_json(request):
        return Response(msgspec.json.encode(content), media_type="application/json", headers={"vary": "accept"})
    content["stores"] = [{"name": other.name, "title": other.title, "base": other.base} for other in stores.values()]
    # In a data block only "</script" and "<!--" mean anything, and neither is left.
    block = msgspec.json.encode(content).decode().replace("<", "\\u003c")
    html = _TEMPLATES.get_template("page.html").render(
        title=data["title"], base=served.base, store=served, block=block, csrf=access.csrf if access.write else None
    )
    return HTMLResponse(html, headers={"vary": "accept"})


async def _raw(stores: dict[str, Served], request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    body = await run_in_threadpool(entry.whole, page_request)
    headers = {"content-disposition": f'attachment; filename="entry-{page_request.point}.json"'}
    return Response(body, media_type="application/json", headers=headers)


async def _live(stores: dict[str, Served], request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    return await live.heads(page_request, request)


async def _examined(stores: dict[str, Served], request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    return await live.findings(page_request.store)


async def _act(stores: dict[str, Served], request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    body = await acting.body_of(request)
    receipt = await run_in_threadpool(acting.act, page_request, body)
    return Response(msgspec.json.encode(receipt), media_type="application/json")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    # Only the names that are there, so that no name can lead out of the folder.
    known = {file.name: file for file in _STATIC.iterdir() if file.name.endswith(tuple(_TYPES))}
    if name not in known:
        return PlainTextResponse("there is no such file", 404)
    kind = _TYPES[name[name.rindex(".") :]]
    return Response(known[name].read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})


def _error(request: Request, status: int, why: str) -> Response:
    if _wants_json(request):
        return Response(msgspec.json.encode({"error": why}), status, media_type="application/json")
    html = _TEMPLATES.get_template("error.html").render(status=status, why=why)
    return HTMLResponse(html, status)


async def _not_there(request: Request, error: Exception) -> Response:
    return _error(request, 404, str(error))


async def _refused(request: Request, error: Exception) -> Response:
    return _error(request, 409, str(error))
