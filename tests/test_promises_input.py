"""What an attack found about input: promises that must hold for whatever a caller passes, on both engines."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conftest import Backend
from damage import Tamperer

import tape


class TestUpsert:
    """T9: an upsert that is equal to what holds writes nothing, however the id was given."""

    @pytest.mark.parametrize("first", ["beside", "inside"])
    @pytest.mark.parametrize("again", ["beside", "inside", "both"])
    def test_t9_an_equal_upsert_is_a_duplicate_wherever_the_id_stands(
        self, chat: tape.Tape, first: str, again: str
    ) -> None:
        """An id is the same whether it stands in the message or beside it."""
        said: dict[str, Any] = {"role": "user", "content": "one"}

        def given(how: str, content: str) -> tuple[dict[str, Any], dict[str, Any]]:
            inside = {"id": "m"} if how in ("inside", "both") else {}
            return {**said, "content": content, **inside}, {"id": "m"} if how in ("beside", "both") else {}

        message, options = given(first, "one")
        receipt = chat.upsert(message, **options)
        for content in ("one", "two", "one"):
            message, options = given(again, content)
            written = chat.upsert(message, **options)
            repeated = chat.upsert(message, **options)
            assert repeated.duplicate
            assert repeated.seq == written.seq
        assert chat.upsert(message, **options).seq == chat.message("m").revision == receipt.seq + 2
        assert chat.revise("m", {"id": "m", **said}).duplicate
        assert chat.revise("m", said).duplicate
        assert chat.info().head == receipt.seq + 2


SAID = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]

STRANGERS: dict[str, Any] = {
    "a message": lambda chat, key: chat.append(role="user", content="a stranger", key=key),
    "an equal message": lambda chat, key: chat.append(SAID[int(key[-1]) % 3], key=key),
    "an upsert": lambda chat, key: chat.upsert({"role": "user", "content": "a stranger"}, key=key),
    "an event": lambda chat, key: chat.event("stranger", key=key),
    "an anchor": lambda chat, key: chat.anchor("stranger", key=key),
}
"""Writes under a key that looks like one of a batch."""


class TestBatchKeys:
    """E2: a keyed batch is one write, whatever other keys look like."""

    @pytest.mark.parametrize("stranger", STRANGERS)
    @pytest.mark.parametrize("number", [0, 1, 2, 3])
    def test_e2_a_batch_can_be_repeated_whoever_uses_a_key_like_its_own(
        self, guest: tape.Store, stranger: str, number: int
    ) -> None:
        """A retry after a lost reply is a duplicate, also when a key like the next of the batch was used since."""
        chat = guest.create()
        if number == 3:
            first = chat.extend(SAID, key="k")
            STRANGERS[stranger](chat, "k#3")
        else:
            STRANGERS[stranger](chat, f"k#{number}")
            first = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in first] == [False] * 3
        head = chat.info().head
        again = chat.extend(SAID, key="k")
        assert [receipt.duplicate for receipt in again] == [True] * 3
        assert [(one.seq, one.key) for one in again] == [(one.seq, one.key) for one in first]
        ordinary = [f"k#{index}" for index in range(3) if index != number]
        assert [one.key for one in first if not one.key.startswith("~")] == ordinary
        for others in (SAID[:2], [*SAID, SAID[0]], [*SAID[:2], {"role": "user", "content": "other"}]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(others, key="k")
        assert chat.info().head == head
        assert chat.verify().ok

    def test_e2_a_stranger_is_repeated_by_its_own_key(self, guest: tape.Store) -> None:
        """A caller's key that looks like one of a batch stays the caller's."""
        chat = guest.create()
        alone = chat.append(role="user", content="alone", key="k#1")
        chat.extend(SAID, key="k")
        again = chat.append(role="user", content="alone", key="k#1")
        assert (again.duplicate, again.seq, again.message_id) == (True, alone.seq, alone.message_id)
        with pytest.raises(tape.ProvenanceConflict):
            chat.append(role="user", content="other", key="k#1")

    @pytest.mark.parametrize("key", ["k", "k" * 255])
    def test_e2_a_history_is_replaced_once_whoever_uses_a_key_like_its_own(self, guest: tape.Store, key: str) -> None:
        """The messages of ``replace_history`` are keyed like a batch, and repeated like one."""
        chat = guest.create()
        kept = {"id": "m", "role": "user", "content": "stays"}
        chat.append(kept, key="k#0")
        first = chat.replace_history([kept, SAID[1]], key=key)
        again = chat.replace_history([kept, SAID[1]], key=key)
        assert [one.seq for one in again] == [one.seq for one in first]
        assert all(one.duplicate for one in again)
        assert [message.content for message in chat.messages()] == ["stays", "two"]

    def test_e2_messages_that_were_there_before_have_no_key_of_the_batch(self, guest: tape.Store) -> None:
        """A batch that continues what is on the tape is repeated as a whole, with the receipts of both."""
        chat = guest.create()
        there = {"id": "m", "role": "user", "content": "there"}
        before = chat.append(there)
        chat.event("stranger", key="k#1")
        first = chat.extend([there, SAID[1]], key="k")
        assert first[0].seq == before.seq
        assert [one.seq for one in chat.extend([there, SAID[1]], key="k")] == [one.seq for one in first]

    def test_e2_batches_of_an_older_release_are_known_by_their_keys(self, backend: Backend, store: tape.Store) -> None:
        """Entries that do not tell their place in a batch are held to belong to it, as they always were."""
        chat = store.create("chat")
        first = chat.extend(SAID, key="k")
        damage = Tamperer(backend)
        for receipt in first:
            row = damage.entry(damage.tape_id("chat"), receipt.seq)
            payload = msgspec.json.decode(row["payload"])
            payload.pop("batch", None)
            damage.update("tape_entries", {"seq": receipt.seq, "key": receipt.key}, {"payload": _json(payload)})
        damage.close()
        assert [one.seq for one in chat.extend(SAID, key="k")] == [one.seq for one in first]
        for others in (SAID[:2], [*SAID, SAID[0]], [*SAID[:2], {"role": "user", "content": "other"}]):
            with pytest.raises(tape.ProvenanceConflict):
                chat.extend(others, key="k")


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
