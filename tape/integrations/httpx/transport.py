"""What transports of httpx and httpx2 share: a request and its answer as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

import tape
from tape import AsyncRun, InvalidEntry, Run
from tape.integrations.seams.rebuilding import rebuilding

__all__ = ["AsyncExchanges", "Exchanges"]

_ABOUT_THE_BODY = {"content-encoding", "content-length", "transfer-encoding"}
"""Headers that do not hold for the body as it is recorded: decoded and whole."""
_LAYOUTS: dict[str, dict[str, Any]] = {
    "compact": {"ensure_ascii": False, "separators": (",", ":")},
    "python": {},
    "indented": {"ensure_ascii": False, "indent": 2},
}
"""How servers write JSON. A body in another layout is kept as text, since a replay answers with the same bytes."""
_WITHHELD = "[redacted]"
_DEEPEST = 100
"""JSON that is nested deeper is kept as text: a tape takes no more than it can check."""
_READING = {"GET", "HEAD", "OPTIONS"}
"""Methods that change nothing on the server."""


class _Answer(Struct):
    """An answer as it is recorded, with its body in one of three forms."""

    status: Annotated[int, Meta(ge=100, le=999)]
    headers: dict[str, str | list[str]]
    json: Any = UNSET
    layout: Literal["compact", "python", "indented"] = "compact"
    base64: str | None = None
    text: str = ""

    def content(self) -> bytes:
        """Return the body."""
        if self.json is not UNSET:
            return json.dumps(self.json, **_LAYOUTS[self.layout]).encode()
        return self.text.encode() if self.base64 is None else base64.b64decode(self.base64)


# msgspec can crash when two threads read a new class first. During the import there is one thread.
msgspec.json.Decoder(_Answer)


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
        redact: Callable[[Any], Any] | Iterable[str] | None = tape.Redact.CREDENTIALS,
    ) -> None:
        if kind not in ("model", "tool") or (kind == "model" and effect is not None):
            raise InvalidEntry("kind", 'must be "tool", or "model", which has no effect')
        self._run = run
        self._inner = inner
        self._kind = kind
        self._effect = effect
        self._name = name
        self._redact = redact

    def _wrap(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        """Return the call as one of a model, or of a tool whose effect its method tells if ``effect`` does not."""
        if self._kind == "model":
            return self._run.model(call, name=self._name, redact=self._redact)
        effect = self._effect or ("read" if method in _READING else "write")
        return self._run.tool(call, name=self._name, effect=effect, redact=self._redact)

    def _answer(self, data: Any, request: Any) -> Any:
        """Return the answer as the client's own type. Raises InvalidEntry for a recorded value that is none."""
        with rebuilding():
            answer = msgspec.convert(data, _Answer)
            headers = [
                (name, value)
                for name, values in answer.headers.items()
                for value in (values if isinstance(values, list) else [values])
                if value != _WITHHELD
            ]
            return self.response(answer.status, headers=headers, content=answer.content(), request=request)


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
    headers: dict[str, Any] = {}
    for name, value in answer.headers.multi_items():
        if name.lower() in _ABOUT_THE_BODY:
            continue
        if name in headers:
            before = headers[name]
            headers[name] = [*(before if isinstance(before, list) else [before]), value]
        else:
            headers[name] = value
    return {"status": answer.status_code, "headers": headers, **_content(answer.content)}


def _content(content: bytes) -> dict[str, Any]:
    """Return a body so that its fields can be seen, and so that the same bytes can be made of it."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}
    value = _json(text)
    if value is not None:
        for layout, options in _LAYOUTS.items():
            if json.dumps(value, **options) == text:
                return {"json": value, "layout": layout}
    return {"text": text}


def _body(body: bytes) -> Any:
    """Return a body so that two of them can be compared field by field if it is JSON, and else as text."""
    value = _json(body)
    if value is not None:
        return value
    try:
        return body.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _json(body: str | bytes) -> Any:
    """Return an object or a list from its JSON; None for anything else, for what is nested too deep, and for what a
    tape holds no equal of.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    kept = isinstance(value, dict | list) and not _is_deep(value) and not tape.lenient(value)[1]
    return value if kept else None


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inside for item in items]
    return bool(level)
