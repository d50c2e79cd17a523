"""TapeTransport in clients of httpx and httpx2 before a scripted server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from support.backends import Backend

import tape
from integrations.examples import check_section
from integrations.seaming import check_seam
from tape.integrations import httpx as seam
from tape.integrations.httpx import httpx2 as second

BINARY = bytes(range(256))
each = pytest.mark.parametrize(("library", "tapes"), [(httpx, seam), (httpx2, second)], ids=["httpx", "httpx2"])


def server(library: Any, made: list[str]) -> Any:
    def answer(request: Any) -> Any:
        made.append(request.url.path)
        if request.url.path == "/binary":
            return library.Response(200, content=BINARY, headers=[("set-cookie", "a=1"), ("set-cookie", "b=2")])
        return library.Response(429, json={"asked": request.content.decode()}, headers={"retry-after": "1"})

    return library.MockTransport(answer)


@each
def test_a_run_is_recorded_and_replayed(backend: Backend, library: Any, tapes: Any) -> None:
    """The server is asked once; replays ask nobody, and another body is a divergence."""

    async def agent(run: Any, made: list[str], question: str) -> Any:
        transport = tapes.AsyncTapeTransport(run, server(library, made))
        async with library.AsyncClient(transport=transport, base_url="https://api.example") as client:
            one = await client.post("/chat", json={"q": question}, headers={"authorization": "Bearer secret"})
            two = await client.get("/binary")
        return one.status_code, one.json(), one.headers["retry-after"], two.content, two.headers.get_list("set-cookie")

    check_seam(backend, agent, calls=["/chat", "/binary"])


@each
def test_a_sync_client_does_the_same(quick: Backend, library: Any, tapes: Any) -> None:
    """No header of a request is recorded; in a replay there need be no inner transport."""
    with quick.open() as store:
        chat, made = store.tape("chat"), list[str]()
        with tape.record(chat, name="seam") as run:
            transport = tapes.TapeTransport(run, server(library, made))
            with library.Client(transport=transport, base_url="https://api.example") as client:
                first = client.post("/chat", json={"q": 1}, headers={"authorization": "Bearer secret"})
        with tape.replay(chat, run.id) as again:
            client = library.Client(transport=tapes.TapeTransport(again), base_url="https://api.example")
            assert client.post("/chat", json={"q": 1}).json() == first.json()
        assert (made, again.report.ok) == (["/chat"], True)
        assert not any(b"secret" in str(entry.payload).encode() for entry in chat.entries())


@each
def test_a_request_counts_by_its_method(quick: Backend, library: Any, tapes: Any) -> None:
    """A replay with live tools sends what reads by its method or its declaration, and nothing else."""
    methods = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "QUERY")

    def call(run: Any, made: list[str], **options: Any) -> None:
        def answer(request: Any) -> Any:
            made.append(request.method)
            return library.Response(200, json={})

        transport = tapes.TapeTransport(run, library.MockTransport(answer), **options)
        with library.Client(transport=transport, base_url="https://api.example") as client:
            for method in methods:
                client.request(method, "/thing")

    with quick.open() as store:
        chat = store.tape("chat")
        for options, live in (
            ({}, methods[:3]),
            ({"effect": "read"}, methods),
            ({"effect": "idempotent"}, ()),
            ({"effect": "write"}, ()),
            ({"kind": "model"}, ()),
        ):
            recorded, made = list[str](), list[str]()
            with tape.record(chat) as run:
                call(run, recorded, **options)
            with tape.replay(chat, run.id, tools="live") as again:
                call(again, made, **options)
            assert (recorded, made) == (list(methods), list(live))
        with pytest.raises(tape.InvalidEntry, match="kind"):
            tapes.TapeTransport(run, kind="model", effect="read")


def test_a_request_without_an_outcome_is_unknown(quick: Backend) -> None:
    """A resumed run does not send a request again that may have been received."""

    def cut(request: Any) -> Any:
        raise KeyboardInterrupt

    with quick.open() as store:
        chat = store.tape("chat")
        for error in (KeyboardInterrupt, tape.EffectUnknown):
            with pytest.raises(error), tape.record(chat, id="r", resume=True) as run:
                transport = seam.TapeTransport(run, httpx.MockTransport(cut))
                httpx.Client(transport=transport).delete("https://api.example/thing")


def test_the_section_of_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the page shows is what happens."""
    check_section("httpx`", monkeypatch, tmp_path)
