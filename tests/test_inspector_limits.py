"""What one owner may take of the inspector, and what its pages cost."""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.asking import asked, work
from support.backends import Backend
from support.browsing import PATIENCE, Site, served
from support.sizes import size

import tape
from tape.db.engine.transaction import Transaction
from tape.web import live, parts
from tape.web.page_request import PageRequest
from tape.web.pages import context, usage

CLIENTS = 64
COMINGS = size(3, 30)
"""How often each client comes and goes."""


COME_AND_GO = """import asyncio, sys
port, clients, comings = map(int, sys.argv[1:])
listened = 0
async def listen():
    global listened
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /health/live HTTP/1.1\\r\\nhost: 127.0.0.1:%d\\r\\nx-user: her\\r\\n\\r\\n" % port)
    answer = b""
    while b"event: progress" not in answer and (piece := await reader.read(4096)):
        answer += piece
        if b" 503 " in answer:
            break
    listened += b"event: progress" in answer
    writer.transport.abort()
    return b"event: progress" in answer
async def client():
    for _ in range(comings):
        while not await listen():
            pass
async def main():
    await asyncio.gather(*(client() for _ in range(clients)))
asyncio.run(main())
print(listened)
"""
"""Clients in a separate process. Each one listens to the examination, then aborts its connection."""


@pytest.fixture
def shared(store: tape.Store) -> Iterator[Site]:
    """An inspector behind a proxy, with a tape of each of two owners."""
    store.create("hers", owner="her").append(role="user", content="her secret")
    store.create("his", owner="him").append(role="user", content="his secret")
    with served(store, proxy="127.0.0.1", owner_header="x-user") as site:
        yield site


class Examinations:
    """Every examination of a store: counted, and under way until the test lets it finish."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: list[str | None] = []
        self.running = self.most = 0
        self.finish = threading.Event()
        examine = tape.Store.doctor

        def doctor(store: tape.Store, *, quick: bool = False, progress: Any = None) -> list[tape.Finding]:
            self.started.append(store.owner)
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                while not self.finish.wait(0.01):
                    progress(1, 2)
                return examine(store, quick=quick, progress=progress)
            finally:
                self.running -= 1

        patch.setattr(tape.Store, "doctor", doctor)


@pytest.fixture
def examinations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Examinations]:
    examinations = Examinations(monkeypatch)
    yield examinations
    examinations.finish.set()


@contextlib.contextmanager
def listening(site: Site, path: str, owner: str) -> Iterator[http.client.HTTPResponse]:
    """Open a live stream and leave it at the end of the block."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"accept": "text/event-stream", "x-user": owner})
        with contextlib.closing(connection.getresponse()) as stream:
            yield stream


def until(condition: Any) -> None:
    """Wait until something holds, for a bounded time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Visits:
    """Pages of an owner, asked for one after the other while others do something, and how long each took."""

    def __init__(self, site: Site, path: str, owner: str) -> None:
        self.times: list[float] = []
        self._site, self._path, self._owner = site, path, owner
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.is_set():
            start = time.monotonic()
            assert self._site.ask(self._path, known=False, x_user=self._owner).status == 200
            self.times.append(time.monotonic() - start)

    def __enter__(self) -> Visits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


class TestExaminations:
    def test_clients_that_come_and_go_share_one_and_another_owner_is_served(
        self, shared: Site, examinations: Examinations
    ) -> None:
        """One examination runs however many clients ask for it and leave, and another owner's pages come at once."""

        port, clients, comings = (str(number) for number in (shared.port, CLIENTS, COMINGS))
        with Visits(shared, "/t/his", "him") as visits:
            told = subprocess.run(
                [sys.executable, "-c", COME_AND_GO, port, clients, comings],
                timeout=10 * PATIENCE, capture_output=True, text=True, check=True,
            )  # fmt: skip
        assert int(told.stdout) == CLIENTS * COMINGS
        print(CLIENTS, "clients:", len(visits.times), "pages of another owner, the slowest in s:", max(visits.times))
        assert examinations.started == ["her"]
        assert max(visits.times) < 1

    def test_it_ends_when_nobody_listens_and_the_next_one_begins_anew(
        self, shared: Site, examinations: Examinations
    ) -> None:
        """The examination ends when the last listener leaves. The next listener starts a new one."""
        with listening(shared, "/health/live", "her") as stream:
            assert stream.readline() == b"event: progress\n"
            assert examinations.running == 1
        until(lambda: examinations.running == 0)
        examinations.finish.set()
        with listening(shared, "/health/live", "her") as stream:
            told = stream.read().decode()
        assert examinations.started == ["her", "her"]
        assert told.count("event: finding") > 3
        assert told.endswith("event: end\ndata: {}\n\n")

    def test_those_of_a_store_run_one_after_the_other(self, shared: Site, examinations: Examinations) -> None:
        """Another owner's examination, which finds something else, waits for its turn."""
        with listening(shared, "/health/live", "her") as stream, listening(shared, "/health/live", "him") as other:
            assert stream.readline() == b"event: progress\n"
            examinations.finish.set()
            assert b"event: end" in stream.read()
            assert b"event: end" in other.read()
        assert (examinations.started, examinations.most) == (["her", "him"], 1)


