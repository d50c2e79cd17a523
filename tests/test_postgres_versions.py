"""An older PostgreSQL beside the one that all tests run on: the same history reads the same on both."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support import history
from support.backends import Backend, MakeBackend, dsn, folder_in_memory, new_backend
from support.second_release import second_release
from support.sizes import heavy

pytestmark = heavy


@pytest.fixture(scope="module")
def older() -> Iterator[sa.URL]:
    """PostgreSQL 16, from a wheel that is there for Python up to 3.12."""
    if find_spec("pgserver") is None:
        why = "NO SECOND POSTGRESQL: only one version is tested. Mend it with: pip install pgserver"
        if os.environ.get("CI") and sys.version_info < (3, 13):
            pytest.fail(why)
        pytest.skip(why)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pgserver.postgres_server import get_server

        # Unix socket paths are short by law: a deep temporary folder would not do.
        short = "/tmp" if Path("/tmp").is_dir() else None
        folder = tempfile.mkdtemp(prefix="tape-pg-", dir=folder_in_memory() or short)
        server = get_server(folder, cleanup_mode="delete")
    try:
        url = sa.make_url(str(server.get_uri())).set(drivername="postgresql+psycopg")
        with psycopg.connect(dsn(url), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url
    finally:
        server.cleanup()


@pytest.fixture
def blank(older: sa.URL, tmp_path: Path) -> Iterator[Backend]:
    with new_backend(tmp_path, older) as made:
        yield made


def everything_of(backend: Backend) -> dict[str, Any]:
    """Write a history of everything on a database, and return all that can be read of it."""
    with history.counting_ids():
        store = backend.open(clock=history.counting_clock())
        history.write_all(store)
        assert store.verify().problems == []
        tapes = sorted(info.id for info in store.list(limit=1000))
        return {
            "tapes": {name: history.describe(store, name) for name in tapes},
            "feed": [(entry.tape, entry.seq, entry.hash) for entry in store.feed()],
            "hits": [(hit.tape, hit.seq) for hit in store.search("the", limit=100)],
        }


class TestOlderPostgres:
    def test_a_history_reads_the_same(self, blank: Backend, make_backend: MakeBackend, tmp_path: Path) -> None:
        """Every verb writes the same entries, with the same hashes, and every read answers alike."""
        with make_backend("postgresql", tmp_path) as usual:
            versions = [backend.reader.info.server_version // 10_000 for backend in (blank, usual)]
            assert min(versions) >= 14
            assert everything_of(blank) == everything_of(usual)

    def test_an_older_store_is_upgraded(self, blank: Backend) -> None:
        """Revisions run there, and what they leave reads as it did."""
        before = everything_of(blank)
        blank.close()
        with second_release():
            store = blank.open()
            assert store.verify().problems == []
            assert {info.id for info in store.list(limit=1000)} >= set(history.TAPES)
        assert before
