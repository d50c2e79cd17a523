"""S15: how the store is, and how much it holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.backends import Backend

import tape
from tape.db.schema.tables import REVISION


class TestHealth:
    def test_s15_tells_connection_and_schema(self, backend: Backend) -> None:
        """A store that answers is healthy and tells engine, server version, schema and latency."""
        health = backend.open().health()
        assert (health.ok, health.engine, health.schema, health.expected_schema) == (
            True,
            backend.name,
            REVISION,
            REVISION,
        )
        assert (health.verified, health.index_lag, health.latency > 0) == (None, 0, True)
        assert health.server.split(".")[0].isdigit()

    def test_s15_tells_how_far_the_index_is_behind(self, store: tape.Store) -> None:
        """What was written since the last search is the lag; a store of one owner does not tell that of all."""
        store.create("a", messages=[{"role": "user", "content": "x"}] * 9)
        assert store.health().index_lag == 10
        store.search("x")
        assert store.health().index_lag == 0
        store.get("a").event("seen")
        assert (store.health().index_lag, store.scoped("ann").health().index_lag) == (1, None)

    def test_s15_tells_what_was_verified_last(self, store: tape.Store) -> None:
        """After a verify the last verified seq and head hash are known, of a tape and of the newest."""
        chat = store.create("a", messages=[{"role": "user", "content": "x"}])
        store.create("b")
        assert store.health("a").verified is None
        store.verify("a")
        head = chat.info()
        for check in (store.health("a").verified, store.health().verified):
            assert check is not None
            assert (check.tape, check.seq, check.hash) == ("a", head.head, head.head_hash)
        chat.append(role="user", content="y")
        health = store.health("a")
        assert (health.head, health.head_hash) == (3, chat.info().head_hash)
        assert health.verified is not None
        assert health.verified.seq == 2
        assert store.health("b").verified is None
        with pytest.raises(tape.TapeNotFound):
            store.health("never")

    def test_s15_damage_is_no_verification(self, backend: Backend, store: tape.Store) -> None:
        """A tape that does not verify keeps the seq at which it last did."""
        chat = store.create("a")
        store.verify("a")
        chat.append(role="user", content="x")
        connection = backend.raw()
        connection.execute("DELETE FROM tape_live")
        connection.close()
        assert not store.verify().ok
        check = store.health("a").verified
        assert check is not None
        assert check.seq == 1

    def test_s15_scans_nothing(self, backend: Backend, store: tape.Store) -> None:
        """Health asks a fixed number of statements; of the entries only for the position of the last one."""
        store.create("a", messages=[{"role": "user", "content": str(n)} for n in range(50)])
        store.verify()
        asked: list[str] = []
        read = store._db.read

        def watched(work: Any) -> Any:
            def watching(tx: Any) -> Any:
                class Watch:
                    statements = tx.statements
                    unit = tx.unit

                    def touch(self, tape: str) -> None:
                        tx.touch(tape)

                    def one(self, statement: Any, params: Any) -> Any:
                        asked.append(statement.sql)
                        return tx.one(statement, params)

                    def value(self, statement: Any, params: Any) -> Any:
                        asked.append(statement.sql)
                        return tx.value(statement, params)

                return work(Watch())

            return read(watching)

        store._db.read = watched  # type: ignore[method-assign]
        store.health("a")
        store._db.read = read  # type: ignore[method-assign]
        assert len(asked) == 5
        (last,) = [sql for sql in asked if "tape_entries" in sql or "tape_live" in sql]
        assert "payload" not in last
        assert "LIMIT 1" in last

    def test_s15_a_database_that_is_gone_is_told(self, backend: Backend) -> None:
        """A store that cannot be reached is not ok; nothing is raised."""
        store = backend.open()
        store.close()
        health = store.health()
        assert (health.ok, health.schema) == (False, None)


class TestStats:
    def test_s15_counts(self, store: tape.Store) -> None:
        """Tapes by status, entries, messages in the view and bytes of payloads and meta."""
        assert store.stats() == tape.Stats()
        chat = store.create("a", owner="ann", messages=[{"id": "m", "role": "user", "content": "x"}])
        store.create("b").complete()
        before = store.stats()
        assert (before.tapes, before.entries, before.messages) == (2, 4, 1)
        assert before.by_status == {"active": 1, "completed": 1}
        chat.append({"role": "user", "content": "y" * 1000}, meta={"k": "v"})
        chat.retract("m")
        after = store.stats()
        assert (after.entries, after.messages) == (6, 1)
        assert 1_000 < after.bytes - before.bytes < 1_400
        assert (store.scoped("ann").stats().tapes, store.scoped("bob").stats()) == (1, tape.Stats())

    def test_s15_async_twin(self, backend: Backend) -> None:
        """The async store tells the same."""

        async def go() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.create("a")
                assert ((await store.health()).ok, (await store.stats()).tapes) == (True, 1)

        asyncio.run(go())
