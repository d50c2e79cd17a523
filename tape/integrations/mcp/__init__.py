"""Tapes over the Model Context Protocol: ``tape mcp``, and the parts that it is made of.

``mcp_server(store)`` has tools and resources that read; with ``write=True`` there are some that write, too.
``serve_http`` puts it behind a token on the loopback interface. ``TapeEventStore`` lets the streams of any MCP server
be resumed.
"""

from tape.integrations.mcp.events import TapeEventStore
from tape.integrations.mcp.server import http_app, mcp_server, serve_http

__all__ = ["TapeEventStore", "http_app", "mcp_server", "serve_http"]
