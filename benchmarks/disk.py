"""Bytes on disk for a message of 400 bytes on SQLite, with the index of the search."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import tape
from benchmarks.harness import BATCH, Run

SIZE = 400
_SYLLABLES = ("ta", "pe", "lis", "bon", "mu", "se", "um", "tra", "in", "ho", "tel", "ri", "ver", "ne", "ko", "da")


def disk(run: Run) -> None:
    """Write messages of prose, search them once, and weigh the file."""
    count, path = run.pick(20_000, 1_000), run.folder / "disk.db"
    made = messages(count)
    with tape.open(path, durability="normal") as store:
        for start in range(0, count, BATCH):
            store.tape("chat").extend(made[start : start + BATCH])
    plain = weighed(path)
    with tape.open(path, durability="normal") as store:
        # A search brings the index up to date.
        assert store.search(made[-1]["content"].split()[0])
    whole = weighed(path)
    payload = count * SIZE
    note = f"{whole / count:.0f} bytes a message, {plain / count:.0f} of them without the search"
    run.report.bar(
        f"bytes on disk of a {SIZE}-byte message, of its payload",
        whole / payload,
        most=2.1,
        note=note,
    )


def weighed(path: Path) -> int:
    """Return the bytes of a closed store: its file and whatever lies beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def messages(count: int) -> list[dict[str, Any]]:
    """Return messages whose JSON has 400 bytes each, of words drawn from 4 000 as language does: few are common."""
    chance = random.Random(12)
    words = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(4_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    room = SIZE - len(json.dumps({"role": "user", "content": ""}, separators=(",", ":")))
    made = []
    for _ in range(count):
        text = " ".join(chance.choices(words, weights, k=120))[:room]
        made.append({"role": "user", "content": text})
    return made
