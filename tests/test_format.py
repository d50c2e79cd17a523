"""The stored format is the one that ``docs/format.md`` specifies; its test vectors pin every byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import history
from support.backends import Backend
from support.exports import exported
from support.filling import filled
from support.standalone_verifier import FormatError, commitment, link, verify_export

import tape
from tape.core.entries import chain
from tape.core.entries.payloads import Place

VECTORS = Path(__file__).resolve().parent.parent / "docs" / "format_vectors.json"

ENTRIES: tuple[dict[str, Any], ...] = (
    {"seq": 1, "kind": "open", "key": "~o", "payload": b'{"owner":"ann"}'},
    {
        "seq": 2,
        "kind": "append",
        "key": "~m:m1",
        "actor": "user",
        "payload": '{"message":{"content":"Grüße 東京"}}'.encode(),
    },
    {"seq": 3, "kind": "event", "key": 'a "key" \\ with / signs', "payload": b"{}", "meta": b'{"run":1}'},
    {"seq": 4, "kind": "event", "key": "empty meta", "payload": b"{}", "meta": b"{}"},
    {"seq": 5, "kind": "append", "key": "😀", "source": ["other", 7], "payload": b'{"n": 1.50}', "head": [5, 1, None]},
    {"seq": 6, "kind": "erase", "key": "e", "source": [None, 2], "payload": b"{}", "head": [2, 3, "parent"]},
    {
        "seq": 7,
        "kind": "event",
        "key": "late",
        "stamp": 2**53 + 1,
        "version": 12,
        "payload": b'{"big":' + b"9" * 40 + b"}",
    },
)


def vectors() -> list[dict[str, Any]]:
    """Return the entries of a tape with what each is hashed from and to, by the library's own functions."""
    made, before = [], chain.ZERO
    for entry in ENTRIES:
        seq, payload, meta = entry["seq"], entry["payload"], entry.get("meta")
        salt = bytes(range(seq, seq + 16))
        stamp, version = entry.get("stamp", 1_700_000_000_000_000 + seq), entry.get("version", 1)
        head, actor, source = entry.get("head", [2, 1, None]), entry.get("actor"), entry.get("source")
        committed = chain.commit(salt, payload, meta)
        hash = chain.link(
            before, committed, "chat", seq, entry["kind"], entry["key"], actor, source, stamp, version, Place(*head)
        )
        made.append(
            {
                "header": ["chat", seq, entry["kind"], entry["key"], actor, source, stamp, version, head[2], *head[:2]],
                "salt": salt.hex(),
                "payload": payload.hex(),
                "meta": None if meta is None else meta.hex(),
                "hash_before": before.hex(),
                "commitment": committed.hex(),
                "hash": hash.hex(),
            }
        )
        before = hash
    return made


def test_the_library_gives_the_hashes_of_the_vectors() -> None:
    """A change of the format changes this file, and so never happens unnoticed."""
    if os.environ.get("TAPE_TEST_UPDATE"):
        VECTORS.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")
    assert json.loads(VECTORS.read_text()) == vectors()


def test_a_program_written_from_the_page_gives_the_same_hashes() -> None:
    """The standalone verifier agrees with every vector."""
    kept = json.loads(VECTORS.read_text())
    assert len(kept) == len(ENTRIES)
    for vector in kept:
        salt, payload = bytes.fromhex(vector["salt"]), bytes.fromhex(vector["payload"])
        meta = None if vector["meta"] is None else bytes.fromhex(vector["meta"])
        committed = commitment(salt, payload, meta)
        assert committed.hex() == vector["commitment"]
        assert link(bytes.fromhex(vector["hash_before"]), committed, vector["header"]).hex() == vector["hash"]


def test_every_export_passes_the_standalone_verifier(backend: Backend) -> None:
    """Tapes in which everything happens, with their forks: same entries, same last hashes."""
    store = filled(backend, history.write_all, durability="normal")
    for name in history.TAPES:
        seen = verify_export(exported(store, name))
        info = store.get(name).info()
        assert seen[name] == (info.head, info.head_hash)


def test_every_changed_byte_of_an_export_fails_the_standalone_verifier(store: tape.Store) -> None:
    """No byte of the file can change without notice, and none can be cut off."""
    chat = store.create("chat", messages=[{"role": "user", "content": "Hi"}])
    chat.event("noted", {"n": 1}, meta={"run": 1})
    file = exported(store, "chat")
    assert verify_export(file) == {"chat": (3, chat.info().head_hash)}
    for at in range(len(file)):
        changed = file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :]
        with pytest.raises(FormatError):
            verify_export(changed)
        with pytest.raises(FormatError):
            verify_export(file[:at])


def test_every_entry_has_a_salt_of_its_own(backend: Backend) -> None:
    """Equal content gives different commitments, so the chain confirms no guess."""
    store = backend.open()
    chat = store.tape("chat")
    for _ in range(3):
        chat.event("same")
    chat.extend([{"role": "user", "content": "same"}] * 3)
    chat.fork("fork").event("same")
    connection = backend.raw()
    salts = [bytes(salt) for (salt,) in connection.execute("SELECT salt FROM tape_entries").fetchall()]
    connection.close()
    assert {len(salt) for salt in salts} == {chain.SALT_SIZE}
    assert len(set(salts)) == len(salts) == 10
