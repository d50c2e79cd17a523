"""TapeEventStore: a client that is cut off gets what it missed, of its own streams, and of no other session's."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from mcp.server.mcpserver import Context
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification
from support.backends import Backend
from support.processes import PATIENCE, until

import tape
from integrations.mcp.serving import TOKEN, serve_http, within
from tape.integrations.mcp import TapeEventStore, http_app, mcp_server

VERSION = "2025-11-25"
SCENARIOS = [
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-error",
    "resources-list",
    "prompts-list",
    "server-sse-multiple-streams",
    "server-sse-polling",
    "dns-rebinding-protection",
]
"""Those of the protocol's suite that need no tools of the suite's own, but for one by which a stream is left."""
TOOL, RESOURCE, PROMPT = (f"uses a {kind} of the suite's own server" for kind in ("tool", "resource", "prompt"))
UNTOLD = "of a capability that the server neither has nor announces"
OTHERS = {
    "logging-set-level": UNTOLD,
    "completion-complete": UNTOLD,
    "resources-subscribe": UNTOLD,
    "resources-unsubscribe": UNTOLD,
    "tools-call-simple-text": TOOL,
    "tools-call-image": TOOL,
    "tools-call-audio": TOOL,
    "tools-call-embedded-resource": TOOL,
    "tools-call-mixed-content": TOOL,
    "tools-call-with-logging": TOOL,
    "tools-call-with-progress": TOOL,
    "tools-call-sampling": TOOL,
    "tools-call-elicitation": TOOL,
    "elicitation-sep1034-defaults": TOOL,
    "elicitation-sep1330-enums": TOOL,
    "json-schema-2020-12": TOOL,
    "resources-read-text": RESOURCE,
    "resources-read-binary": RESOURCE,
    "resources-templates-read": RESOURCE,
    "prompts-get-simple": PROMPT,
    "prompts-get-with-args": PROMPT,
    "prompts-get-embedded-resource": PROMPT,
    "prompts-get-with-image": PROMPT,
}
"""The others, and why they say nothing of this server."""


def note(text: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"data": text})


async def replayed(events: TapeEventStore, last: str) -> tuple[str | None, list[Any]]:
    sent: list[Any] = []

    async def send(event: EventMessage) -> None:
        sent.append((event.event_id, event.message.params["data"]))

    return await events.replay_events_after(last, send), sent


class TestStore:
    def test_what_was_missed_comes_in_order(self, backend: Backend) -> None:
        """Of the same stream, behind the event that was seen last; also to another process, and events only."""
        store = backend.open()

        async def work() -> None:
            events = TapeEventStore(store, "streams")
            first = await events.store_event("1", None)
            ids = [await events.store_event(stream, note(f"{stream}-{n}")) for n in range(3) for stream in ("1", "2")]
            store.tape("streams").append(role="user", content="not an event")
            again = TapeEventStore(backend.open(), "streams")
            assert await replayed(again, first) == ("1", [(ids[0], "1-0"), (ids[2], "1-1"), (ids[4], "1-2")])
            assert await replayed(again, ids[3]) == ("2", [(ids[5], "2-2")])
            assert await replayed(again, ids[5]) == ("2", [])
            for wrong in ("", "x", "0", "-1", "1", "99999", "9" * 40, "²", str(int(ids[5]) + 1)):
                assert await replayed(again, wrong) == (None, []), wrong
            assert len({first, *ids}) == 7

        within(work)
        assert store.verify().ok

    def test_two_owners_have_their_own_events(self, store: tape.Store) -> None:
        """The stores of two owners take events side by side, and give each its own."""

        async def work() -> None:
            stores = {owner: TapeEventStore(store.scoped(owner)) for owner in ("ann", "bob")}
            for owner, events in stores.items():
                last = await events.store_event("1", None)
                await events.store_event("1", note(owner))
                assert [text for _, text in (await replayed(events, last))[1]] == [owner]

        within(work)
        assert sorted(info.owner or "" for info in store.list()) == ["ann", "bob"]

    def test_a_stream_of_any_name(self, store: tape.Store) -> None:
        """A request's id is the client's choice."""

        async def work() -> None:
            events = TapeEventStore(store)
            for stream in ("", "x" * 10_000, "~m:1", "a\0b", "1\n2"):
                last = await events.store_event(stream, None)
                await events.store_event(stream, note("kept"))
                assert [text for _, text in (await replayed(events, last))[1]] == ["kept"]

        within(work)


class Session:
    """A client with its hands on the wire: it can leave a stream, and ask for what it missed."""

    def __init__(self, http: httpx2.Client, url: str) -> None:
        self._http, self._url = http, url
        self._headers = {
            "Authorization": f"Bearer {TOKEN}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": VERSION,
        }
        hello = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        with self._post(0, "initialize", hello) as response:
            self._headers["Mcp-Session-Id"] = response.headers["mcp-session-id"]
            assert self.events(response)[-1]["data"]["result"]
        done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert http.post(url, headers=self._headers, json=done).status_code == 202

    def _post(self, id: int, method: str, params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        return self._http.stream("POST", self._url, headers=self._headers, json=body)

    def call(self, id: int, **arguments: Any) -> list[dict[str, Any]]:
        """Call a tool to the end of its stream."""
        with self._post(id, "tools/call", {"name": "append", "arguments": arguments}) as response:
            return self.events(response)

    def resume(self, last: str) -> list[dict[str, Any]]:
        """Ask for what came behind an event, up to the answer or, if there is none, the end."""
        with self._http.stream("GET", self._url, headers={**self._headers, "Last-Event-ID": last}) as response:
            return self.events(response)

    @staticmethod
    def events(response: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        event: dict[str, Any] = {}
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if name in ("id", "data"):
                event[name] = json.loads(value) if name == "data" and value else value
            elif not line and event:
                found.append(event)
                if event.get("data"):
                    break
                event = {}
        return found


class TestWire:
    def test_an_answer_that_was_missed(self, backend: Backend) -> None:
        """It is sent again from where the client left, word for word; another session with equal ids gets its own."""
        with serve_http(backend, "--write", "--events", "streams") as url, httpx2.Client(timeout=PATIENCE) as http:
            one, two = Session(http, url), Session(http, url)
            answers = [session.call(5, tape="t", content=text) for session, text in ((one, "a"), (two, "b"))]
            for session, (primed, answer) in zip((one, two), answers, strict=True):
                assert session.resume(primed["id"])[0] == answer
            assert two.resume(answers[0][0]["id"]) == [], "another session's event"
            assert one.resume("12345") == []
        store = backend.open()
        assert [message.content for message in store.tape("t").messages()] == ["a", "b"]
        assert store.verify().ok


@contextmanager
def served(store: tape.Store) -> Iterator[str]:
    """The server without a token, which the suite cannot send, with the tool by which it leaves a stream."""
    server = mcp_server(store, write=True)

    @server.tool()
    async def test_reconnection(context: Context) -> str:
        """Leave the stream before the answer."""
        await context.close_sse_stream()
        return "back again"

    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        app = http_app(server, port, None, TapeEventStore(store))
        runner = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=runner.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: runner.started, "the server listens")
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            runner.should_exit = True
            thread.join(PATIENCE)


@pytest.mark.skipif("TAPE_MCP_CONFORMANCE" not in os.environ, reason="names the suite's command; see the page")
def test_conformance(store: tape.Store, tmp_path: Path) -> None:
    """The protocol's own suite is content with the server in each scenario that says something of it."""
    store.create("trip", messages=[{"role": "user", "content": "hello"}])

    def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*shlex.split(os.environ["TAPE_MCP_CONFORMANCE"]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False, cwd=tmp_path)

    listed = re.findall(r"^ *- ([a-z0-9-]+)", suite("list", "--server").stdout, re.MULTILINE)
    assert sorted(listed) == sorted([*SCENARIOS, *OTHERS]), "another release of the suite has other scenarios"
    with served(store) as url:
        for scenario in SCENARIOS:
            done = suite("server", "--url", url, "--scenario", scenario)
            assert done.returncode == 0, f"{scenario}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
