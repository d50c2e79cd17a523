"""E12 and S19: a write is there with all that belongs to it, or nothing of it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.backends import Backend
from support.damage import contents
from support.verbs import Verb, each_verb, prepare

import tape


class Injected(Exception):
    """The failure that a test puts into the middle of a write."""


def failing_everywhere(store: tape.Store, backend: Backend, write: Callable[[], Any]) -> list[str]:
    """Let ``write`` fail at its first, second … point until it passes all of them; returns their names.

    Every failed attempt must leave all tables as they were.
    """
    before = contents(backend)
    reached: list[str] = []
    while True:
        left = len(reached)

        def fault(name: str) -> None:
            nonlocal left
            if left == 0:
                reached.append(name)
                raise Injected(name)
            left -= 1

        store._db.fault = fault
        try:
            write()
        except Injected:
            store._db.fault = None
            assert contents(backend) == before, reached
            assert len(reached) < 50
        else:
            store._db.fault = None
            return reached


class TestFaults:
    """A failure at any point inside a write."""

    @each_verb
    @pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
    @pytest.mark.alike
    def test_e12_a_failure_at_any_point_leaves_nothing(
        self, standing: Backend, guest: tape.Store, verb: Verb, warm: bool
    ) -> None:
        """Whether recording, projecting, moving the head or committing fails, nothing is written; then it succeeds.

        A handle that just wrote keeps the head in memory and takes a shorter way, which must be as safe.
        """
        chat = verb.start(guest)
        if warm:
            chat.append(role="user", content="warm")
        head = chat.info().head
        points = failing_everywhere(guest, standing, lambda: verb.call(chat, actor="ann"))
        assert points[0] == "entry" or verb.method == "merge"
        assert chat.info().head == head + verb.entries
        assert chat.verify().ok
        if verb.changes_view or verb.method in ("event", "fork", "reopen"):
            assert chat.append(role="user", content="next").seq == head + verb.entries + 1

    def test_e12_creating_is_whole_or_absent(self, standing: Backend, guest: tape.Store) -> None:
        """A tape whose creation failed, alone or with its messages, does not exist."""
        points = failing_everywhere(guest, standing, lambda: guest.create("bare"))
        assert {"entry", "head", "commit"} <= set(points)
        messages = [{"id": str(number), "content": number} for number in range(3)]
        failing_everywhere(guest, standing, lambda: guest.create("full", name="n", messages=messages))
        assert [guest.get(name).info().head for name in ("bare", "full")] == [1, 4]
        assert guest.verify().ok

    def test_e12_the_first_write_of_a_tape_is_whole_or_absent(self, standing: Backend, guest: tape.Store) -> None:
        """A tape that comes into being with its first message does not come into being without it."""
        chat = guest.tape("first")

        def append() -> None:
            with pytest.raises(tape.TapeNotFound):
                guest.get("first")
            chat.append(role="user", content="x")

        failing_everywhere(guest, standing, append)
        assert [entry.kind for entry in chat.entries()] == ["open", "append"]

    def test_e12_rebuilding_is_whole_or_absent(self, standing: Backend, guest: tape.Store) -> None:
        """A rebuild that fails at its commit leaves the view as it was."""
        chat = prepare(guest)
        assert failing_everywhere(guest, standing, lambda: guest.rebuild(chat.id)) == ["commit"]
        assert chat.verify().ok


class TestWholeHistories:
    """Replacing a history, and creating a tape with one, in one step."""

    def test_s19_create_with_messages(self, store: tape.Store) -> None:
        """A tape is created with its messages as one chain of entries behind its first."""
        messages = [{"id": str(number), "role": "user", "content": number} for number in range(4)]
        chat = store.create("chat", name="n", messages=messages)
        assert [entry.kind for entry in chat.entries()] == ["open"] + ["append"] * 4
        assert [message.to_dict() for message in chat.messages()] == messages
        assert [message.parent for message in chat.messages()] == [None, "0", "1", "2"]
        assert store.create("none", messages=[]).info().head == 1
        assert store.create("iterated", messages=iter(messages)).info().message_count == 4

    def test_s19_create_with_one_bad_message_creates_nothing(self, store: tape.Store) -> None:
        """One message that cannot be recorded, and the tape does not exist."""
        bad: list[list[Any]] = [
            [{"content": 1}, {"content": float("nan")}],
            [{"content": 1}, "text"],
            [{"id": "a", "content": 1}, {"id": "a", "content": 2}],
        ]
        for messages in bad:
            with pytest.raises(tape.TapeError):
                store.create("chat", messages=messages)
            with pytest.raises(tape.TapeNotFound):
                store.get("chat")

    def test_s19_replacing_leaves_the_old_on_the_tape(self, chat: tape.Tape) -> None:
        """After a replacement the view is the new history alone, and the old one is readable where it was."""
        chat.extend([{"id": "a", "role": "user", "content": "A"}, {"id": "b", "role": "assistant", "content": "B"}])
        chat.anchor("old")
        head = chat.info().head
        new = [{"id": "c", "role": "user", "content": "C"}, {"role": "assistant", "content": "D"}]
        receipts = chat.replace_history(new, reason="edited by the user", actor="ann")
        assert [receipt.seq for receipt in receipts] == [head + 1, head + 2, head + 3]
        assert [message.to_dict() for message in chat.messages()] == new
        assert [message.id for message in chat.heads()] == [receipts[-1].message_id]
        assert chat.info().message_count == 2
        assert chat.context().anchor is None
        assert [message.id for message in chat.at(head).messages()] == ["a", "b"]
        assert chat.at(head).context().anchor is not None
        kinds = [(entry.kind, entry.actor) for entry in chat.entries(after=head)]
        assert kinds == [("clear", "ann"), ("append", "ann"), ("append", "ann")]

    def test_s19_replacing_with_what_was_there_keeps_the_content(self, chat: tape.Tape) -> None:
        """Messages whose ids are taken get new ones, and their entries cite the old as their source."""
        chat.extend([{"id": "a", "role": "user", "content": "A"}, {"id": "b", "role": "assistant", "content": "B"}])
        old = [message.to_dict() for message in chat.messages()]
        receipts = chat.replace_history([*old, {"id": "c", "content": "C"}])
        now = chat.messages()
        assert [message.content for message in now] == ["A", "B", "C"]
        assert now[2].id == "c"
        assert len({"a", "b", "c"} | {message.id for message in now}) == 5
        sources = [entry.source for entry in chat.entries(after=receipts[0].seq)]
        assert sources == [tape.Source("chat", 2), tape.Source("chat", 3), None]

    def test_s19_replacing_with_nothing_empties(self, chat: tape.Tape) -> None:
        """An empty history is a clear."""
        chat.append(role="user", content="x")
        assert [receipt.seq for receipt in chat.replace_history([])] == [3]
        assert chat.messages() == []

    def test_s19_replacing_with_one_bad_message_changes_nothing(self, chat: tape.Tape) -> None:
        """One message that cannot be recorded, and the old history stays."""
        chat.append(id="a", role="user", content="A")
        for bad in ({"content": float("inf")}, {"id": 5, "content": "x"}, "text"):
            with pytest.raises(tape.InvalidEntry):
                chat.replace_history([{"content": "fine"}, bad])  # type: ignore[list-item]
        with pytest.raises(tape.InvalidEntry, match="ids="):
            chat.replace_history([{"id": "n", "content": 1}, {"id": "n", "content": 2}])
        assert [message.id for message in chat.messages()] == ["a"]
        assert chat.info().head == 2

    def test_s19_replacing_can_be_undone(self, chat: tape.Tape) -> None:
        """The clear inside a replacement is undone like any other, and the new messages stay where they are."""
        chat.append(id="a", role="user", content="A")
        chat.replace_history([{"id": "n", "role": "user", "content": "N"}])
        chat.restore()
        assert [message.id for message in chat.messages()] == ["n"]
        assert [message.id for message in chat.messages(branch="a")] == ["a"]
        assert chat.verify().ok
