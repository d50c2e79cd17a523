"""``tape mcp`` with the SDK's own client over both transports: what it shows, what it refuses, and who gets in."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from support.backends import Backend
from support.processes import PATIENCE, Crew

import tape
from integrations.contention import hold_together
from integrations.examples import check_section, printed
from integrations.mcp.programs import appends
from integrations.mcp.serving import TOKEN, command, http_client, serve_http, stdio, within
from tape.integrations.mcp import mcp_server

READS = ["anchors", "context", "diff", "list_tapes", "messages", "read_around", "search", "tape_info"]
WRITES = ["append", "fork", "handoff", "label", "retract"]


async def ask(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return answer.structured_content


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error, answer.structured_content
    return str(answer.content[0].text)


def told(store: tape.Store) -> tape.Tape:
    """A trip: a question, a checkpoint, an answer, and a fork."""
    trip = store.create("a trip/1@home", name="Lisbon", labels=["golden"])
    trip.append(role="user", content="Plan the trip to Lisbon", id="q")
    trip.anchor("booked", {"train": "9:30"})
    trip.append(role="assistant", content="By the night train", id="a")
    trip.revise("a", content="By the early train")
    return trip


class TestReading:
    def test_the_tools_read(self, backend: Backend) -> None:
        """Each reading tool says what the store says, at any point; all say of themselves that they only read."""
        trip = told(backend.open())
        trip.fork("side").append(role="user", content="And by bus?")
        before = backend.open().stats()

        async def work() -> None:
            async with stdio(backend) as client:
                listed = (await client.list_tools()).tools
                assert sorted(tool.name for tool in listed) == READS
                assert all(tool.annotations.read_only_hint and tool.description for tool in listed)
                tapes = await ask(client, "list_tapes", limit=1)
                assert [info["id"] for info in tapes["items"]] == ["side"]
                rest = await ask(client, "list_tapes", limit=1, cursor=tapes["cursor"])
                assert [info["id"] for info in rest["items"]] == [trip.id]
                info = await ask(client, "tape_info", tape=trip.id)
                assert (info["name"], info["labels"], info["descendants"][0]["tape"]) == ("Lisbon", ["golden"], "side")
                (hit,) = (await ask(client, "search", query="early tr*"))["items"]
                around = await ask(client, "read_around", tape=hit["tape"], seq=hit["seq"], before=1, after=0)
                assert [(entry["seq"], entry["kind"]) for entry in around["items"]] == [(4, "append"), (5, "revise")]
                assert [
                    one["data"]["content"] for one in (await ask(client, "messages", tape=trip.id, at=4))["items"]
                ] == [
                    "Plan the trip to Lisbon",
                    "By the night train",
                ]
                for point in ("booked", 3, "3"):
                    page = await ask(client, "messages", tape=trip.id, at=point)
                    assert [one["id"] for one in page["items"]] == ["q"]
                shown = await ask(client, "context", tape=trip.id)
                assert shown["messages"] == trip.context(budget=8_000).to_openai()
                assert (await ask(client, "anchors", tape=trip.id))["items"][0]["state"] == {"train": "9:30"}
                assert "early" in (await ask(client, "diff", tape=trip.id, a=4))["text"]
                assert "bus" in (await ask(client, "diff", tape=trip.id, a=5, other="side"))["text"]

        within(work)
        assert backend.open().stats() == before

    def test_tapes_are_resources(self, backend: Backend) -> None:
        """A tape is read by its address, as of now or of a seq, whatever its id; one that is not there is an error."""
        trip = told(backend.open())

        async def work() -> None:
            async with stdio(backend) as client:
                (listed,) = (await client.list_resources()).resources
                assert (listed.uri, listed.name) == ("tape://a%20trip%2F1%40home", "Lisbon")
                templates = (await client.list_resource_templates()).resource_templates
                assert [one.uri_template for one in templates] == ["tape://{id}@{seq}", "tape://{id}"]
                for suffix, wanted in (("", trip.messages()), ("@4", trip.at(4).messages()), ("@0", [])):
                    (content,) = (await client.read_resource(listed.uri + suffix)).contents
                    read = json.loads(content.text)
                    assert [one["data"] for one in read["messages"]] == [one.data for one in wanted]
                for wrong in ("tape://nobody", "tape://nobody@1", f"{listed.uri}@x", f"{listed.uri}@-1", "file:///etc"):
                    with pytest.raises(MCPError):
                        await client.read_resource(wrong)

        within(work)

    def test_an_owner_sees_nobody_else(self, backend: Backend) -> None:
        """With --owner another owner's tape is one that is not there."""
        store = backend.open()
        store.create("hers", owner="alice", messages=[{"role": "user", "content": "secret word"}])
        store.create("his", owner="bob", messages=[{"role": "user", "content": "plain word"}])

        async def work() -> None:
            async with stdio(backend, "--owner", "bob") as client:
                assert [info["id"] for info in (await ask(client, "list_tapes"))["items"]] == ["his"]
                assert [hit["tape"] for hit in (await ask(client, "search", query="word"))["items"]] == ["his"]
                assert [one.uri for one in (await client.list_resources()).resources] == ["tape://his"]
                assert "TapeNotFound" in await refusal(client, "messages", tape="hers")
                with pytest.raises(MCPError):
                    await client.read_resource("tape://hers")

        within(work)

    def test_a_long_answer_is_cut(self, store: tape.Store) -> None:
        """An answer holds about 200 kB and says that there is more."""
        chat = store.create("c", messages=[{"role": "user", "content": f"{n} " + "x" * 50_000} for n in range(20)])

        async def work() -> None:
            async with Client(mcp_server(store)) as client:
                page = await ask(client, "messages", tape="c", limit=100)
                assert page["truncated"]
                assert 0 < len(page["items"]) < 6
                before = await ask(client, "messages", tape="c", limit=100, before=page["items"][0]["id"])
                assert before["items"][-1]["seq"] == page["items"][0]["seq"] - 1
                around = await ask(client, "read_around", tape="c", seq=10, before=90, after=90)
                assert around["truncated"]
                (content,) = (await client.read_resource("tape://c")).contents
                read = json.loads(content.text)
                assert read["messages"][-1]["id"] == chat.messages()[-1].id

        within(work)