class TestOwners:
    def test_all_streams_of_one_owner_leave_the_others_served(self, shared: Site) -> None:
        """Who has as many live pages as an owner may is refused one more; another owner is not."""
        with contextlib.ExitStack() as opened:
            for _ in range(live._STREAMS):
                assert opened.enter_context(listening(shared, "/t/hers/live?after=2", "her")).status == 200
            with listening(shared, "/t/hers/live", "her") as stream:
                assert stream.status == 503
            with listening(shared, "/t/his/live?after=0", "him") as stream:
                assert stream.status == 200
                assert [stream.readline() for _ in range(3)][2] == b"event: head\n"
            start = time.monotonic()
            assert shared.ask("/t/his", known=False, x_user="him").status == 200
            assert time.monotonic() - start < 1

        def served_again() -> bool:
            with listening(shared, "/t/hers/live", "her") as stream:
                return stream.status == 200

        until(served_again)

    def test_slow_pages_of_one_owner_leave_the_others_served(
        self, shared: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Pages of one owner run on a few threads, so any number of slow ones holds up no other owner."""
        running, most, finish = 0, 0, threading.Event()
        lock = threading.Lock()

        def search(store: tape.Store, *_: object, **__: object) -> list[tape.Hit]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            finish.wait(PATIENCE)
            with lock:
                running -= 1
            return []

        monkeypatch.setattr(tape.Store, "search", search)
        with ThreadPoolExecutor(CLIENTS) as clients:
            pages = [clients.submit(shared.ask, "/search?q=x", known=False, x_user="her") for _ in range(CLIENTS)]
            until(lambda: running)
            with Visits(shared, "/t/his", "him") as visits:
                until(lambda: len(visits.times) > 5)
            finish.set()
            assert [page.result().status for page in pages] == [200] * CLIENTS
        assert most <= live._THREADS
        assert max(visits.times) < 1


class TestManyParts:
    @pytest.mark.parametrize("made_of", ["texts", "calls"])
    def test_only_parts_that_are_shown_are_drawn(
        self, quick: Backend, monkeypatch: pytest.MonkeyPatch, made_of: str
    ) -> None:
        """Of a message with very many parts the first are drawn, and the page tells how many more there are."""
        many = size(3_000, 100_000 if made_of == "texts" else 20_000)
        function = {"name": "look", "arguments": "{}"}
        message: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": "a"}] * many}
        if made_of == "calls":
            calls = [{"id": f"c{place}", "type": "function", "function": function} for place in range(many)]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        drawn = 0
        draw = parts._part

        def counted(part: Any) -> Any:
            nonlocal drawn
            drawn += 1
            return draw(part)

        monkeypatch.setattr(parts, "_part", counted)
        with quick.open() as store:
            store.tape("many").append(message)
            with served(store) as site:
                for path in (
                    "/t/many",
                    "/t/many/context",
                    "/e/many/2",
                    "/e/many/2/text?part=2000",
                    "/diff?a=many&b=many",
                ):
                    before = drawn
                    start = time.monotonic()
                    answer = site.ask(path)
                    print(many, made_of, path, "s:", round(time.monotonic() - start, 2), "bytes:", len(answer.body))
                    assert (path, answer.status, len(answer.body) < 120_000) == (path, 200, True)
                    assert drawn - before <= 2 * parts._MANY
                (shown,) = site.ask("/t/many").json["messages"]
                assert (len(shown["parts"]), shown["more"]) == (parts._MANY, many - parts._MANY)


def rows_of(call: Any) -> int:
    """Return how many rows the queries of a call return."""
    rows = 0
    one, every = Transaction.one, Transaction.all

    def first(tx: Transaction, statement: Any, params: Any) -> Any:
        nonlocal rows
        row = one(tx, statement, params)
        rows += row is not None
        return row

    def all_(tx: Transaction, statement: Any, params: Any) -> Any:
        nonlocal rows
        found = every(tx, statement, params)
        rows += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "one", first)
        patch.setattr(Transaction, "all", all_)
        call()
    return rows


class TestLongTapes:
    @pytest.fixture
    def tapes(self, store: tape.Store) -> dict[str, tape.Tape]:
        """A short and a long tape, without usage."""
        tapes = {}
        for name, length in (("short", 200), ("long", size(3_000, 50_000))):
            tapes[name] = store.create(name)
            for start in range(0, length, 1_000):
                last = min(1_000, length - start)
                tapes[name].extend([{"role": "user", "content": f"message {start + place}"} for place in range(last)])
        return tapes

    def test_a_context_without_a_budget_reads_what_the_page_shows(
        self, store: tape.Store, tapes: dict[str, tape.Tape]
    ) -> None:
        """The page of a long tape has the end of the context and says so, for three times the rows of a short one."""
        page = {name: context.context(PageRequest(store, id=name)) for name in tapes}
        rows = {name: rows_of(lambda name=name: context.context(PageRequest(store, id=name))) for name in tapes}
        print("rows read:", rows)
        assert rows["long"] <= 3 * rows["short"]
        assert (page["short"]["partial"], len(page["short"]["regions"])) == (False, 200)
        assert (page["long"]["partial"], len(page["long"]["regions"])) == (True, 300)
        last = tapes["long"].messages(limit=300)
        assert [region["source"]["seq"] for region in page["long"]["regions"]] == [message.seq for message in last]
        past = tapes["long"].info().head - 1
        assert rows_of(lambda: context.context(PageRequest(store, id="long", point=past))) <= 3 * rows["short"]

    def test_a_whole_context_is_the_same_as_the_tapes_own(self, store: tape.Store, tapes: dict[str, tape.Tape]) -> None:
        """With an anchor, summaries, branches and a fork the page has all regions, the tokens and the hash."""
        chat = tapes["long"]
        chat.anchor("begin")
        ids = [chat.append(role="user", content=f"after {place}").message_id for place in range(20)]
        chat.set_summary("what was said", first=str(ids[3]), last=str(ids[8]))
        chat.append(role="assistant", content="again", parent=ids[12])
        child = chat.fork()
        child.append(role="assistant", content="in the fork")
        for of in (chat, child):
            built, page = of.context(), context.context(PageRequest(store, id=of.id))
            assert (page["partial"], page["hash"]) == (False, built.manifest.hash)
            assert (page["tokens"], len(page["regions"])) == (built.tokens, len(built.messages))
            assert len(page["excluded"]) == len(built.manifest.excluded)

    def test_usage_that_is_not_there_is_not_looked_for(
        self, backend: Backend, store: tape.Store, tapes: dict[str, tape.Tape]
    ) -> None:
        """Without any usage the page of a long tape is as much work as that of a short one."""

        def page(name: str) -> Any:
            return usage.usage(PageRequest(store, id=name))

        short, long = (work(backend, asked(lambda name=name: page(name))) for name in ("short", "long"))  # type: ignore[misc]
        assert long <= 2 * short + 100
        assert page("long")["plots"] == []
        tapes["long"].record_usage(input_tokens=5, model="m")
        assert (page("long")["totals"]["calls"], len(page("long")["plots"])) == (1, 2)
