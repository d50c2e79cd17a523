"""A proxy in front of PostgreSQL that loses what it is told to lose.

It understands just enough of the protocol to see which statement a client runs and when the server has answered it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import psycopg.conninfo
import sqlalchemy as sa

PATIENCE = 30.0


class Proxy:
    """Listens on a port of its own and passes everything on, until told to lose something.

    ``lose(begins, reply=True)`` breaks the connection of the next client that runs a statement which begins so: after
    the server has run it and before the client hears of it, or, with ``reply=False``, before the server sees it. The
    end of a transaction that only reads does not count.
    ``away`` refuses new connections, as a server that is down does.
    """

    def __init__(self, url: sa.URL) -> None:
        self._upstream = _address(url)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._stopped = False
        self._change = threading.Lock()
        self._wanted: tuple[str | tuple[str, ...], bool] | None = None
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.away = False
        self.lost = 0
        """How many connections were broken on demand."""
        self.before_breaking: Callable[[], None] | None = None
        self.url = url.set(host="127.0.0.1", port=self._server.getsockname()[1]).update_query_dict(
            {"sslmode": "disable", "gssencmode": "disable", "connect_timeout": "10"}
        )
        if "host" in self.url.query:
            self.url = self.url.difference_update_query(["host", "port"])
        self._start(self._accept)

    def lose(self, begins: str | tuple[str, ...], *, reply: bool = True) -> None:
        with self._change:
            self._wanted = (begins, reply)

    def _start(self, run: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            if self.away or self._stopped:
                client.close()
                continue
            family, address = self._upstream
            server = socket.socket(family)
            server.connect(address)
            for one in (client, server):
                if one.family == socket.AF_INET:
                    # Many small messages: without this each would wait for the one before it to be confirmed.
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets |= {client, server}
            _Link(self, client, server)

    def _claim(self, statement: str) -> bool | None:
        """Return how to break a client that runs this statement, if it is the one to be broken."""
        with self._change:
            if self._wanted is None or not statement.startswith(self._wanted[0]):
                return None
            reply = self._wanted[1]
            self._wanted = None
            return reply

    def close(self) -> None:
        self._stopped = True
        _end(self._server)
        for one in list(self._sockets):
            _end(one)
        for thread in self._threads:
            thread.join(PATIENCE)


class _Link:
    """One client and its server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._muted = False
        self._breaking = False
        self._reads = False
        self._texts: dict[bytes, str] = {}
        proxy._start(self._upward)
        proxy._start(self._downward)

    def _upward(self) -> None:
        """Pass on what the client says."""
        with contextlib.suppress(OSError, EOFError):
            # The first message has no type.
            (length,) = struct.unpack("!I", head := _exactly(self._client, 4))
            self._server.sendall(head + _exactly(self._client, length - 4))
            while True:
                kind, body = _message(self._client)
                text = self._statement(kind, body)
                how = None
                if text is not None:
                    if text.startswith("BEGIN"):
                        self._reads = "READ ONLY" in text
                    if not self._reads:
                        how = self._proxy._claim(text)
                if how is False:
                    self._break()
                    return
                if how is True:
                    self._muted = True
                self._server.sendall(kind + struct.pack("!I", len(body) + 4) + body)
        self._close()

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """Return the text of the statement that this message runs, if it runs one."""
        if kind == b"Q":
            return body.rstrip(b"\0").decode()
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._texts[name] = text.decode()
        elif kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return self._texts.get(name)
        return None

    def _downward(self) -> None:
        """Pass on what the server says, unless its answer is to be lost."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                kind, body = _message(self._server)
                if not self._muted:
                    self._client.sendall(kind + struct.pack("!I", len(body) + 4) + body)
                elif kind == b"Z":
                    # Ready for the next one: what the client ran is done, and it will never know.
                    self._break()
                    return
        if not self._breaking:
            self._close()

    def _break(self) -> None:
        # The server first: it rolls back and lets go of its locks while the client still waits.
        self._breaking = True
        _end(self._server)
        try:
            if self._proxy.before_breaking is not None:
                self._proxy.before_breaking()
        finally:
            # Whatever happened in between, the client must not wait for ever.
            self._proxy.lost += 1
            self._close()

    def _close(self) -> None:
        for one in (self._client, self._server):
            _end(one)
            self._proxy._sockets.discard(one)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _exactly(source: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        more = source.recv(count - len(got))
        if not more:
            raise EOFError
        got += more
    return got


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    kind, length = struct.unpack("!cI", _exactly(source, 5))
    return kind, _exactly(source, length - 4)


def _address(url: sa.URL) -> tuple[int, Any]:
    """Return where the real server listens."""
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    found = psycopg.conninfo.conninfo_to_dict(dsn)
    host, port = str(found.get("host") or "localhost"), int(found.get("port") or 5432)
    if host.startswith("/"):
        return socket.AF_UNIX, f"{host}/.s.PGSQL.{port}"
    return socket.AF_INET, (host, port)
