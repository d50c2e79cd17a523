"""Bub: its tapes on this store, entry for entry, and the plugin that gives them to it."""

from __future__ import annotations

import os
from typing import Any

from bub import hookimpl
from bub.store import FileTapeStore
from bub.tape import TapeEntry

from tape import Tape, lenient, new_id, to_strict
from tape.integrations.histories import Histories, readable, recorded
from tape.integrations.opening import StoreLike

__all__ = ["TapePlugin", "TapeStore"]

_NAME = "bub"
_VARIABLE = "BUB_TAPE_STORE"


class TapeStore(Histories, FileTapeStore):
    """Bub's tapes: ``Agent(framework, tape_store=TapeStore("agent.db"))``, or by the plugin.

    ``store`` is a Store, an AsyncStore or a URL. Messages and anchors are the tape's own, so that search, forks and
    contexts work on them; every other entry is an event. ``reset`` clears: what was there stays on the tape. Queries
    are answered as Bub's store of files does, text hits newest first.
    """

    _framework = _NAME

    def __init__(self, store: StoreLike) -> None:
        # Not that of Bub's store, which makes a folder; it is here for its queries.
        Histories.__init__(self, store)

    def tape(self, tape: str) -> Tape:
        """Return the tape of this name: to search, fork, look at, or build a context from."""
        return self._tape(tape)

    def list_tapes(self) -> list[str]:
        """Return the names of the tapes that have entries."""
        return sorted(name for name, info in self._names() if _written(self._connected.store.tape(info.id)))

    def reset(self, tape: str) -> None:
        """Begin a tape anew, if it has entries."""
        if self.tape(tape).info().head:
            self._write(Tape.clear, tape)

    def append(self, tape: str, entry: TapeEntry) -> None:
        """Write an entry behind the others."""
        self._write(lambda chat: _append(chat, entry), tape)

    def read(self, tape: str) -> list[TapeEntry]:
        """Return the entries since the last reset, numbered from 1."""
        entries: list[TapeEntry] = []
        chat = self.tape(tape)
        with readable(chat.id, 0):
            for kept, message in recorded(_NAME, chat):
                if kept is None and message is not None:
                    # A message that Bub did not write.
                    date = message.recorded_at.isoformat()
                    kept = {"kind": "message", "payload": TapeEntry.message(message.to_dict()).payload, "date": date}
                payload = message.to_dict() if message is not None and "payload" not in kept else kept["payload"]
                entries.append(TapeEntry(len(entries) + 1, kept["kind"], payload, kept.get("meta", {}), kept["date"]))
        return entries


class TapePlugin:
    """Gives Bub a TapeStore on the URL that the environment names in ``BUB_TAPE_STORE``, if it does."""

    def __init__(self, framework: Any = None) -> None:
        """Be loaded by Bub, which hands itself over."""

    @hookimpl
    def provide_tape_store(self) -> TapeStore | None:
        """Return the store, or None to leave it to Bub."""
        url = os.environ.get(_VARIABLE)
        return TapeStore(url) if url else None


def _append(chat: Tape, entry: TapeEntry) -> None:
    kept: dict[str, Any] = {"kind": entry.kind, "meta": entry.meta, "date": entry.date}
    said, replaced = lenient(entry.payload)
    if entry.kind == "message":
        # The message is the payload, as far as a tape can hold that.
        kept |= {"payload": entry.payload} if replaced or not said else {}
        chat.append(said or {"role": "user", "content": ""}, id=new_id(), meta={_NAME: to_strict(kept)})
        return
    meta = {_NAME: to_strict({**kept, "payload": entry.payload})}
    name = str(said.get("name") or entry.kind)[:200]
    if entry.kind == "anchor":
        chat.anchor(name, said.get("state"), meta=meta)
    else:
        chat.event(name if entry.kind == "event" else f"{_NAME}.{entry.kind}", said, meta=meta)


def _written(chat: Tape) -> bool:
    last = next(chat.entries(reverse=True, limit=1), None)
    return last is not None and last.kind not in ("clear", "open")
