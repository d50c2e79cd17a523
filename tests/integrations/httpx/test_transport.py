"""TapeTransport in clients of httpx and httpx2 before a scripted server."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
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
        return one.status_code, one.json(), one.headers["retry-after"], two.content

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


SECRETS = [f"Zq{number}{'a1b2c3d4' * 3}" for number in range(40)]


def hostile(library: Any) -> Any:
    """Return a server whose answers, and whose errors, hold secrets."""

    def answer(request: Any) -> Any:
        if request.url.path == "/fail":
            raise library.ConnectError(f"no route to {request.url}", request=request)
        if request.url.path == "/events":
            parts = [f"sk-ant-{SECRETS[9][:9]}", f"{SECRETS[9][9:]} end"]
            text = "".join(f"data: {json.dumps({'delta': {'text': part}})}\n\n" for part in parts)
            return library.Response(200, text=text, headers={"content-type": "text/event-stream"})
        if request.url.path == "/page":
            return library.Response(200, text=f'{{"n": 1.50, "access_token":  "{SECRETS[10]}"}}\n')
        headers = [
            ("Set-Cookie", f"sid={SECRETS[0]}; Path=/"),
            ("set-cookie", f"csrf={SECRETS[1]}"),
            ("authorization", f"Bearer {SECRETS[2]}"),
            ("x-api-key", SECRETS[3]),
            ("location", f"https://ann:{SECRETS[4]}@api.example/?access_token={SECRETS[5]}&page=2"),
            ("x-request-id", "r1"),
        ]
        data = {"access_token": SECRETS[6], "note": f"Bearer {SECRETS[7]}", "deep": json.dumps({"api_key": SECRETS[8]})}
        return library.Response(200, json={**data, "n": 1.5}, headers=headers)

    return library.MockTransport(answer)


def visit(client: Any, library: Any, wrong: type[Exception] | None = None) -> list[Any]:
    """Send requests of every kind with secrets in them; return the responses."""
    address = f"https://ann:{SECRETS[20]}@api.example"
    basic = {"authorization": f"Bearer {SECRETS[21]}", "cookie": f"sid={SECRETS[22]}"}
    answers = [
        client.post(
            f"{address}/json?api_key={SECRETS[23]}&q=1", json={"password": SECRETS[24], "q": [1]}, headers=basic
        ),
        client.post("https://api.example/form", data={"client_secret": SECRETS[25], "grant": "x y"}),
        client.post("https://api.example/text", content=f"key=1 Bearer {SECRETS[26]}"),
        client.post("https://api.example/nested", json={"arguments": json.dumps({"apiKey": SECRETS[27]})}),
        client.post("https://api.example/files", files={"password": (None, SECRETS[28])}, headers={"x": "1"}),
        client.post("https://api.example/raw", content=b"\xff\xe9 token sk-ant-" + SECRETS[29].encode()),
        client.get("https://api.example/events"),
        client.get("https://api.example/page"),
    ]
    with pytest.raises(wrong or library.ConnectError):
        client.get(f"{address}/fail?q=2&key={SECRETS[30]}")
    return [(answer.status_code, answer.content, answer.headers.multi_items()) for answer in answers]


@each
def test_no_credential_is_recorded(quick: Backend, library: Any, tapes: Any) -> None:
    """None of them is on the tape, the program gets whole answers, and a replay matches; all else is as it was."""
    with quick.open() as store:
        chat = store.tape("chat")
        with library.Client(transport=hostile(library)) as client:
            plain = visit(client, library)
        with (
            pytest.raises(library.ConnectError),
            tape.record(chat) as run,
            library.Client(transport=tapes.TapeTransport(run, hostile(library))) as client,
        ):
            assert [body for _, body, _ in visit(client, library)] == [body for _, body, _ in plain]
            client.get(f"https://ann:{SECRETS[31]}@api.example/fail?sig={SECRETS[32]}")
        text = "\n".join(str(entry.payload) for entry in chat.entries())
        text += "\n".join(base64.b64decode(word).decode("latin-1") for word in re.findall("'base64': '([^']*)'", text))
        assert [secret for secret in SECRETS if secret in text or secret[9:] in text] == []
        assert "Bearer" not in text
        for shown in ("api.example/json?api_key=[redacted]&q=1", "client_secret=[redacted]&grant=x+y", "x-request-id"):
            assert shown in text
        calls = [entry.payload.data for entry in chat.entries(name="run.call")]  # type: ignore[union-attr]
        assert calls[0]["request"]["body"] == {"is": {"password": "[redacted]", "q": [1]}}
        answers = [entry.payload.data for entry in chat.entries(name="run.result")]  # type: ignore[union-attr]
        assert answers[0]["value"]["is"]["json"]["n"] == 1.5
        assert answers[0]["value"]["is"]["headers"]["x-request-id"] == "r1"


@each
def test_a_replay_answers_without_the_credentials(quick: Backend, library: Any, tapes: Any) -> None:
    """Requests with other credentials match; cookies are left out, and other bytes are the same."""
    with quick.open() as store:
        chat = store.tape("chat")
        with (
            tape.record(chat) as run,
            library.Client(transport=tapes.TapeTransport(run, hostile(library))) as client,
        ):
            whole = client.post(f"https://api.example/?key={SECRETS[0]}", json={"password": SECRETS[1]})
            page = client.get("https://api.example/page")
        with tape.replay(chat, run.id) as again, library.Client(transport=tapes.TapeTransport(again)) as client:
            other = client.post("https://api.example/?key=another", json={"password": "another"})
            assert client.get("https://api.example/page").text == page.text.replace(SECRETS[10], "[redacted]")
        assert again.report.ok
        assert whole.json()["access_token"] == SECRETS[6]
        assert other.json() == {
            "access_token": "[redacted]", "note": "[redacted]", "deep": '{"api_key": "[redacted]"}', "n": 1.5
        }  # fmt: skip
        assert "set-cookie" not in other.headers


@each
def test_a_program_may_ask_for_everything(quick: Backend, library: Any, tapes: Any) -> None:
    """With ``redact=None`` addresses, cookies and bodies are recorded as they are; a replay gives the same bytes."""
    bodies = [
        b'{"a":1,"b":[1.5,"\xc3\xa9"]}',
        b'{"a": 1}',
        b'{"a":1,\n "a":2}',
        b"[1e2]",
        b"12",
        b"\xff\x00",
        b"",
        b"[1",
    ]
    with quick.open() as store:
        chat = store.tape("chat")

        def answer(request: Any) -> Any:
            return library.Response(200, content=bodies[int(request.url.path[1:])], headers=[("set-cookie", "a=1")] * 2)

        def agent(run: Any, inner: Any) -> list[Any]:
            with library.Client(transport=tapes.TapeTransport(run, inner, redact=None)) as client:
                answers = [client.get(f"https://u:p@api.example/{n}?key=k1") for n in range(len(bodies))]
            return [(answer.content, answer.headers.get_list("set-cookie")) for answer in answers]

        with tape.record(chat) as run:
            recorded = agent(run, library.MockTransport(answer))
        with tape.replay(chat, run.id) as again:
            assert agent(again, None) == recorded
        assert [content for content, _ in recorded] == bodies
        assert recorded[0][1] == ["a=1", "a=1"]
        assert "https://u:p@api.example/0?key=k1" in str([entry.payload for entry in chat.entries()])


@pytest.mark.parametrize(("module", "other"), [("httpx.httpx2", "httpx"), ("httpx", "httpx2")])
def test_one_library_is_enough(module: str, other: str) -> None:
    """Each module works where the other library is not installed."""
    program = f"import sys; sys.modules[{other!r}] = None; from tape.integrations.{module} import TapeTransport"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


FORGED = [
    "answer",
    5,
    None,
    {},
    {"status": "200", "headers": {}, "text": ""},
    {"status": 200, "headers": [["x", "1"]], "text": "hi"},
    {"status": 200, "headers": {"x": 1}, "text": "hi"},
    {"status": 200, "headers": {}, "json": 1, "layout": "wide"},
    {"status": 200, "headers": {}, "base64": 5},
    {"status": 200, "headers": {}, "base64": "a"},
    {"status": 200, "headers": {}, "text": 5},
]


@each
@pytest.mark.parametrize("answer", FORGED, ids=repr)
def test_a_forged_answer_is_refused(quick: Backend, library: Any, tapes: Any, answer: Any) -> None:
    """An answer that no transport recorded is an error of the library, and none of the language."""
    with quick.open() as store:
        chat, forged = store.tape("chat"), store.tape("forged")
        with (
            tape.record(chat, id="r") as run,
            library.Client(transport=tapes.TapeTransport(run, server(library, []))) as client,
        ):
            client.get("https://api.example/chat")
        for entry in chat.entries(kinds=["event"]):
            data: Any = entry.payload.data  # type: ignore[union-attr]
            if entry.payload.name == "run.result":  # type: ignore[union-attr]
                data = {**data, "value": {"is": answer}}
            forged.event(entry.payload.name, data, key=entry.key)  # type: ignore[union-attr]
        with (
            tape.replay(forged, "r") as again,
            library.Client(transport=tapes.TapeTransport(again)) as client,
            pytest.raises(tape.InvalidEntry, match="recorded data"),
        ):
            client.get("https://api.example/chat")


@each
@pytest.mark.parametrize("depth", [99, 100, 101, 150, 200, 300, 5_000])
def test_a_deep_body_is_kept_as_it_is(quick: Backend, library: Any, tapes: Any, depth: int) -> None:
    """A request and an answer of any depth are recorded, and replayed with the same bytes."""
    body = "[" * depth + "]" * depth

    def ask(run: Any, inner: Any) -> str:
        with library.Client(transport=tapes.TapeTransport(run, inner)) as client:
            text: str = client.post("https://api.example/deep", content=body).text
            return text

    with quick.open() as store:
        chat = store.tape("chat")
        with tape.record(chat) as run:
            assert ask(run, library.MockTransport(lambda _: library.Response(200, text=body))) == body
        with tape.replay(chat, run.id) as again:
            assert ask(again, None) == body
