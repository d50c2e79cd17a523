"""What transports of httpx and httpx2 share: a request and its answer as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from tape import AsyncRun, InvalidEntry, Run

__all__ = ["AsyncExchanges", "Exchanges"]

_ABOUT_THE_BODY = {"content-encoding", "content-length", "transfer-encoding"}
"""Headers that do not hold for the body as it is recorded: decoded and whole."""
_READING = {"GET", "HEAD", "OPTIONS"}
"""Methods that change nothing on the server."""


class _Recorded:
    """A transport behind a run."""

    response: Callable[..., Any]

    def __init__(
        self,
        run: Run | AsyncRun,
        inner: Any = None,
        *,
        kind: str = "tool",
        effect: str | None = None,
        name: str = "http",
    ) -> None:
        if kind not in ("model", "tool") or (kind == "model" and effect is not None):
            raise InvalidEntry("kind", 'must be "tool", or "model", which has no effect')
        self._run = run
        self._inner = inner
        self._kind = kind
        self._effect = effect
        self._name = name

    def _wrap(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        """Return the call as one of a model, or of a tool whose effect its method tells if ``effect`` does not."""
        if self._kind == "model":
            return self._run.model(call, name=self._name)
        effect = self._effect or ("read" if method in _READING else "write")
        return self._run.tool(call, name=self._name, effect=effect)

    def _answer(self, data: Any, request: Any) -> Any:
        body = base64.b64decode(data["base64"]) if "base64" in data else data["text"].encode()
        headers = [tuple(header) for header in data["headers"]]
        return self.response(data["status"], headers=headers, content=body, request=request)


class Exchanges(_Recorded):
    """Requests and answers, one after the other."""

    def handle_request(self, request: Any) -> Any:
        """Send a request, or answer it from the recording."""

        def send(method: str, url: str, body: Any) -> Any:
            answer = self._inner.handle_request(request)
            answer.read()
            return _told(answer)

        return self._answer(self._wrap(send, request.method)(**_asked(request, request.read())), request)

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()


class AsyncExchanges(_Recorded):
    """Requests and answers, awaited."""

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request, or answer it from the recording."""

        async def send(method: str, url: str, body: Any) -> Any:
            answer = await self._inner.handle_async_request(request)
            await answer.aread()
            return _told(answer)

        asked = _asked(request, await request.aread())
        return self._answer(await self._wrap(send, request.method)(**asked), request)

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()


def _asked(request: Any, body: bytes) -> dict[str, Any]:
    return {"method": request.method, "url": str(request.url), "body": _body(body)}


def _told(answer: Any) -> dict[str, Any]:
    headers = [[name, value] for name, value in answer.headers.multi_items() if name.lower() not in _ABOUT_THE_BODY]
    told: dict[str, Any] = {"status": answer.status_code, "headers": headers}
    try:
        told["text"] = answer.content.decode()
    except UnicodeDecodeError:
        told["base64"] = base64.b64encode(answer.content).decode()
    return told


def _body(body: bytes) -> Any:
    """Return a body so that two of them can be compared field by field, if it is JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return base64.b64encode(body).decode()
