"""Serving the inspector on the loopback interface until it is interrupted."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

import uvicorn

from tape.web.app import inspector
from tape.web.guard import Access
from tape.web.stores import Served

__all__ = ["LOOPBACK", "serve"]

LOOPBACK = "127.0.0.1"


def serve(
    stores: Sequence[Served],
    *,
    host: str = LOOPBACK,
    port: int = 0,
    write: bool = False,
    names: Iterable[str] = (),
    proxy: str | None = None,
    owner_header: str | None = None,
    listening: Callable[[str, str], object],
    opened: Callable[[], object] | None = None,
) -> None:
    """Serve these stores until the process is interrupted.

    ``listening`` is called with the URL and the fragment of the link that opens the inspector, ``opened`` when the link
    was used. The server answers only to ``host`` at this port and to ``names``, the host names that a proxy may send
    (each with its port, unless that is the default of the scheme).
    """
    with socket.create_server((host, port)) as bound:
        own_port = bound.getsockname()[1]
        hosts = {f"{name}:{own_port}" for name in (LOOPBACK, host.lower())} | {name.lower() for name in names}
        access = Access(hosts=frozenset(hosts), write=write, proxy=proxy, owner_header=owner_header, opened=opened)
        app = inspector(stores, access)
        listening(f"http://{host}:{own_port}", "" if proxy else f"#token={access.token}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            proxy_headers=False,
        )
        uvicorn.Server(config).run(sockets=[bound])
