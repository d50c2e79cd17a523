"""Files that no program wrote: any JSON has a format or none, and one bad file does not end an import."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.inspected import history
from support.sizes import heavy, size
from test_readme import ROOT

import tape
from tape.transcripts import EXPORT_FORMATS, FORMATS, export_transcript, import_paths, watch_paths
from tape.transcripts.detecting import NATIVE, detect, format_of

FILES = sorted((ROOT / "tests" / "data" / "transcripts").iterdir())
GOOD = {"role": "user", "content": "Good", "uuid": "u", "type": "user", "sessionId": "s"}
GOOD_LINE = json.dumps({"type": "user", "uuid": "g", "sessionId": "s", "message": {"role": "user", "content": "Good"}})
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1e300,
    "",
    "x",
    "\0",
    "user",
    "[" * 500,
    [],
    [[]],
    [None],
    ["x"],
    [1],
    {},
    {"": None},
    {"type": ["x"]},
    {"type": {}},
    {"role": ["user"], "content": 1},
    {"messages": [1, None, {"role": []}]},
]
SAMPLES = [
    {"type": "thread.started", "thread_id": "t"},
    {"type": "item.completed", "item": {"id": "i", "type": "agent_message", "text": "Hi"}},
    {"type": "turn.completed", "usage": {"input_tokens": 1, "output_tokens": 2}},
    {"type": "system", "subtype": "init", "session_id": "s", "model": "m", "tools": ["Bash"]},
    {
        "type": "assistant",
        "session_id": "s",
        "message": {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    },
    {
        "sessionId": "s",
        "projectHash": "p",
        "startTime": "2026-01-01T00:00:00Z",
        "messages": [{"id": "1", "type": "user", "content": "x"}],
    },
    {"role": "user", "parts": [{"text": "x"}, {"functionCall": {"name": "f", "args": {}}}]},
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "HumanMessage"],
        "kwargs": {"content": "x"},
    },
    {"values": {"messages": [{"type": "human", "content": "x"}]}, "checkpoint": {"channel_values": {"messages": []}}},
    {"tape": "t", "entries": 1, "hash": "", "format": 1},
]


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a value: its container, and its name or index there."""
    found: list[tuple[Any, Any]] = []
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += [(value, name), *nodes(item)]
    return found


def mutated(value: Any, chance: random.Random) -> Any:
    """Return a copy of a value with other values in some places."""
    value = copy.deepcopy(value)
    for _ in range(chance.randrange(1, 4)):
        places = nodes(value)
        if not places:
            return chance.choice(ODD)
        holder, name = chance.choice(places)
        how = chance.random()
        if how < 0.7:
            holder[name] = copy.deepcopy(chance.choice(ODD))
        elif how < 0.85:
            other, place = chance.choice(places)
            holder[name] = copy.deepcopy(other[place])
        elif isinstance(holder, dict):
            del holder[name]
            holder[str(chance.choice(ODD))[:50]] = 1
    return value


def samples(folder: Path) -> list[list[Any]]:
    """Return the values of files of every format, each a list of its lines or documents."""
    found: list[list[Any]] = [[sample] for sample in SAMPLES]
    for file in FILES:
        text = file.read_text("utf-8")
        try:
            found.append([json.loads(text)])
        except ValueError:
            found.append([json.loads(line) for line in text.splitlines()[:12] if line.strip()])
    with tape.open(":memory:") as store:
        chat = history(store)
        for name in EXPORT_FORMATS:
            found.append([json.loads(line) for line in b"".join(export_transcript(chat, name)).splitlines()[:12]])
    return found


