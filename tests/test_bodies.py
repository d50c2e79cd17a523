"""``bodies``: what ``messages`` gives, as plain pairs of data and meta."""

from __future__ import annotations

import asyncio

import pytest
from support.backends import Backend

import tape
from tape import Snapshot, Tape


def same(chat: Snapshot, branch: str | None = None) -> None:
    """Hold the pairs against the messages: all of them, and every number of the last."""
    wanted = [(message.data, message.meta) for message in chat.messages(branch=branch)]
    assert chat.bodies(branch=branch) == wanted
    for limit in range(len(wanted) + 2):
        assert chat.bodies(branch=branch, limit=limit) == wanted[len(wanted) - limit if limit < len(wanted) else 0 :]


@pytest.fixture
def chat(store: tape.Store) -> Tape:
    """A tape of six messages, two of them with meta, one revised and one retracted."""
    chat = store.tape("chat")
    metas = [None, {"a": 1}, None, {"b": [2]}, None, None]
    said = [{"role": "user", "content": f"{n}", "id": f"own-{n}"} for n in range(6)]
    chat.extend(said, ids=[f"m{n}" for n in range(6)], metas=metas)
    chat.revise("m3", {"role": "user", "content": "three"}, meta={"c": None})
    chat.retract("m4")
    return chat


class TestBodies:
    def test_they_are_what_was_given(self, chat: Tape) -> None:
        """A message's own id is in its data; what was revised is as revised, what was retracted is not there."""
        assert [data["content"] for data, _ in chat.bodies()] == ["0", "1", "2", "three", "5"]
        assert chat.bodies(limit=3)[0] == ({"role": "user", "content": "2", "id": "own-2"}, None)
        assert [meta for _, meta in chat.bodies()] == [None, {"a": 1}, None, {"c": None}, None]
        same(chat)

    def test_they_follow_branches(self, chat: Tape) -> None:
        """Of several lanes, and of a branch that is named."""
        chat.append({"role": "user", "content": "other"}, id="other", parent="m1")
        same(chat)
        same(chat, branch="m5")
        with pytest.raises(tape.UnknownMessage):
            chat.bodies(branch="nobody")

    def test_forks_inherit_them(self, chat: Tape) -> None:
        """A fork gives what it inherits, with what it made of it."""
        fork = chat.fork("side", at="m3")
        fork.append({"role": "user", "content": "more"})
        fork.retract("m0")
        same(fork)
        same(chat)

    def test_they_go_back_in_time(self, chat: Tape) -> None:
        """At every entry, and behind a clear."""
        chat.clear()
        same(chat)
        chat.append({"role": "user", "content": "anew"}, occurred_at=1)
        same(chat)
        for entry in list(chat.entries()):
            same(chat.at(entry.seq))

    def test_nothing_is_there(self, store: tape.Store) -> None:
        """A tape that was never written has none; a limit is a number."""
        assert store.tape("nothing").bodies() == store.tape("nothing").bodies(limit=5) == []
        with pytest.raises(tape.InvalidEntry, match="limit"):
            store.tape("nothing").bodies(limit=-1)

    def test_they_are_awaited(self, backend: Backend) -> None:
        """The async twin gives the same."""

        async def read() -> list[object]:
            async with tape.open_async(backend.url, **backend.options) as store:
                await store.tape("chat").append({"role": "user", "content": "x"}, meta={"m": 1})
                return list(await store.tape("chat").bodies())

        assert asyncio.run(read()) == [({"role": "user", "content": "x"}, {"m": 1})]
