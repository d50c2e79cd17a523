"""What importing transcripts costs: a folder of sessions against parsing its lines alone, and the same folder again.

The sessions are those of a coding agent: prompts, answers, and tool outputs of 1 to 50 KB, which are written twice.
"""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

import tape
from benchmarks.harness import Run
from tape.transcripts import import_paths

_SESSION = 1_000_000
"""Bytes of one session."""


def transcripts(run: Run) -> None:
    """Import a folder, import it again, and parse it, in CPU time: the machine may have other things to do."""
    folder = run.folder / "transcripts"
    folder.mkdir()
    chance = random.Random(1)
    files = [_session(folder / f"{n}.jsonl", chance) for n in range(run.pick(1_000, 4))]
    size = sum(file.stat().st_size for file in files) / 1e6
    first, again, parsed = 9e9, 9e9, 9e9
    for number in range(run.pick(3, 1)):
        parsed = min(parsed, _parsing(files))
        with tape.open(run.folder / f"transcripts-{number}.db", durability="normal") as store:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            first = min(first, _importing(store, folder, len(files)))
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            again = min(again, _importing(store, folder, 0))
    rates = f"{size / first:.1f} MB/s against {size / parsed:.0f} MB/s of msgspec alone, CPU time"
    run.report.bar("importing transcripts, to parsing their lines", first / parsed, most=None, note=rates)
    run.report.bar("importing the same folder again, to the first time", again / first, most=1 / 20, note="")
    run.report.bar("memory that an import adds, MB", grown, most=None, note=f"{size:.0f} MB in {len(files):,} files")


def _importing(store: tape.Store, folder: Path, expected: int) -> float:
    began = time.process_time()
    taken = sum(bool(file.tapes) for file in import_paths(store, [folder]))
    took = time.process_time() - began
    if taken != expected:
        raise AssertionError(f"{taken} files were imported, not {expected}")
    return took


def _parsing(files: list[Path]) -> float:
    began = time.process_time()
    for path in files:
        with path.open("rb") as lines:
            for line in lines:
                msgspec.json.decode(line)
    return time.process_time() - began


def _session(path: Path, chance: random.Random) -> Path:
    """Write a session of about 1 MB."""
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(500)]
    session, parent, size, step = str(UUID(int=chance.getrandbits(128))), None, 0, 0

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length // 6))

    with path.open("w") as file:
        while size < _SESSION:
            output, call = text(chance.randint(1_000, 50_000)), f"toolu_{step}"
            usage = {"input_tokens": 5, "cache_read_input_tokens": 1000, "output_tokens": 50}
            answer = {"id": f"msg_{step}", "role": "assistant", "model": "claude-sonnet-4-5", "usage": usage}
            use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": text(100)}}
            result = {"type": "tool_result", "tool_use_id": call, "content": output}
            for kind, message, more in (
                ("user", {"role": "user", "content": text(200)}, {}),
                ("assistant", {**answer, "content": [{"type": "text", "text": text(300)}]}, {}),
                ("assistant", {**answer, "content": [use]}, {}),
                ("user", {"role": "user", "content": [result]}, {"toolUseResult": {"stdout": output, "stderr": ""}}),
            )[step % 10 > 0 :]:
                uuid = str(UUID(int=chance.getrandbits(128)))
                record: dict[str, Any] = {
                    "parentUuid": parent,
                    "isSidechain": False,
                    "sessionId": session,
                    "version": "2.1.40",
                }
                record |= {"type": kind, "message": message, "uuid": uuid, "timestamp": "2026-03-01T10:00:00Z", **more}
                size += file.write(json.dumps(record) + "\n")
                parent = uuid
            step += 1
    return path
