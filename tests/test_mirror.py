"""A session of Claude Code that is mirrored while it grows: every line comes back, and the tape is its tree."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.backends import Backend
from support.sessions import ODD, distinct, session
from support.sizes import heavy, size
from support.transcript_files import DATA, LINES

import tape
from tape.transcripts import ClaudeMirror, claude_lines, import_transcript

pytestmark = pytest.mark.alike

Line = dict[str, Any]

_keys = itertools.count()


def write(chat: tape.Tape, lines: list[Line], mirror: ClaudeMirror | None = None) -> ClaudeMirror:
    """Write lines as an adapter does, with what it knows of the session or from nothing."""
    if mirror is None or not mirror.catch_up(chat):
        mirror = ClaudeMirror()
        mirror.catch_up(chat)
    mirror.write(chat, lines, [f"line/{next(_keys)}" for _ in lines])
    return mirror


def in_batches(chat: tape.Tape, lines: list[Line], seed: int) -> None:
    """Write lines in batches of any size; what is known of the session is sometimes lost in between."""
    pick = random.Random(seed)
    mirror: ClaudeMirror | None = None
    rest = lines
    while rest:
        cut = pick.randint(1, 7)
        mirror = write(chat, rest[:cut], None if pick.random() < 0.3 else mirror)
        rest = rest[cut:]


def same(one: list[Line], other: list[Line]) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def kept(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def shape(chat: tape.Tape) -> tuple[Any, ...]:
    """Return the tree of a tape: every message with its parent and content, the path, the anchors and the usage."""
    nodes = {
        entry.payload.id: chat.find(entry.payload.id)  # type: ignore[union-attr]
        for entry in chat.entries(kinds=["append"])
    }
    return (
        {id: (one.parent, one.role, one.content) for id, one in nodes.items() if one is not None},
        [message.id for message in chat.messages()],
        [anchor.name for anchor in chat.anchors()],
        chat.usage(),
        chat.info().name,
    )


class TestLines:
    @pytest.mark.parametrize("file", LINES, ids=lambda file: file.stem)
    def test_every_kept_transcript_comes_back(self, store: tape.Store, file: Path) -> None:
        """Also those of other programs: a line is a line. Sent again, it adds nothing that has a uuid."""
        lines = kept(file)
        chat = store.tape("mirror")
        in_batches(chat, lines, 7)
        assert claude_lines(chat) == distinct(lines)
        named = [line for line in lines if isinstance(line.get("uuid"), str)]
        head = chat.info().head
        in_batches(chat, named, 8)
        assert chat.info().head == head
        assert chat.verify().ok

    @heavy
    @pytest.mark.parametrize("seed", range(size(3, 20)))
    def test_made_up_sessions_come_back(self, store: tape.Store, seed: int) -> None:
        """With branches, tools, subagents, lines that are repeated and rewritten, and values that nobody expects."""
        lines = session(seed)
        chat = store.tape("mirror")
        in_batches(chat, lines, seed)
        assert same(claude_lines(chat), distinct(lines))
        assert chat.verify().ok
        head = chat.info().head
        in_batches(chat, [line for line in lines if isinstance(line.get("uuid"), str)], seed)
        assert chat.info().head == head

    @pytest.mark.parametrize("value", ODD, ids=repr)
    @pytest.mark.parametrize(
        "place", ["content", "part", "top", "uuid", "parentUuid", "type", "message", "role", "agentId"]
    )
    def test_an_odd_value_anywhere_is_no_error(self, guest: tape.Store, place: str, value: Any) -> None:
        """A line with it is kept as it is, and the conversation goes on behind it."""
        line: Line = {"type": "user", "uuid": "b", "parentUuid": "a", "message": {"role": "user", "content": "?"}}
        if place in ("content", "role"):
            line["message"][place] = value
        elif place == "part":
            line["message"]["content"] = [{"type": "text", "text": value}, value]
        else:
            line[place] = value
        first: Line = {"type": "user", "uuid": "a", "parentUuid": None, "message": {"role": "user", "content": "one"}}
        last: Line = {**first, "uuid": "c", "parentUuid": "b"}
        chat = guest.tape(f"odd {place} {ODD.index(value)} {next(_keys)}")
        for each in (first, line, last):
            write(chat, [each])
        assert same(claude_lines(chat), [first, line, last])
        assert [message.id for message in chat.messages()][-1] == "c"

    @heavy
    @settings(max_examples=size(20, 240), deadline=None)
    @given(
        lines=st.lists(
            st.dictionaries(
                st.sampled_from(
                    ["type", "uuid", "parentUuid", "message", "isSidechain", "agentId", "subtype", "n", "tape.raw"]
                ),
                st.recursive(
                    st.none()
                    | st.booleans()
                    | st.integers()
                    | st.floats(allow_nan=False)
                    | st.sampled_from(["user", "assistant", "system", "compact_boundary", "a", "b", "c"])
                    | st.text(st.characters(codec=None), max_size=4),
                    lambda inner: (
                        st.lists(inner, max_size=3)
                        | st.dictionaries(st.sampled_from(["role", "content", "id", "usage", "x"]), inner, max_size=4)
                    ),
                    max_leaves=6,
                ),
                max_size=7,
            ),
            max_size=8,
        )
    )
    def test_any_json_comes_back(self, scratch: tape.Store, lines: list[Line]) -> None:
        """Whatever the lines hold."""
        chat = scratch.create()
        for line in lines:
            write(chat, [line])
        assert same(claude_lines(chat), distinct(lines))


class TestTree:
    def test_the_mirror_is_what_an_import_makes(self, store: tape.Store, tmp_path: Path) -> None:
        """The kept session, line by line from nothing each time, gives the tree that its file gives."""
        lines = [line for line in kept(DATA / "claude-code.jsonl") if line.get("isSidechain") is not True]
        file = tmp_path / "session.jsonl"
        file.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
        import_transcript(store, "claude-code", file, tape="imported")
        for line in lines:
            write(store.tape("mirrored"), [line])
        assert shape(store.tape("mirrored")) == shape(store.tape("imported"))

    def test_side_conversations_leave_the_head_alone(self, store: tape.Store) -> None:
        """Records of a subagent in the session's own file are branches; the conversation stays where it was."""
        chat = store.tape("mirror")
        for line in kept(DATA / "claude-code.jsonl"):
            write(chat, [line])
        path = {message.id for message in chat.messages()}
        side = {line["uuid"] for line in kept(DATA / "claude-code.jsonl") if line.get("isSidechain") is True}
        assert side
        assert not path & side
        assert all(chat.find(id) is not None for id in side)

    def test_a_rewritten_line_is_kept_beside_the_first(self, store: tape.Store) -> None:
        """It is no error, it comes back in its place, and the message is the first one."""
        chat = store.tape("mirror")
        first = {"type": "user", "uuid": "a", "parentUuid": None, "message": {"role": "user", "content": "one"}}
        other = {**first, "message": {"role": "user", "content": "two"}}
        for lines in ([first], [other], [first, other, first]):
            write(chat, lines)
        assert claude_lines(chat) == [first, other]
        assert [message.text for message in chat.messages()] == ["one"]
        assert [entry.payload.name for entry in chat.entries(kinds=["event"])] == ["claude-code.rewritten"]  # type: ignore[union-attr]

    def test_it_goes_on_where_somebody_retracted(self, store: tape.Store) -> None:
        """What others do to the tape is theirs: the next line comes behind what is there, and all lines come back."""
        chat = store.tape("mirror")
        lines = [line for line in session(3, 30) if line.get("type") in ("user", "assistant")]
        mirror = write(chat, lines[:5])
        chat.append(role="user", content="from elsewhere")
        chat.retract(chat.messages()[-2].id)
        write(chat, lines[5:], mirror)
        assert same(claude_lines(chat), distinct(lines))
        assert chat.verify().ok

    def test_what_is_known_is_checked_against_the_tape(self, backend: Backend) -> None:
        """A tape that was purged and written anew is read anew, as long as it may be."""
        store = backend.open()
        lines = session(5, 20)
        mirror = write(store.create("mirror"), lines)
        store.purge("mirror")
        chat = store.create("mirror", reuse=True)
        for _ in range(40):
            chat.event("filler", 1)
        mirror = write(chat, lines[:10], mirror)
        write(chat, lines, mirror)
        named = [line for line in lines[:10] if not isinstance(line.get("uuid"), str)]
        held = [json.dumps(line, sort_keys=True) for line in claude_lines(chat)]
        wanted = [json.dumps(line, sort_keys=True) for line in [*distinct(lines), *named]]
        assert sorted(held) == sorted(wanted)
