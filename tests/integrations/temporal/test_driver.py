"""TapeStorageDriver behind Temporal's own data converter: the history of a workflow holds pointers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    StorageDriverActivityInfo,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

import tape
from integrations.examples import check_section
from tape.integrations.temporal import TapeStorageDriver

WORDS = "the quick brown fox jumps over the lazy dog and runs away from a very slow bear "
CONTEXT = StorageDriverStoreContext(target=StorageDriverWorkflowInfo(namespace="default", id="order-1"))


def say(number: int, size: int = 16) -> dict[str, Any]:
    return {"role": ("user", "assistant")[number % 2], "content": f"{number} {WORDS * size}", "id": f"own-{number}"}


def converter(store: Any) -> DataConverter:
    driver = TapeStorageDriver(store)
    return DataConverter(external_storage=ExternalStorage(drivers=[driver], payload_size_threshold=1_000))


def test_a_hundred_calls_on_a_long_conversation(backend: Backend) -> None:
    """100 calls with 209 000 tokens each: the history holds under 1 MB, the tape what the calls added, and each call
    is given its conversation byte for byte.
    """
    with backend.open(durability="normal") as store:
        data = converter(store)
        conversation = [say(number) for number in range(826)]

        async def call(number: int) -> tuple[int, bool]:
            conversation.extend([say(826 + 2 * number, 1), say(827 + 2 * number, 1)])
            encoded = await data.encode([conversation])
            (decoded,) = await data.decode(encoded) if number % 10 == 0 else [conversation]
            return sum(payload.ByteSize() for payload in encoded), decoded == conversation

        async def workload() -> list[tuple[int, bool]]:
            return [await call(number) for number in range(100)]

        calls = asyncio.run(workload())
        assert all(equal for _, equal in calls)
        history = sum(size for size, _ in calls)
        chat = store.tape("temporal")
        assert chat.context().tokens >= 209_000
        print(f"{backend.name}: history {history} bytes, tape {store.stats().bytes} bytes")
        assert history < 100_000
        assert store.stats().messages == 1026
        assert store.stats().bytes < 3_000_000


def about(id: str | None, *, activity: bool = False, namespace: str = "default") -> StorageDriverStoreContext:
    kind = StorageDriverActivityInfo if activity else StorageDriverWorkflowInfo
    return StorageDriverStoreContext(target=kind(namespace=namespace, id=id))


def test_every_workflow_and_activity_has_a_tape_of_its_own(backend: Backend) -> None:
    """Ids that agree in 240 characters, look like each other's paths, or hold control characters are kept apart, and
    two owners have workflows of one id.
    """
    contexts = [
        about("x" * 240 + "1"),
        about("x" * 240 + "2"),
        about("a1"),
        about("a1", activity=True),
        about("activity/a1"),
        about("activity"),
        about("b/a1", namespace="default"),
        about("a1", namespace="default/b"),
        about("tab\tnew\nline\0"),
        about("tab\tnew\nline"),
        about("-"),
        about(None, activity=True),
        StorageDriverStoreContext(target=None),
    ]
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'[{"content":"hi","role":"user"}]')
    with backend.open() as store:
        for own in (store, store.scoped("ann"), store.scoped("bob")):
            driver = TapeStorageDriver(own)

            async def both_ways(context: StorageDriverStoreContext, driver: TapeStorageDriver = driver) -> None:
                claims = await driver.store(context, [payload])
                assert await driver.retrieve(StorageDriverRetrieveContext(), claims) == [payload]

            for context in contexts:
                asyncio.run(both_ways(context))
        assert store.stats().tapes == 3 * len(contexts)
        assert "temporal/default/a1" in {info.id for info in store.tapes()}


@pytest.mark.parametrize(
    "payload",
    [
        Payload(metadata={"encoding": b"binary/plain"}, data=bytes(range(256)) * 9),
        Payload(metadata={"encoding": b"json/plain"}, data=b'[{"a": 1}]'),
        Payload(metadata={"encoding": b"json/plain"}, data=b'[{"a":1,"a":2}]'),
        Payload(metadata={"encoding": b"json/plain"}, data=b'[{"n":NaN}]'),
        Payload(metadata={"encoding": b"json/plain"}, data=b'[{"n":1e400}]'),
        Payload(metadata={"encoding": b"json/plain"}, data=b'[{"text":"half \\ud83d"}]'),
        Payload(metadata={"encoding": b"json/plain"}, data=b"[{}]"),
        Payload(metadata={"encoding": b"json/plain"}, data=b"[]"),
        Payload(metadata={"encoding": b"json/plain", "x": b"\xff\0"}, data=b'[{"role":"user","tool_call_id":[1]}]'),
        Payload(),
    ],
)
def test_any_payload_comes_back_byte_for_byte(quick: Backend, payload: Payload) -> None:
    """Also what is no list of messages, or no JSON that a tape takes."""
    with quick.open() as store:
        driver = TapeStorageDriver(store)

        async def both_ways() -> None:
            claims = await driver.store(CONTEXT, [payload, payload])
            assert claims[0] == claims[1]
            assert await driver.retrieve(StorageDriverRetrieveContext(), claims) == [payload, payload]

        asyncio.run(both_ways())
        assert [info.id for info in store.list().items] == ["temporal/default/order-1"]


def test_conversations_branch_and_are_checked(backend: Backend) -> None:
    """Another ending is a branch; a claim of a changed conversation is Corrupt; a repeated store adds nothing."""
    with backend.open() as store:
        driver = TapeStorageDriver(store)
        data = DataConverter.default.payload_converter

        async def story() -> None:
            one, two = [say(0), say(1)], [say(0), say(2)]
            payloads = [data.to_payload(each) for each in (one, two, one)]
            claims = await driver.store(CONTEXT, payloads)
            assert await driver.retrieve(StorageDriverRetrieveContext(), claims) == payloads
            assert store.stats().messages == 3
            forged = {**claims[0].claim_data, "head": claims[1].claim_data["head"]}
            with pytest.raises(tape.TapeError):
                await driver.retrieve(StorageDriverRetrieveContext(), [StorageDriverClaim(forged)])

        asyncio.run(story())


def test_the_section_of_the_page_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the page shows is what happens."""
    check_section("temporal", monkeypatch, tmp_path)
