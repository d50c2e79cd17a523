"""Bub's tapes on this store: written by one program, queried by another.

Run it: python examples/integrations/bub_tapes.py. It needs Python 3.12, ``pip install 'tape-store[bub]'`` and no
network.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bub.store import TapeQuery
from bub.tape import TapeEntry

from tape.integrations.bub import TapeStore

NAME = "shop__trip"

with tempfile.TemporaryDirectory() as folder:
    store = TapeStore(Path(folder) / "agent.db")
    store.append(NAME, TapeEntry.anchor("session/start"))
    store.append(NAME, TapeEntry.message({"role": "user", "content": "Where to?"}))
    store.append(NAME, TapeEntry.message({"role": "assistant", "content": "Lisbon."}))
    store.close()

    store = TapeStore(Path(folder) / "agent.db")
    for entry in TapeQuery(tape=NAME, store=store).last_anchor().all():
        print(entry.id, entry.kind, entry.payload["content"])
    print(" | ".join(f"{message.role}: {message.text}" for message in store.tape(NAME).messages()))
    store.close()
