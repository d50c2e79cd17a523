"""Threads that came from a file: whatever a checkpoint names, nothing of it is imported or called."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import random
from dataclasses import dataclass
from typing import Any

import ormsgpack
import pytest
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from support.sizes import heavy, size

import tape
from integrations import hostile
from integrations.hostile import BAIT, watched
from integrations.langgraph.threads import THREAD, put, values
from tape.integrations.langgraph import TapeSaver, TapeStore

HERE = "integrations.hostile"
SAFE_METADATA = {"json": {"source": "loop", "step": 0, "parents": {}}}
CHECKPOINT = {"json": {"v": 4, "ts": "2026-01-01", "channel_versions": {"n": "1"}, "versions_seen": {}}}


@dataclass
class Trip:
    """A class that the program names."""

    city: str
    days: int


def ext(code: int, value: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS))


def packed(value: Any) -> dict[str, str]:
    return {"serde": "msgpack", "base64": base64.b64encode(ormsgpack.packb(value)).decode()}


def kind(name: str, raw: bytes) -> dict[str, str]:
    return {"serde": name, "base64": base64.b64encode(raw).decode()}


class Pickled:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return hostile.trap, ("pickled",)


def lc(number: int, *path: str, **kwargs: Any) -> dict[str, str]:
    said = {"lc": number, "type": "constructor", "id": list(path), "kwargs": kwargs, "args": ["x"]}
    return kind("json", json.dumps(said).encode())


PAYLOADS = {
    "a function with one argument": packed(ext(0, ("os", "system", "true"))),
    "a function with arguments": packed(ext(1, (HERE, "trap", ["a", "b"]))),
    "a function with names": packed(ext(2, (HERE, "trap", {"a": 1}))),
    "a method": packed(ext(3, (HERE, "Trap", "x", "model_construct"))),
    "a model of pydantic 1": packed(ext(4, (HERE, "Trap", {"a": 1}))),
    "a model of pydantic 2": packed(ext(5, (HERE, "Trap", {"a": 1}, "model_validate_json"))),
    "a module that is only imported": packed(ext(0, (BAIT, "anything", "x"))),
    "code": packed(ext(0, ("builtins", "exec", "import antigravity"))),
    "a pickle": kind("pickle", pickle.dumps(Pickled())),
    "a pickle said to be encrypted": kind("pickle+none", pickle.dumps(Pickled())),
    "a constructor of LangChain": lc(1, "langchain_core", "prompts", "prompt", "PromptTemplate", template="{x}"),
    "a constructor in JSON": lc(2, HERE, "trap"),
    "a command inside a snapshot": packed(ext(7, ext(0, ("os", "system", "true")))),
    "a command inside a safe type": packed(ext(0, ("builtins", "set", [ext(0, (HERE, "trap", "x"))]))),
    "a command as a path": packed(ext(1, ("pathlib", "os.system", ["true"]))),
    "a command as a named tuple": packed(ext(2, ("subprocess", "Popen", {"args": ["true"]}))),
    "a message with a command in it": packed(
        ext(5, ("langchain_core.messages.human", "HumanMessage", {"content": ext(0, (HERE, "trap", "x"))}, "m"))
    ),
    "an array of objects": packed(ext(6, ("O", [1], "C", b"\0" * 8))),
}


def checkpoint(value: Any, **more: Any) -> dict[str, Any]:
    return {"id": "1", "metadata": SAFE_METADATA, "checkpoint": CHECKPOINT, "channels": {"n": value}, **more}


def thread(*events: tuple[str, dict[str, Any]], name: str = "chat") -> Any:
    """Return what writes a thread whose events say whatever they say."""

    def fill(store: tape.Store) -> None:
        chat = store.create(name)
        chat.label("langgraph")
        for event, data in events:
            place = event.partition(":")[0] == "langgraph.checkpoint" and "id" in data
            chat.event(event, data, key=f"langgraph::{data['id']}" if place else None)

    return fill


def read_all(store: tape.Store, **options: Any) -> list[Any]:
    """Read a thread in every way; what cannot be read is Corrupt."""
    saver = TapeSaver(store, **options)
    config: Any = {"configurable": {**THREAD["configurable"], "checkpoint_id": "1"}}
    answers: list[Any] = []
    for read in (
        lambda: saver.get_tuple(THREAD),
        lambda: saver.get_tuple(config),
        lambda: list(saver.list(None)),
        lambda: list(saver.list(THREAD, filter={"step": 0})),
        lambda: saver.get_delta_channel_history(config=THREAD, channels=["n"]),
        lambda: saver.delete_for_runs(["x"]),
    ):
        try:
            answers.append(read())
        except tape.Corrupt as error:
            answers.append(error)
    return answers


class Backwards(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "backwards", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


SERIALIZERS: dict[str, Any] = {
    "LangGraph's": dict,
    "one that names a class": lambda: {"classes": [Trip]},
    "one that encrypts": lambda: {
        "serde": EncryptedSerializer(Backwards(), JsonPlusSerializer(allowed_msgpack_modules=None))
    },
}


class TestCheckpoints:
    @pytest.mark.parametrize("serializer", SERIALIZERS)
    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_nothing_that_a_file_names_is_called(self, store: tape.Store, payload: str, serializer: str) -> None:
        """A channel, metadata, a checkpoint and a pending write may name anything: it is plain data, or refused."""
        value = PAYLOADS[payload]
        hostile.imported(
            store,
            thread(
                ("langgraph.checkpoint", {**checkpoint(value), "parent": "1"}),
                ("langgraph.writes::1", {"task": "t", "path": "", "writes": [[0, "n", value]]}),
            ),
        )
        hostile.imported(store, thread(("langgraph.checkpoint", {**checkpoint(value), "metadata": value}), name="b"))
        hostile.imported(store, thread(("langgraph.checkpoint", {**checkpoint(value), "checkpoint": value}), name="c"))
        with watched():
            for answer in read_all(store, **SERIALIZERS[serializer]()):
                assert answer != "called"

    @pytest.mark.parametrize("payload", ["a function with arguments", "a model of pydantic 2"])
    def test_a_message_of_a_class_that_was_not_named_is_plain_data(self, store: tape.Store, payload: str) -> None:
        """A message whose ``meta`` holds an object is read without that object."""

        def fill(source: tape.Store) -> None:
            chat = source.create("chat")
            chat.label("langgraph")
            said = chat.append(role="user", content="x", meta={"langchain": {"value": PAYLOADS[payload]}})
            held = {"messages": said.message_id, "count": 1}
            chat.event("langgraph.checkpoint", checkpoint(held), key="langgraph::1")

        hostile.imported(store, fill)
        with watched():
            assert values(TapeSaver(store))["n"] in ([["a", "b"]], [{"a": 1}])

    @heavy
    def test_fuzzed_extension_values_run_no_code(self, scratch: tape.Store) -> None:
        """Any code, any name and any shape, nested at will: no name is followed unless it is one of the safe types."""
        chance = random.Random(4)
        names = [
            ("os", "system"),
            ("subprocess", "run"),
            ("builtins", "eval"),
            ("builtins", "__import__"),
            ("builtins", "getattr"),
            ("importlib", "import_module"),
            ("pickle", "loads"),
            ("pathlib", "Path"),
            ("pathlib", "PosixPath"),
            ("re", "compile"),
            ("datetime", "datetime"),
            ("uuid", "UUID"),
            ("zoneinfo", "ZoneInfo"),
            ("collections", "deque"),
            ("decimal", "Decimal"),
            ("langgraph.types", "Send"),
            ("langgraph.types", "Command"),
            ("langgraph.store.base", "Item"),
            ("langchain_core.messages.ai", "AIMessage"),
            ("langchain_core.load.load", "load"),
            (HERE, "trap"),
            (HERE, "Trap"),
            (BAIT, "x"),
            ("antigravity", "x"),
        ]
        leaves: list[Any] = [None, True, 0, -1, 2**63, 1.5, "", "true", "trap", b"\x80\x04", [], {}, BAIT]

        def value(depth: int) -> Any:
            shape = chance.random()
            if depth > 3 or shape < 0.25:
                return chance.choice(leaves)
            if shape < 0.4:
                return [value(depth + 1) for _ in range(chance.randrange(4))]
            if shape < 0.5:
                return {str(chance.choice(leaves)): value(depth + 1) for _ in range(chance.randrange(3))}
            module, name = chance.choice(names)
            parts: list[Any] = [module, name, value(depth + 1), chance.choice(["fromisoformat", "__call__", "trap", 1])]
            if chance.random() < 0.2:
                chance.shuffle(parts)
            if chance.random() < 0.2:
                parts = parts[: chance.randrange(5)]
            if parts and chance.random() < 0.1:
                parts[chance.randrange(len(parts))] = value(depth + 1)
            code = chance.choice([0, 1, 2, 3, 4, 5, 6, 7, chance.randrange(128)])
            if chance.random() < 0.05:
                return ormsgpack.Ext(code, chance.randbytes(chance.randrange(12)))
            return ext(code, parts)

        kinds = itertools.cycle(["msgpack"] * 9 + ["json"])
        count = size(200, 2_000)
        chat = scratch.create("chat")
        chat.label("langgraph")
        channels = {}
        for number in range(count):
            raw = ormsgpack.packb(value(0), option=ormsgpack.OPT_NON_STR_KEYS)
            channels[f"n{number}"] = kind(next(kinds), raw)
        for number, (name, held) in enumerate(channels.items()):
            said = {**checkpoint(held), "id": f"{number:05}", "channels": {name: held}}
            chat.event("langgraph.checkpoint", said, key=f"langgraph::{number:05}")
        saver, refused = TapeSaver(scratch), 0
        with watched():
            for number in range(count):
                config: Any = {"configurable": {**THREAD["configurable"], "checkpoint_id": f"{number:05}"}}
                try:
                    found = saver.get_tuple(config)
                    assert found is not None
                    assert "called" not in repr(found.checkpoint["channel_values"])
                except tape.Corrupt:
                    refused += 1
        assert 0 < refused < count

    @pytest.mark.parametrize(
        "data",
        [
            [],
            "x",
            None,
            {},
            {"id": 1},
            {"id": "1"},
            checkpoint([]),
            checkpoint({"same": "nowhere"}),
            checkpoint({"parts": [["nowhere", 1]], "end": []}),
            checkpoint({"messages": "nobody"}),
            checkpoint({"serde": 1, "base64": "?"}),
            checkpoint({"serde": "msgpack", "base64": "!!"}),
            checkpoint({"serde": "msgpack", "base64": base64.b64encode(b"\x91" * 5_000 + b"\xc0").decode()}),
            checkpoint({"json": 1}, metadata={"json": []}),
            checkpoint({"json": 1}, checkpoint={"json": 1}),
            checkpoint({"json": 1}, parent=[1]),
            {"top": 1},
            {"top": "nowhere"},
            {"writes": 1},
        ],
        ids=lambda data: json.dumps(data)[:60],
    )
    def test_a_record_of_any_shape_is_read_or_corrupt(self, store: tape.Store, data: Any) -> None:
        """No other error comes out of a checkpoint, whatever it holds."""

        def fill(source: tape.Store) -> None:
            chat = source.create("chat")
            chat.label("langgraph")
            chat.event("langgraph.namespace", {"ns": "x"})
            chat.event("langgraph.checkpoint", data, key="langgraph::1")
            chat.event("langgraph.writes::1", data)

        hostile.imported(store, fill)
        with watched():
            read_all(store)


class TestClasses:
    def test_a_class_that_the_program_names_comes_back(self, store: tape.Store) -> None:
        """Without its name the value is plain data; with it, it is an object again."""
        put(TapeSaver(store), {"trip": Trip("Lisbon", 2)})
        assert values(TapeSaver(store))["trip"] == {"city": "Lisbon", "days": 2}
        assert values(TapeSaver(store, classes=[Trip]))["trip"] == Trip("Lisbon", 2)
        assert values(TapeSaver(store, classes=[(Trip.__module__, "Trip")]))["trip"] == Trip("Lisbon", 2)

    def test_a_class_named_beside_a_serializer_that_encrypts_comes_back(self, store: tape.Store) -> None:
        """``classes`` are added to those that the inner serializer names."""
        serde = EncryptedSerializer(Backwards(), JsonPlusSerializer(allowed_msgpack_modules=None))
        put(TapeSaver(store, serde=serde), {"trip": Trip("Lisbon", 2)})
        assert values(TapeSaver(store, serde=serde, classes=[Trip]))["trip"] == Trip("Lisbon", 2)

    @pytest.mark.parametrize(
        "serde",
        [
            JsonPlusSerializer(),
            JsonPlusSerializer(allowed_msgpack_modules=True),
            JsonPlusSerializer(allowed_msgpack_modules=None, pickle_fallback=True),
            EncryptedSerializer(Backwards()),
        ],
        ids=["open", "open on purpose", "pickle", "encrypting and open"],
    )
    def test_a_serializer_that_calls_anything_is_refused(self, store: tape.Store, serde: Any) -> None:
        """LangGraph's own default calls whatever a checkpoint names."""
        with pytest.raises(tape.InvalidEntry, match="serde: calls whatever a checkpoint names"):
            TapeSaver(store, serde=serde)


class TestMemory:
    @pytest.mark.parametrize("name", ["no JSON", '{"a": 1}', "[1]", "[" * 200, '["a"]'])
    def test_a_tape_of_any_name_does_not_end_a_search(self, store: tape.Store, name: str) -> None:
        """A tape whose name is not a namespace is skipped; a message that is not an item is Corrupt."""
        memory = TapeStore(store)
        memory.put(("trips",), "k", {"text": "Ann likes trains"})

        def fill(source: tape.Store) -> None:
            chat = source.create("langgraph-store:a", name=name, labels=["langgraph-store"])
            chat.append(role="memory", content={"text": "x"}, meta={"key": 1, "created": "never"})

        hostile.imported(store, fill)
        with watched():
            assert [item.key for item in memory.search(("trips",))] == ["k"]
            assert ("trips",) in memory.list_namespaces()
            if name == '["a"]':
                with pytest.raises(tape.Corrupt, match="cannot be read"):
                    memory.get(("a",), "k")
                    memory.search(("a",))
