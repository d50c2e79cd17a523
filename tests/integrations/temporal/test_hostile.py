"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

import tape
from integrations.hostile import VALUES, watched
from tape.integrations.temporal import TapeStorageDriver

CONTEXT = StorageDriverStoreContext(target=StorageDriverWorkflowInfo(namespace="n", id="w"))
DEEP = b"[" * 8_000 + b"]" * 8_000


@pytest.mark.parametrize("value", VALUES)
def test_a_payload_that_a_file_changed_is_refused(value: str) -> None:
    """A claim is answered with the payload that was stored, or not at all: its digest decides."""
    held = VALUES[value]

    async def read(store: tape.Store) -> None:
        driver = TapeStorageDriver(store)
        for data in (b'{"a": 1}', b'[{"role": "user", "content": "x"}]', DEEP, b'[{"a": ' + DEEP + b"}]"):
            payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
            (claim,) = await driver.store(CONTEXT, [payload])
            assert await driver.retrieve(StorageDriverRetrieveContext(), [claim]) == [payload]
            chat = store.create(tape.new_id())
            chat.event("temporal.payload", held, key=f"temporal:{claim.claim_data['digest']}")
            chat.event("temporal.payload", {"payload": held}, key="other")
            chat.append(role="user", content=held, id="m")
            for changed in (
                {"pointer": chat.pointer()},
                {"pointer": chat.pointer(), "head": "m", "metadata": "{}"},
                {"pointer": chat.pointer(), "head": "m", "metadata": "[" * 9_000},
            ):
                told: Any = StorageDriverClaim({**claim.claim_data, **changed})
                with pytest.raises(tape.TapeError):
                    await driver.retrieve(StorageDriverRetrieveContext(), [told])

    with tape.open(":memory:") as store, watched():
        asyncio.run(read(store))
