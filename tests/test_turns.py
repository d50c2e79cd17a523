"""Test processes that share a server take turns on it, so that none finds what another one left open."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from support.backends import CITUS, dsn
from support.servers import Server
from support.sizes import full, heavy, size
from support.turns import Turn, needs_postgres

ROOT = Path(__file__).resolve().parent.parent
FEED_TESTS = size(
    ["tests/test_feed.py::TestFeed"],
    ["tests/test_feed.py", "tests/test_index.py", "tests/test_doctor.py", "tests/test_batches.py"],
)
PATIENCE = 300.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with closing(Server()) as made:
        yield made


class TestTurn:
    def test_only_one_has_it(self, server: Server) -> None:
        """Whoever comes while another process has the turn waits until that one leaves."""
        with closing(Turn(dsn(server.url))) as first, closing(Turn(dsn(server.url))) as second:
            first.take()
            waiting = threading.Thread(target=second.take)
            waiting.start()
            waiting.join(0.2)
            assert (first.taken, second.taken) == (True, False)
            first.leave()
            waiting.join(PATIENCE)
            assert (first.taken, second.taken) == (False, True)

    def test_who_has_it_may_take_it_again(self, server: Server) -> None:
        """Taking it twice is taking it once: to leave once is enough."""
        with closing(Turn(dsn(server.url))) as first, closing(Turn(dsn(server.url), "10s")) as second:
            first.take()
            first.take()
            first.leave()
            second.take()
            assert second.taken

    def test_a_process_that_is_gone_has_it_no_more(self, server: Server) -> None:
        """The lock ends with the session."""
        first = Turn(dsn(server.url))
        first.take()
        first.close()
        with closing(Turn(dsn(server.url), "10s")) as second:
            second.take()
            assert second.taken

    def test_the_wait_is_bounded(self, server: Server) -> None:
        """Who waits for too long fails, instead of waiting for ever."""
        with closing(Turn(dsn(server.url))) as first, closing(Turn(dsn(server.url), "50ms")) as second:
            first.take()
            with pytest.raises(psycopg.errors.LockNotAvailable):
                second.take()
            assert not second.taken


class TestWhoTakesOne:
    def test_a_test_on_a_file_waits_for_nobody(self, request: pytest.FixtureRequest, backend: object) -> None:
        """A test that runs on both engines takes a turn for PostgreSQL only."""
        assert needs_postgres(request.node) == ("postgresql" in request.node.name)

    def test_nor_does_one_without_a_database(self, request: pytest.FixtureRequest) -> None:
        """A test that takes no database takes no turn."""
        assert not needs_postgres(request.node)

    def test_one_that_asks_for_the_server_does(self, request: pytest.FixtureRequest, postgres_url: sa.URL) -> None:
        """A test that takes the server itself takes a turn, too."""
        assert needs_postgres(request.node)


@heavy
class TestTwoProcesses:
    @full
    def test_two_test_processes_on_one_server_do_not_disturb_each_other(self, server: Server, tmp_path: Path) -> None:
        """Tests of the feed pass in both, although each would find the other's open transactions."""
        environment = {**os.environ, "TAPE_TEST_POSTGRES_URL": dsn(server.url)}
        environment = {name: value for name, value in environment.items() if name not in (CITUS, "TAPE_TEST_FULL")}
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "postgresql", *FEED_TESTS]
        logs = [tmp_path / "first.txt", tmp_path / "second.txt"]
        processes = []
        for log in logs:
            with log.open("w") as file:
                processes.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
                )
        try:
            codes = [process.wait(PATIENCE) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        assert codes == [0, 0], "\n\n".join(log.read_text() for log in logs)