class TestWriting:
    def test_without_write_nothing_is_written(self, backend: Backend) -> None:
        """The tools are not there, calling them all the same is refused, and the store behind it cannot write."""
        told(backend.open())
        before = backend.open().stats()

        async def work() -> None:
            async with stdio(backend) as client:
                for tool in WRITES:
                    assert "Unknown tool" in await refusal(client, tool, tape="a trip/1@home", content="x", name="n")

        within(work)
        assert backend.open().stats() == before

    def test_a_url_is_opened_to_be_read_only(self, tmp_path: Path) -> None:
        """Also where the server is made by a program: no store is created, and none is migrated."""
        with pytest.raises(tape.TapeError):
            mcp_server(tmp_path / "none.db")
        assert list(tmp_path.iterdir()) == []

    def test_the_tools_write(self, backend: Backend) -> None:
        """Each does what its call does; a key makes a repeated call harmless, and a moved head is refused by name."""
        trip = told(backend.open())

        async def work() -> None:
            async with stdio(backend, "--write") as client:
                hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
                assert sorted(hints) == sorted(READS + WRITES)
                assert [name for name in WRITES if hints[name].read_only_hint] == []
                assert [name for name in WRITES if hints[name].destructive_hint] == ["retract"]
                assert [name for name in WRITES if hints[name].idempotent_hint] == ["label", "retract"]
                made = await ask(client, "append", tape="new", content="[1, 2]", key="k", fields={"name": "ann"})
                again = await ask(client, "append", tape="new", content="[1, 2]", key="k", fields={"name": "ann"})
                assert (made["duplicate"], again["duplicate"], made["seq"]) == (False, True, again["seq"])
                wrong = await refusal(client, "append", tape="new", content="other", key="k")
                assert "ProvenanceConflict" in wrong
                assert "HeadMoved" in await refusal(client, "append", tape="new", content="y", expected_head=1)
                fork = await ask(client, "fork", tape=trip.id, at=4, id="side", name="by bus")
                assert (fork["parent"], fork["forked_at"]) == (trip.id, 4)
                await ask(client, "handoff", tape="side", name="done", summary="All booked", next_steps=["pack"])
                await ask(client, "label", tape="side", add=["kept"])
                await ask(client, "label", tape=trip.id, remove=["golden"])
                await ask(client, "retract", tape=trip.id, message_ids=["a"], reason="wrong")
                assert "UnknownMessage" in await refusal(client, "retract", tape=trip.id, message_ids=["nobody"])

        within(work)
        store = backend.open()
        assert [one.to_dict() for one in store.tape("new").messages()] == [
            {"role": "user", "content": "[1, 2]", "name": "ann"}
        ]
        assert {entry.actor for entry in store.tape("new").entries(kinds=["append"])} == {"mcp"}
        assert store.tape("side").anchors()[-1].next_steps == ["pack"]
        assert (store.tape("side").info().labels, trip.info().labels) == (["kept"], [])
        assert [one.id for one in trip.messages()] == ["q"]
        assert store.verify().ok

    def test_four_processes_write(self, backend: Backend, crew: Crew) -> None:
        """4 servers on one tape, 50 appends each: all are acknowledged and held once."""
        refused = hold_together(crew, backend, appends, contents, least=200)
        assert refused == {}


