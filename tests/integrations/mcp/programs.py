"""What other processes do in the tests: they load the SDK, which takes a while, with their first write."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tape

__all__ = ["appends"]


def appends(store: tape.Store) -> Callable[[str], Any]:
    """Return what appends a mark through a server of this process."""

    @functools.cache
    def server() -> Any:
        from tape.integrations.mcp import mcp_server

        return mcp_server(store, write=True)

    return lambda mark: server().call_tool("append", {"tape": "shared", "content": mark})
