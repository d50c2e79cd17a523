"""The inspector as an ASGI application: addresses, the data of each page, and the files that draw it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

import tape
from tape.web import acting
from tape.web.addresses import split
from tape.web.guard import Access, Guard
from tape.web.live import Live
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
    "/t/{ref}/context/{seq:seq}": ("context", context.context),
    "/e/{ref}/{seq:seq}": ("entry", entry.entry),
    "/e/{ref}/{seq:seq}/text": ("text", conversation.text_of),
}
"""The pages by their addresses: a browser gets the page there, and its scripts the data."""

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STATIC = {file.name: file.read_bytes() for file in (files("tape.web") / "static").iterdir() if "." in file.name}
"""The files of the pages by their names, so that no name leads out of their folder."""


class _Seq(Convertor[int]):
    """A seq in an address. No tape has one with more digits."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("seq", _Seq())


def inspector(stores: Sequence[Served], access: Access) -> Guard:
    """Return the application that serves these stores to whoever ``access`` lets in."""
    by_name = {served.name: served for served in stores}
    live = Live()
    routes: list[BaseRoute] = []
    for prefix in ("", "/s/{store}"):
        for path, (name, page) in _PAGES.items():
            routes.append(Route(prefix + path, partial(_page, by_name, access, live, name, page)))
        routes.append(Route(f"{prefix}/e/{{ref}}/{{seq:seq}}/raw", partial(_raw, by_name, live)))
        routes.append(Route(f"{prefix}/t/{{ref}}/live", partial(_heads, by_name, live)))
        routes.append(Route(f"{prefix}/health/live", partial(_findings, by_name, live)))
        if access.write:
            routes.append(Route(f"{prefix}/t/{{ref}}/act", partial(_act, by_name, live), methods=["POST"]))
    handlers: Any = {NotThere: _refusal(404), tape.TapeError: _refusal(409), 404: _no_page}
    pages = Starlette(routes=[Route("/static/{name:path}", _file), Route("/{path:path}", _html)])
    return Guard(pages, Starlette(routes=routes, exception_handlers=handlers), access)


def _page_request(stores: dict[str, Served], request: Request) -> tuple[Served, PageRequest]:
    """Return what a request asks for. Raises NotThere for an address that leads nowhere."""
    name = request.path_params.get("store")
    served = next(iter(stores.values())) if name is None else stores.get(name)
    if served is None or (name is not None and not served.base):
        raise NotThere("there is no such store")
    store = served.of(_owner(request))
    ref, seq = request.path_params.get("ref"), request.path_params.get("seq")
    try:
        id, point = ("", None) if ref is None else split(ref)
    except ValueError as error:
        raise NotThere("there is no such tape") from error
    return served, PageRequest(store, dict(request.query_params), id, point if seq is None else seq)


async def _page(
    stores: dict[str, Served], access: Access, live: Live, name: str, page: Page, request: Request
) -> Response:
    served, page_request = _page_request(stores, request)
    data = await live.run(_owner(request), partial(page, page_request))
    listed = [{"name": other.name, "title": other.title, "base": other.base} for other in stores.values()]
    about = {"page": name, "store": served.name, "base": served.base, "stores": listed, "write": access.write}
    return _json(about | data)


async def _raw(stores: dict[str, Served], live: Live, request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    body = await live.run(_owner(request), partial(entry.whole, page_request))
    headers = {"content-disposition": f'attachment; filename="entry-{page_request.point}.json"'}
    return Response(body, media_type="application/json", headers=headers)


async def _heads(stores: dict[str, Served], live: Live, request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    owner = _owner(request)
    chat = await live.run(owner, page_request.chat)
    return live.heads(owner, chat, page_request.number("after", 0, 0, 2**53), request)


async def _findings(stores: dict[str, Served], live: Live, request: Request) -> Response:
    served, page_request = _page_request(stores, request)
    return live.findings(_owner(request), served.name, page_request.store, request)


async def _act(stores: dict[str, Served], live: Live, request: Request) -> Response:
    _, page_request = _page_request(stores, request)
    body = await acting.body_of(request)
    return _json(await live.run(_owner(request), partial(acting.act, page_request, body)))


def _owner(request: Request) -> str | None:
    owner: str | None = request.scope["state"]["owner"]
    return owner


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _html(request: Request) -> Response:
    """Return the page that asks for its data: the same at every address."""
    return Response(_STATIC["page.html"], media_type=_TYPES[".html"])


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        return PlainTextResponse("there is no such file", 404)
    kind = _TYPES[name[name.rindex(".") :]]
    return Response(_STATIC[name], media_type=kind, headers={"cache-control": "no-cache"})


def _refusal(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        return _json({"error": str(error)}, status)

    return refuse


async def _no_page(request: Request, error: Exception) -> Response:
    return _json({"error": "there is no such page"}, 404)
