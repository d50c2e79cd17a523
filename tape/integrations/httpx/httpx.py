"""httpx: transports whose requests are recorded by a run, or answered from its recording."""

from __future__ import annotations

import httpx

from tape.integrations.httpx.transport import AsyncExchanges, Exchanges

__all__ = ["AsyncTapeTransport", "TapeTransport"]


class TapeTransport(Exchanges, httpx.BaseTransport):
    """A transport behind a run: ``httpx.Client(transport=TapeTransport(run, httpx.HTTPTransport()))``.

    Method, URL and body are compared and recorded, the answer with its status, headers and body. Headers of requests
    are neither. Cookies, headers and fields that hold credentials, user-info and key parameters of URLs, and known
    tokens are left out; ``redact`` says otherwise, or None for nothing. The program itself gets the whole answer while
    it is recorded. GET, HEAD and OPTIONS read and any other method writes, unless ``effect`` says otherwise; with
    ``kind="model"`` a request asks a model. In a replay the inner transport may be None: a request that writes is never
    sent, and one that reads only with ``tools="live"``.
    """

    response = httpx.Response


class AsyncTapeTransport(AsyncExchanges, httpx.AsyncBaseTransport):
    """The same for an ``httpx.AsyncClient``; see ``TapeTransport``."""

    response = httpx.Response
