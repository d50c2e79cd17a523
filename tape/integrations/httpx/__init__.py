"""httpx and httpx2: transports whose requests are recorded by a run, or answered from its recording.

``tape.integrations.httpx.httpx2`` has the same for ``httpx2``. Neither module needs the other's library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tape.integrations.httpx.httpx import AsyncTapeTransport, TapeTransport

__all__ = ["AsyncTapeTransport", "TapeTransport"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tape.integrations.httpx import httpx

    return getattr(httpx, name)
