"""The inspector served for a test, asked over plain HTTP or by a real browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

import tape
from support.installing import program
from tape.web.app import inspector
from tape.web.guard import TOKEN, Access
from tape.web.stores import Served

__all__ = ["Answer", "Site", "Visit", "chromium", "served"]

PATIENCE = 20.0


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        assert self.status == 200, self.body
        return json.loads(self.body)


class Site:
    """A running inspector."""

    def __init__(self, port: int, access: Access) -> None:
        self.port = port
        self.access = access
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, *, method: str = "GET", body: Any = None, known: bool = True, **headers: str) -> Answer:
        """Request exactly this path; send the secret if ``known``."""
        sent = {"accept": "application/json"} | ({TOKEN: self.access.secret} if known else {})
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            raw = None if body is None else json.dumps(body).encode()
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())

    def act(self, path: str, body: Any, **headers: str) -> Answer:
        """Write as a page would."""
        sent = {"origin": self.url, "content-type": "application/json"}
        return self.ask(path, method="POST", body=body, known=True, **(sent | headers))


@contextlib.contextmanager
def served(*stores: tape.Store, write: bool = False, names: Sequence[str] = (), **access: Any) -> Iterator[Site]:
    """Serve stores on a free port for as long as the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        let_in = Access(hosts=frozenset({f"127.0.0.1:{port}"}), write=write, **access)
        titles = names or [f"store{place}" for place in range(len(stores))]
        named = [
            Served(title, f"{title}.db", store, f"/s/{title}" if place else "")
            for place, (title, store) in enumerate(zip(titles, stores, strict=True))
        ]
        config = uvicorn.Config(
            inspector(named, let_in), log_level="warning", proxy_headers=False, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
        thread.start()
        try:
            yield Site(port, let_in)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def chromium() -> str:
    """Return the path of a browser, installed where it can be; without one, fail in CI and skip loudly elsewhere."""
    return program(
        ["chromium-headless-shell", "chromium"],
        variable="TAPE_TEST_CHROMIUM",
        package="chromium-headless-shell",
        without="NO BROWSER: the inspector is not tested in one.",
    )


class Visit:
    """A page in a browser that keeps the secret of a site, and notes everything that should not happen."""

    def __init__(self, browser: Any, site: Site | None = None, *, refused: int | None = None, **options: Any) -> None:
        """Open an empty page; the status ``refused`` is one that the test has the server answer with."""
        self.site = site
        self._refused = None if refused is None else f"the server responded with a status of {refused} "
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)
        if site is not None:
            keep = f"localStorage.setItem('tape', '{site.access.secret}')"
            self.context.add_init_script(f"if (location.origin === '{site.url}') {keep};")
        self.context.add_init_script(
            "window.__violations = []; document.addEventListener('securitypolicyviolation', "
            "(event) => window.__violations.push(`${event.violatedDirective} ${event.blockedURI}`));"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE * 1_000)
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", self._said)
        self.page.on("request", self._requested)
        self.page.on("dialog", self._asked)

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *error: object) -> None:
        violations = self.page.evaluate("window.__violations")
        self.context.close()
        if error == (None, None, None):
            assert (self.wrong, violations) == ([], []), (self.wrong, violations)

    def _said(self, message: Any) -> None:
        if message.type == "error" and not (self._refused and self._refused in message.text):
            self.wrong.append(message.text)

    def _asked(self, dialog: Any) -> None:
        self.wrong.append("a dialog")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        ours = ("file:", "blob:", "data:", "about:") if self.site is None else (self.site.url,)
        if not request.url.startswith(ours):
            self.wrong.append(f"asked for {request.url}")

    def go(self, address: str) -> Any:
        """Open an address of the site and return the page once it is ready."""
        assert self.site is not None
        self.page.goto(self.site.url + address)
        return self.ready()

    def ready(self) -> Any:
        """Return the page once it has all that it asked for, and has drawn it."""
        self.page.wait_for_function("() => 'ready' in document.documentElement.dataset")
        return self.page

    def arrive(self, pattern: str) -> Any:
        """Return the page once it has this address and is ready."""
        self.page.wait_for_url(pattern)
        return self.ready()

    def turn(self, file: Path, address: str) -> Any:
        """Open an address within a report and return the page once that address is drawn."""
        self.page.goto(f"file://{file}#{address}")
        self.page.wait_for_function("(address) => document.documentElement.dataset.shown === address", arg=address)
        return self.ready()