class TestDetecting:
    @pytest.mark.parametrize("value", [*ODD, [{"type": ["x"]}]], ids=lambda value: repr(value)[:30])
    def test_any_value_has_a_format_or_none(self, tmp_path: Path, value: Any) -> None:
        """The value alone, in a list, and in each field that identifies a format."""
        fields = [
            "type",
            "role",
            "content",
            "messages",
            "mapping",
            "history",
            "parts",
            "payload",
            "session",
            "items",
            "request",
            "params",
            "body",
            "response",
            "result",
            "input",
            "output",
            "choices",
            "values",
            "checkpoint",
            "system",
            "model",
            "lc",
            "data",
            "schema_version",
            "session_id",
            "sessionId",
            "id",
            "tape",
            "timestamp",
            "$set",
            "agent",
            "steps",
        ]
        shapes = [value, [value], [[value]], dict.fromkeys(fields, value)]
        shapes += [{one: value, other: value} for one in fields for other in fields]
        shapes += [{"type": kind, "content": value, "data": value} for kind in ("human", "ai", "x_call", "message")]
        for shape in shapes:
            assert format_of(shape) in {None, NATIVE, *FORMATS}
        path = tmp_path / "file.json"
        path.write_text(json.dumps(shapes, default=str), "utf-8")
        assert detect(path) in {None, NATIVE, *FORMATS}

    @pytest.mark.parametrize("name", ["history", "request", "result", "messages", "a"])
    @pytest.mark.parametrize("levels", [100, 290, 900, 100_000])
    def test_any_depth_has_a_format_or_none(self, tmp_path: Path, levels: int, name: str) -> None:
        """Objects and lists inside each other, in the fields that are looked into."""
        path = tmp_path / "file.json"
        for opening, closing in ((f'{{"{name}":', "}"), ("[", "]"), (f'{{"{name}":[', "]}")):
            path.write_text(opening * levels + "1" + closing * levels, "utf-8")
            assert detect(path) in {None, *FORMATS}

    @heavy
    def test_fuzzed_values_have_a_format_or_none(self, tmp_path: Path) -> None:
        """Records of every format with other values in some places."""
        chance = random.Random(3)
        everything = samples(tmp_path)
        for _ in range(size(2_000, 100_000)):
            format_of(mutated(chance.choice(chance.choice(everything)), chance))


class TestFolders:
    @pytest.mark.parametrize(
        "bad",
        [
            '[{"type": ["x"]}]',
            '{"type": ["human"], "content": 1}',
            '{"mapping": {"a": []}}',
            '{"agent": 1, "steps": [1]}',
            "[" * 9_000,
        ],
        ids=lambda bad: bad[:20],
    )
    def test_one_bad_file_does_not_end_the_import(self, store: tape.Store, tmp_path: Path, bad: str) -> None:
        """It is reported or passed over; those before and behind it are imported, also by a watch."""
        for name in ("a", "c"):
            (tmp_path / f"{name}.jsonl").write_text(GOOD_LINE.replace('"s"', f'"{name}"') + "\n", "utf-8")
        (tmp_path / "b.json").write_text(bad, "utf-8")
        done = {Path(each.path).name: each for each in import_paths(store, [tmp_path])}
        assert [done[name].error for name in ("a.jsonl", "c.jsonl")] == [None, None]
        assert [done[name].tapes[0].added for name in ("a.jsonl", "c.jsonl")] == [1, 1]
        (tmp_path / "d.jsonl").write_text(GOOD_LINE.replace('"s"', '"d"') + "\n", "utf-8")
        watched = list(watch_paths(store, [tmp_path], stop=lambda: True))
        assert [Path(each.path).name for each in watched if each.tapes] == ["d.jsonl"]
        named = list(import_paths(store, [tmp_path / "b.json"]))
        assert all(each.error is not None or each.tapes or each.unchanged for each in named)

    @heavy
    def test_fuzzed_files_do_not_end_the_import(self, tmp_path: Path) -> None:
        """Each file of a folder is imported, passed over or reported, whatever it holds; the store is sound."""
        chance = random.Random(8)
        everything = samples(tmp_path)
        folder = tmp_path / "files"
        folder.mkdir()
        count = size(150, 3_000)
        for number in range(count):
            lines = copy.deepcopy(chance.choice(everything))
            place = chance.randrange(len(lines))
            lines[place] = mutated(lines[place], chance)
            (folder / f"{number:05}.jsonl").write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
        with tape.open(":memory:") as store:
            done = list(import_paths(store, [folder]))
            errors = [each.error for each in done if each.error is not None]
            print(len(done), "looked at,", len(errors), "refused", sorted(set(errors))[:20])
            assert sum(bool(each.tapes) for each in done) > count / 3
            assert store.verify().ok
            for format in FORMATS:
                for file in sorted(folder.iterdir())[: size(10, 200)]:
                    list(import_paths(store, [file], format=format))
