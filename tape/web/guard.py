"""Who may ask: the right Host, the token that becomes a cookie, the proxy that names an owner, no foreign write.

Every response carries the same strict headers. A page may run the inspector's own scripts and nothing else, may not
make markup of text, and may not be framed.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Struct, field
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response

__all__ = ["CSRF", "HEADERS", "Access", "Guard"]

CSRF = "x-tape-csrf"
"""The header in which a page proves that a write comes from it."""

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
    cookie: str = "tape"
    token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32))
    """Opens the inspector once; None when it has."""
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What the cookie of whoever came with the token holds."""

    @property
    def csrf(self) -> str:
        """What a page has to show with a write."""
        return hmac.new(self.secret.encode(), b"csrf", "sha256").hexdigest()

    def redeem(self, token: str) -> bool:
        """Whether this is the token; it opens once."""
        if self.token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return False
        self.token = None
        return True


class Guard:
    """An ASGI application in front of another: what is refused here never reaches a page."""

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, let whoever has the token in, or pass the request on."""
        if scope["type"] == "websocket":
            # Nothing is served over one, and none is to come around what is checked here.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
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
        response = (
            self._host(headers) or self._page(headers) or self._person(scope, headers) or self._method(scope, headers)
        )
        await (response or self._app)(scope, receive, send_with_headers)

    def _host(self, headers: Headers) -> Response | None:
        """Refuse a name that was made to lead here, as by DNS rebinding."""
        if [host.lower() for host in headers.getlist("host")] not in [[host] for host in self._access.hosts]:
            return PlainTextResponse("the inspector does not answer to this host name", 421)
        return None

    def _page(self, headers: Headers) -> Response | None:
        """Refuse what a page from elsewhere, also from another port of this machine, has the browser load."""
        elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("only a page of this inspector may request this", 403)
        return None

    def _person(self, scope: Any, headers: Headers) -> Response | None:
        """Refuse who has neither cookie nor token, or does not come through the proxy; note the owner."""
        access, state = self._access, scope.setdefault("state", {})
        state["owner"] = None
        if access.proxy is not None and access.owner_header is not None:
            owners = headers.getlist(access.owner_header)
            if (scope.get("client") or ("",))[0] != access.proxy or len(owners) != 1 or not owners[0]:
                return PlainTextResponse("requests must come through the proxy and name exactly one owner", 403)
            state["owner"] = owners[0]
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens and scope["method"] == "GET" and access.redeem(tokens[0]):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # With two slashes at its front it would be the name of another host.
            path = "/" + quote(scope["path"], safe="/~@").lstrip("/")
            response = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(access.cookie, access.secret, httponly=True, samesite="strict", path="/")
            return response
        if not self._known(headers):
            return _unknown(tokens != [])
        return None

    def _known(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self._access.secret.encode())

    def _method(self, scope: Any, headers: Headers) -> Response | None:
        """Refuse every write on a server that only reads, and one that another page had the browser send."""
        if scope["method"] in ("GET", "HEAD"):
            return None
        if not self._access.write or scope["method"] != "POST":
            return PlainTextResponse("this inspector is read-only", 405, {"allow": "GET, HEAD"})
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        mine = {f"{scheme}://{host}" for scheme in ("http", "https") for host in self._access.hosts}
        shown = headers.get(CSRF, "").encode()
        if origin not in mine or site != "same-origin" or not hmac.compare_digest(shown, self._access.csrf.encode()):
            return PlainTextResponse("a write must come from a page of this inspector", 403)
        return None


def _unknown(spent: bool) -> Response:
    why = "This link was already used." if spent else "This page needs the link that `tape serve` printed."
    return PlainTextResponse(
        f"{why} If the page is open in a tab, reload that tab; otherwise start `tape serve` again.\n", 401
    )
