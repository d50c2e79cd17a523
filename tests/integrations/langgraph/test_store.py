"""TapeStore keeps the memory of graphs as LangGraph's own stores do, finds it by its words, and forgets nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from support.backends import Backend
from support.processes import Crew

import tape
from integrations.contention import hold_together
from tape.integrations.langgraph import TapeStore

ANN, BEN = ("users", "ann"), ("users", "ben")


def keys(found: list[Any]) -> list[str]:
    return [f"{'.'.join(item.namespace)}/{item.key}" for item in found]


class TestItems:
    def test_two_owners_have_namespaces_of_one_name(self, store: tape.Store) -> None:
        """Each finds and lists its own items."""
        memories = {owner: TapeStore(store.scoped(owner)) for owner in ("ann", "bob")}
        for owner, memory in memories.items():
            memory.put(ANN, "name", {"said": owner})
        for owner, memory in memories.items():
            held = memory.get(ANN, "name")
            assert held is not None
            assert held.value == {"said": owner}
            assert (len(memory.search(())), memory.list_namespaces()) == (1, [ANN])

    @pytest.mark.parametrize("seed", range(5))
    def test_items_are_kept_as_in_memory(self, store: tape.Store, seed: int) -> None:
        """After random puts, deletes and reopenings both stores have the same items, found by the same filters."""
        print(f"seed {seed}")
        chance = random.Random(seed)
        ours, theirs = TapeStore(store), InMemoryStore()
        places = [ANN, BEN, ("users",), ("a", "b", "c"), ("odd name", "\t", "x" * 300)]
        for number in range(60):
            namespace, key = chance.choice(places), chance.choice(["one", "two", "k" * 300, "tab\t"])
            value = None if chance.random() < 0.3 else {"n": number, "deep": {"even": number % 2 == 0, "none": None}}
            ops = [PutOp(namespace, key, value), GetOp(namespace, key), PutOp(namespace, "last", {"n": number})]
            assert [item and item.value for item in ours.batch(ops)] == [
                item and item.value for item in theirs.batch(ops)
            ]
            if chance.random() < 0.1:
                ours = TapeStore(store)
        for prefix in ((), ("users",), ANN, ("a",), ("none",)):
            for test in (None, {"n": 59}, {"n": {"$gte": 20, "$ne": 30}}, {"deep": {"even": True, "none": None}}):
                one, other = (each.search(prefix, filter=test, limit=100) for each in (ours, theirs))
                pairs = [[(item.namespace, item.key, str(item.value)) for item in found] for found in (one, other)]
                assert sorted(pairs[0]) == sorted(pairs[1])
        assert [item.value["n"] for item in ours.search(ANN, limit=2)] == sorted(
            (item.value["n"] for item in theirs.search(ANN, limit=100)), reverse=True
        )[:2]
        held = [namespace for namespace in theirs.list_namespaces() if theirs.search(namespace)]
        assert ours.list_namespaces() == held
        for how in (
            {"prefix": ("users",)},
            {"suffix": ("*", "c")},
            {"max_depth": 1},
            {"prefix": ("a", "*"), "limit": 1},
        ):
            assert ours.list_namespaces(**how) == theirs.list_namespaces(**how)
        assert store.verify().ok

    def test_times_and_what_was_there(self, store: tape.Store) -> None:
        """An item has the time of its first value and of its last; what was overwritten is on the tape."""
        memory = TapeStore(store)
        memory.put(ANN, "k", {"v": 1})
        first = memory.get(ANN, "k")
        memory.put(ANN, "k", {"v": 2})
        second = memory.get(ANN, "k")
        assert first is not None
        assert second is not None
        assert first.created_at == second.created_at <= first.updated_at < second.updated_at
        memory.delete(ANN, "k")
        assert memory.get(ANN, "k") is None
        memory.put(ANN, "k", {"v": 3})
        third = memory.get(ANN, "k")
        assert third is not None
        assert third.created_at > second.updated_at
        (info,) = store.list(label="langgraph-store").items
        assert len(list(store.get(info.id).entries(kinds=["append", "revise"]))) == 3

    def test_values_are_json(self, store: tape.Store) -> None:
        """Anything else is refused by type, and nothing of the batch is there."""
        memory = TapeStore(store)
        with pytest.raises(tape.InvalidEntry):
            memory.batch([PutOp(ANN, "good", {"v": 1}), PutOp(ANN, "bad", {"v": object()})])
        assert memory.search(()) == []
        with pytest.raises(NotImplementedError):
            memory.put(ANN, "k", {"v": 1}, ttl=5)

    def test_it_is_awaited_and_shared(self, tmp_path: Any) -> None:
        """An async store will do, and a saver may be on the same one."""

        async def work() -> None:
            async with await tape.open_async(tmp_path / "agent.db") as store:
                memory = TapeStore(store)
                await asyncio.gather(*(memory.aput(ANN, f"k{number}", {"n": number}) for number in range(10)))
                assert len(await memory.asearch(ANN, limit=100)) == 10
                other = TapeStore(tmp_path / "agent.db")
                assert (await other.aget(ANN, "k3")).value == {"n": 3}  # type: ignore[union-attr]
                await other.aclose()

        asyncio.run(work())


class TestSearch:
    def test_words_are_found(self, store: tape.Store) -> None:
        """Items with most of the words come first, then the newest; what was overwritten or deleted is not found."""
        memory = TapeStore(store)
        memory.put(ANN, "food", {"text": "Likes pizza", "tags": ["dinner", {"more": "Italian"}]})
        memory.put(ANN, "drink", {"text": "Likes tea"})
        memory.put(BEN, "food", {"text": "Hates pizza, likes tea"})
        assert keys(memory.search(("users",), query="likes pizza?")) == [
            "users.ben/food",
            "users.ann/food",
            "users.ann/drink",
        ]
        assert [item.score for item in memory.search(ANN, query="likes pizza")] == [1.0, 0.5]
        assert keys(memory.search(ANN, query="italian")) == ["users.ann/food"]
        assert keys(memory.search((), query="likes", filter={"text": "Likes tea"})) == ["users.ann/drink"]
        assert keys(memory.search((), query="likes", limit=1, offset=1)) == ["users.ann/drink"]
        memory.put(ANN, "food", {"text": "Likes soup"})
        memory.delete(BEN, "food")
        assert memory.search((), query="pizza") == []
        assert memory.search((), query="?!") == []

    def test_only_what_is_to_be_found_is_found(self, store: tape.Store) -> None:
        """``index`` names the fields that are searched, or none."""
        memory = TapeStore(store)
        memory.put(
            ANN, "some", {"title": "Blue", "body": "green", "list": [{"t": "red"}]}, index=["title", "list[*].t"]
        )
        memory.put(ANN, "none", {"title": "Blue"}, index=False)
        assert keys(memory.search((), query="blue")) == keys(memory.search((), query="red")) == ["users.ann/some"]
        assert memory.search((), query="green") == []
        assert memory.batch([GetOp(ANN, "none"), SearchOp(ANN, limit=1)])[0].value == {"title": "Blue"}  # type: ignore[union-attr]


def puts(store: tape.Store) -> Callable[[str], Any]:
    memory = TapeStore(store)
    return lambda mark: memory.put(ANN, mark, {"mark": mark})


def marks(store: tape.Store) -> list[str]:
    return [item.value["mark"] for item in TapeStore(store).search(ANN, limit=1_000)]


class TestTogether:
    def test_four_processes_put(self, backend: Backend, crew: Crew) -> None:
        """4 times 50 items: all are there, once."""
        assert not hold_together(crew, backend, puts, marks, least=200)