def contents(store: tape.Store) -> Iterable[str]:
    return [message.content for message in store.tape("shared").messages()]


JUNK: list[Any] = [
    "",
    "\0",
    "~",
    "~m:x",
    "../../etc/passwd",
    "x" * 100_000,
    "'; DROP TABLE tape_entry; --",
    '"unclosed *',
    "\u202e\u2028",
    "null",
    "[1]",
    -1,
    0,
    2**63,
    10**40,
    1.5,
    True,
    None,
    [],
    ["a", None],
    {},
    {"role": {"x": [1]}, "id": 5},
    [[[[[[]]]]]],
]


class TestHostile:
    def test_no_input_breaks_it(self, backend: Backend) -> None:
        """Whatever a client sends for whichever argument, it gets an answer or a refusal, and the tapes stay whole."""
        told(backend.open())
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        dice = random.Random(seed)
        server = mcp_server(backend.open(), write=True)

        async def work() -> None:
            async with Client(server) as client:
                for tool in (await client.list_tools()).tools:
                    names = list(tool.input_schema["properties"])
                    for _ in range(25):
                        given = {name: dice.choice([*JUNK, "a trip/1@home", "a"]) for name in names}
                        answer = await client.call_tool(tool.name, given)
                        if answer.is_error:
                            said = answer.content[0].text
                            # A crash says no more than this; every refusal says why.
                            assert said != f"Error executing tool {tool.name}", (tool.name, given)
                assert (await ask(client, "tape_info", tape="a trip/1@home"))["name"] == "Lisbon"

        within(work)
        assert backend.open().verify().ok

    def test_garbage_on_the_pipe_does_not_end_it(self, backend: Backend) -> None:
        """Lines that are no JSON-RPC are answered or passed over; the server ends with its input, and well."""
        request = {"jsonrpc": "2.0", "id": 7, "method": "initialize"}
        request["params"] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        lines = ["", "garbage", "[]", "{}", '{"jsonrpc": "2.0"}', "[" * 5_000, json.dumps(request), ""]
        done = subprocess.run(
            command(backend), input="\n".join(lines), capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        (answer,) = [one for one in answers if one.get("id") == 7]
        assert answer["result"]["serverInfo"] == {"name": "tape", "version": tape.__version__}

    def test_a_store_that_is_not_there(self, tmp_path: Path, backend: Backend) -> None:
        """The command says so, and makes none."""
        missing = tmp_path / "none.db"
        for options in ([], ["--write"]):
            line = [*command(backend, *options)]
            line[line.index("--store") + 1] = str(missing)
            done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
            assert (done.returncode, done.stdout) == (3, "")
            assert not missing.exists()


class TestHttp:
    def test_a_client_with_the_token(self, backend: Backend) -> None:
        """The SDK's client reads and, with --write, writes."""
        told(backend.open())

        async def work() -> None:
            async with http_client(url) as client:
                assert [hit["seq"] for hit in (await ask(client, "search", query="lisbon"))["items"]] == [2]
                await ask(client, "append", tape="new", content="over HTTP")

        with serve_http(backend, "--write") as url:
            within(work)
        assert [one.text for one in backend.open().tape("new").messages()] == ["over HTTP"]

    def test_who_is_refused(self, backend: Backend) -> None:
        """No token or a wrong one, a name that was made to lead here, another site's page, a body without end."""
        told(backend.open())
        right = {
            "Authorization": f"Bearer {TOKEN}",
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
        }
        listing = {"jsonrpc": "2.0", "id": 1, "method": "initialize"}
        listing["params"] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "c", "version": "1"},
        }
        with serve_http(backend) as url, httpx2.Client(timeout=PATIENCE) as http:
            port = url.split(":")[2].split("/")[0]

            def status(body: Any = listing, **headers: str) -> int:
                given = {**right, **{name.replace("_", "-"): value for name, value in headers.items()}}
                sent = {name: value for name, value in given.items() if value}
                return http.post(
                    url, headers=sent, content=body if isinstance(body, bytes) else json.dumps(body)
                ).status_code

            assert status() == 200
            for wrong in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN):
                assert status(Authorization=wrong) == 401, wrong
            assert status(Authorization=f"bearer {TOKEN}") == 200
            for host in (
                "evil.example",
                f"evil.example:{port}",
                "127.0.0.1",
                "127.0.0.1:1",
                f"127.0.0.1:{port}.evil.example",
            ):
                assert status(Host=host) == 421, host
            assert status(Host=f"localhost:{port}") == 200
            for origin in (
                "http://evil.example",
                "null",
                f"http://127.0.0.1:{port}.evil.example",
                "http://127.0.0.1:1",
            ):
                assert status(Origin=origin) == 403, origin
            assert status(Origin=f"http://127.0.0.1:{port}") == 200
            assert status(b"x" * 5_000_000) == 413
            assert status(b"{") == 400
            assert http.get(url, headers={}).status_code == 401
            # A version that has no handshake goes another way through the SDK, and is guarded as well.
            assert status(MCP_Protocol_Version="2026-07-28", Host="evil.example") == 421
            assert status(MCP_Protocol_Version="2026-07-28", Authorization="") == 401

    def test_a_token_is_made_when_none_is_given(self, backend: Backend) -> None:
        """It is printed for the one who started the server, and differs from start to start."""
        told = []
        for _ in range(2):
            server = subprocess.Popen(
                command(backend, "--http", "--port", "0"),
                stderr=subprocess.PIPE,
                text=True,
                env={name: value for name, value in os.environ.items() if name != "TAPE_MCP_TOKEN"},
            )
            assert server.stderr is not None
            server.stderr.readline()
            told.append(server.stderr.readline())
            server.terminate()
            server.wait(PATIENCE)
        assert all(line.startswith("Authorization: Bearer ") and len(line) > 60 for line in told)
        assert told[0] != told[1]


class TestPage:
    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what its page says."""
        lines = printed("mcp_client.py", monkeypatch, capsys, tmp_path)
        assert lines[-1] == "a write: Unknown tool: append"

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("mcp", monkeypatch, tmp_path)
