"""Who may ask: the right Host, the secret that a page sends, the proxy that names an owner, no foreign write.

Pages and scripts hold nothing of a store, so anyone may load them. The data needs a header with the secret. A page
keeps the secret in its browser's storage, which belongs to one scheme, host and port. There is no cookie: a browser
sends a cookie to every port of a host.

Every response carries the same strict headers. A page may run the inspector's own scripts and nothing else, may not
make markup of text, and may not be framed.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct, field
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response

__all__ = ["ENTER", "HEADERS", "TOKEN", "Access", "Guard"]

TOKEN = "x-tape-token"
"""The header in which a page sends the secret, or first the token of the link."""
ENTER = "/enter"
"""The address that gives the secret for the token of the link."""

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "vary": "accept",
}

App = Callable[[Any, Any, Any], Awaitable[None]]


class Access(Struct, kw_only=True):
    """What a server lets in."""

    hosts: frozenset[str]
    """The names and ports under which it may be asked for."""
    write: bool = False
    proxy: str | None = None
    """The address of the proxy that has checked who asks, and names the owner in ``owner_header``."""
    owner_header: str | None = None
    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Opens the inspector once; None when it has."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What a page has to send for any data, once it came with the token."""
    opened: Callable[[], object] | None = None
    """Is called when the token was used."""

    def redeem(self, token: str) -> bool:
        """Whether this is the token; it opens once."""
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = None
        if self.opened is not None:
            self.opened()
        return True


class Guard:
    """An ASGI application in front of two others: pages for anyone, and data for those who may have it."""

    def __init__(self, pages: App, data: App, access: Access) -> None:
        self._pages = pages
        self._data = data
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, give out the secret, or pass the request on."""
        if scope["type"] == "websocket":
            # Nothing is served over one, so none gets past the checks below.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._data(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                named = {name for name, _ in message["headers"]}
                added = {"cache-control": "no-store", **HEADERS}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in added.items() if name.encode() not in named),
                ]
            await send(message)

        headers = Headers(scope=scope)
        refused = self._host(headers) or self._origin(scope, headers) or self._proxy(scope, headers)
        if refused is None and _is_page(scope, headers):
            await self._pages(scope, receive, send_with_headers)
            return
        response = refused or self._person(scope, headers) or self._method(scope)
        await (response or self._data)(scope, receive, send_with_headers)

    def _host(self, headers: Headers) -> Response | None:
        """Refuse a name that was made to lead here, as by DNS rebinding."""
        if [host.lower() for host in headers.getlist("host")] not in [[host] for host in self._access.hosts]:
            return PlainTextResponse("the inspector does not answer to this host name; use the printed link", 421)
        return None

    def _origin(self, scope: Any, headers: Headers) -> Response | None:
        """Refuse what another page, also one from another port of this machine, makes the browser load or send."""
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
        reading = scope["method"] in ("GET", "HEAD")
        if site not in ("none", "same-origin") and not (reading and mode == "navigate" and _is_page(scope, headers)):
            return PlainTextResponse("only a page of this inspector may request this", 403)
        mine = {f"{scheme}://{host}" for scheme in ("http", "https") for host in self._access.hosts}
        if scope["method"] == "POST" and headers.get("origin") not in mine:
            return PlainTextResponse("a write must come from a page of this inspector", 403)
        return None

    def _proxy(self, scope: Any, headers: Headers) -> Response | None:
        """Refuse what does not come through the proxy, if there is one; note the owner that it names."""
        access, state = self._access, scope.setdefault("state", {})
        state["owner"] = None
        if access.proxy is None or access.owner_header is None:
            return None
        owners = headers.getlist(access.owner_header)
        if (scope.get("client") or ("",))[0] != access.proxy or len(owners) != 1 or not owners[0]:
            return PlainTextResponse("requests must come through the proxy and name exactly one owner", 403)
        state["owner"] = owners[0]
        return None

    def _person(self, scope: Any, headers: Headers) -> Response | None:
        """Give the secret for the token. Refuse a request that has neither and does not come through the proxy."""
        access, shown = self._access, headers.get(TOKEN, "")
        if access.proxy is not None:
            return None
        if scope["path"] == ENTER and scope["method"] == "POST":
            return JSONResponse({"secret": access.secret}) if access.redeem(shown) else _unknown("was already used")
        if not hmac.compare_digest(shown.encode(), access.secret.encode()):
            return _unknown("is needed")
        return None

    def _method(self, scope: Any) -> Response | None:
        """Refuse every write on a server that only reads."""
        if scope["method"] in ("GET", "HEAD") or (self._access.write and scope["method"] == "POST"):
            return None
        return PlainTextResponse("this inspector is read-only", 405, {"allow": "GET, HEAD"})


def _is_page(scope: Any, headers: Headers) -> bool:
    """Whether a request is for a page or one of its files, which hold nothing of a store."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    return bool(scope["path"].startswith("/static/")) or "text/html" in headers.get("accept", "")


def _unknown(why: str) -> Response:
    return PlainTextResponse(
        f"The link that `tape serve` printed {why}. If the inspector is open in another tab, reload this one; "
        "otherwise start `tape serve` again.\n",
        401,
    )
