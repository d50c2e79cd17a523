"""httpx2: transports whose requests are recorded by a run, or answered from its recording."""

from __future__ import annotations

import httpx2

from tape.integrations.httpx.transport import AsyncExchanges, Exchanges

__all__ = ["AsyncTapeTransport", "TapeTransport"]


class TapeTransport(Exchanges, httpx2.BaseTransport):
    """A transport behind a run, for an ``httpx2.Client``; see ``tape.integrations.httpx.TapeTransport``."""

    response = httpx2.Response


class AsyncTapeTransport(AsyncExchanges, httpx2.AsyncBaseTransport):
    """The same for an ``httpx2.AsyncClient``."""

    response = httpx2.Response
