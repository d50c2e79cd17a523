"""S13: the tools of a model do what their schemas say, and answer in words whatever a model sends."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.backends import Backend

import tape
from tape import BlockSpec
from tape.tools import Toolset

pytestmark = pytest.mark.alike


def deep(levels: int, inner: Any = 1) -> Any:
    """Return something nested so deep."""
    for _ in range(levels):
        inner = [inner]
    return inner


WRONG: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -(2**70),
    2**70,
    10**5_000,
    1e308,
    math.inf,
    -math.inf,
    math.nan,
    "",
    " ",
    "abc",
    "1",
    "chat:1",
    "no:such:1",
    ":",
    "9" * 5_000,
    "\x00",
    "\ud800",
    "x" * 100_000,
    [],
    ["abc", 1],
    [None],
    deep(500),
    deep(5_000),
    {},
    {"self": 1},
    {"a": deep(100)},
]
VALUES = st.one_of(
    st.sampled_from(WRONG),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
        max_leaves=5,
    ),
)
UNKNOWN = ["self", "name", "tape", "arguments", "run", "", "\ud800", "x" * 1_000]
NAMES = ["tape_info", "tape_search", "tape_context", "tape_anchors", "tape_handoff", "set_block", "search_tapes"]
GOOD: dict[str, dict[str, Any]] = {
    "tape_info": {},
    "tape_search": {"query": "hello", "limit": 3},
    "tape_context": {"seq": 2, "before": 1, "after": 1},
    "tape_anchors": {"limit": 2},
    "tape_handoff": {"name": "next", "summary": "done", "next_steps": ["rest"]},
    "set_block": {"label": "memory", "text": "tea", "action": "replace"},
    "search_tapes": {"query": "hello", "limit": 3, "tape": "chat"},
}


STORE_TOOLS = ["list_tapes", "tape_info", "search", "read_around", "messages", "context", "anchors", "diff"]
STORE_TOOLS += ["append", "fork", "handoff", "label", "retract"]


class Documents:
    """A provider of one document, in which can be searched."""

    def list(self) -> Any:
        return [("pdf", "how to read a PDF")]

    def load(self, key: str) -> str:
        return "Read it page by page."

    def search(self, query: str) -> Any:
        return ["pdf"]


def toolsets(store: tape.Store) -> dict[str, Toolset]:
    """Return every tool by its name, each in the set that has it."""
    chat = store.tape("chat")
    if not chat.info().head:
        chat.append(role="user", content="hello", id="m0")
        chat.set_block("memory", "x", max_tokens=50)
    sets = (chat.tools(), store.tools())
    return {name: tools for tools in sets for name in tools.names}


class TestAnswers:
    def test_s13_every_tool_is_tried_here(self, guest: tape.Store) -> None:
        """The tests of this module know every tool, and how to call it rightly."""
        tools = toolsets(guest)
        assert sorted(tools) == sorted(NAMES) == sorted(GOOD)
        for name, arguments in GOOD.items():
            assert set(arguments) == set(tools[name][name].parameters["properties"])
            assert not tools[name].call(name, arguments).startswith("Error"), name
            assert not tools[name].call(name, json.dumps(arguments)).startswith("Error"), name

    @pytest.mark.parametrize("name", NAMES)
    def test_s13_a_wrong_value_of_any_argument_is_answered_in_words(self, guest: tape.Store, name: str) -> None:
        """Each argument of each tool gets every sort of wrong value: text comes back, and nothing is raised."""
        tools = toolsets(guest)[name]
        for argument in (*GOOD[name], *UNKNOWN):
            for wrong in WRONG:
                arguments = {**GOOD[name], argument: wrong}
                answers = [tools.call(name, arguments), tools[name](**arguments)]
                for answer in answers:
                    assert isinstance(answer, str)
                    assert 0 < len(answer) < 20_000
                    if argument not in GOOD[name] and wrong is not None:
                        assert answer.startswith("Error: "), (argument, answer)
        for argument in tools[name].parameters["required"]:
            left = {key: value for key, value in GOOD[name].items() if key != argument}
            assert tools.call(name, left).startswith(f"Error: {argument}: "), argument
            assert tools.call(name, {**left, argument: None}).startswith(f"Error: {argument}: "), argument

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(
        name=st.sampled_from(NAMES),
        arguments=st.dictionaries(
            st.one_of(st.sampled_from(sorted({key for one in GOOD.values() for key in one})), st.text(max_size=5)),
            VALUES,
            max_size=4,
        ),
        right=st.booleans(),
    )
    def test_s13_whatever_a_model_sends_is_answered_in_words(
        self, guest: tape.Store, name: str, arguments: dict[str, Any], right: bool
    ) -> None:
        """Any object as the arguments of any tool, as a dict or as JSON, gets text and never an exception."""
        tools = toolsets(guest)[name]
        sent = {**(GOOD[name] if right else {}), **arguments}
        assert isinstance(tools.call(name, sent), str)
        try:
            encoded = json.dumps(sent)
        except (ValueError, RecursionError):
            return
        assert isinstance(tools.call(name, encoded), str)

    @pytest.mark.parametrize(
        "arguments",
        [
            '{"query": Infinity}',
            '{"query": NaN}',
            '{"limit": 1e999}',
            "[" * 100_000,
            '{"a":' * 100_000,
            f'{{"query": {"9" * 5_000}}}',
            '"text"',
            "[]",
            "7",
            "{",
            "\ud800",
            '{"query": "\\ud800"}',
            "\x00",
            [],
            7,
            b"{}",
            {1: 2},
            {None: 1},
            deep(10_000),
        ],
        ids=lambda value: repr(value)[:20] if not isinstance(value, list) else "list",
    )
    def test_s13_arguments_that_are_no_object_are_answered_in_words(self, guest: tape.Store, arguments: Any) -> None:
        """Infinity, deep JSON, lone surrogates, lists and numbers in place of arguments are answered in words."""
        for name, tools in toolsets(guest).items():
            assert tools.call(name, arguments).startswith("Error: "), name

    @pytest.mark.parametrize("name", [None, 7, [], {}, "", "nope", "\ud800", "x" * 100_000])
    def test_s13_an_unknown_tool_is_answered_in_words(self, guest: tape.Store, name: Any) -> None:
        """Whatever stands in place of a tool's name, the answer says which tools there are."""
        answer = toolsets(guest)["tape_info"].call(name, {})
        assert answer.startswith("Error: there is no tool")
        assert "tape_search" in answer
        assert len(answer) < 1_000

    def test_s13_a_tool_of_the_program_s_own_never_raises_either(self) -> None:
        """A tool with any schema gets what its schema does not speak of as it is, and its errors become text."""

        def run(**arguments: Any) -> str:
            return "".join(arguments["words"]) if arguments["words"] else str(1 / 0)

        mine = tape.Tool("mine", "Mine.", {"type": "object", "properties": {"words": {}}}, run)
        assert mine(words=["a", "b"], more=1) == "ab"
        assert mine(words=[]).startswith("Error: ")
        assert mine().startswith("Error: ")


class TestArguments:
    def test_s13_as_many_hits_come_back_as_were_asked_for(self, store: tape.Store) -> None:
        """A search for 50 shows 50, whole; one for more shows what the schema allows; without a limit it shows 10."""
        chat = store.tape("chat")
        chat.extend([{"role": "user", "content": f"pelican {n} {'and more words ' * 30}"} for n in range(60)])
        for name, tools in (("tape_search", chat.tools()), ("search_tapes", store.tools())):
            for limit, expected in ((None, 10), (3, 3), (25, 25), (50, 50), (50.0, 50), (500, 50)):
                answer = tools.call(name, {"query": "pelican", "limit": limit})
                assert len(answer.split("\n")) == expected, (name, limit)
                assert answer.count("«pelican»") == expected

    def test_s13_a_string_in_place_of_a_list_is_refused(self, chat: tape.Tape) -> None:
        """Next steps are a list of strings: a string is not taken apart into letters, and nothing is recorded."""
        tools = chat.tools()
        for wrong in ("abc", {"a": 1}, 7, [1], ["a", None], [["a"]]):
            answer = tools.call("tape_handoff", {"name": "n", "summary": "s", "next_steps": wrong})
            assert answer.startswith("Error: next_steps"), answer
        assert chat.info().head == 0
        for fine, steps in ((None, []), ([], []), (["abc"], ["abc"])):
            tools.call("tape_handoff", {"name": "n", "summary": "s", "next_steps": fine})
            assert chat.anchors()[-1].next_steps == steps

    def test_s13_the_entry_asked_for_is_shown_among_long_ones(self, chat: tape.Tape) -> None:
        """However long the entries around it are, the answer has the one that was asked for, and all their seqs."""
        chat.extend([{"role": "user", "content": f"text {n} {'word ' * 2_000}"} for n in range(41)])
        answer = chat.tools().call("tape_context", {"seq": 22, "before": 20, "after": 20})
        assert [int(line.split()[0]) for line in answer.split("\n")] == list(range(2, 43))
        assert len(answer) < 20_000
        assert max(answer.split("\n"), key=len).startswith("22 append")


class TestForks:
    def test_s13_every_hit_on_a_fork_can_be_read(self, backend: Backend) -> None:
        """What a search on a fork of a fork prints is an address that tape_context reads, colons in ids included."""
        store = backend.open(owner="ann")
        chat = store.tape("root:1")
        chat.append(role="user", content="zebra at the root", id="a")
        chat.append(role="user", content="zebra to change", id="b")
        middle = chat.fork("middle")
        chat.append(role="user", content="zebra later", id="later")
        middle.append(role="user", content="zebra in the middle", id="c")
        fork = middle.fork("fork")
        fork.append(role="user", content="zebra of its own", id="d")
        fork.revise("b", content="zebra changed")
        tools = fork.tools()
        lines = tools.call("tape_search", {"query": "zebra"}).split("\n")
        addresses = {line.split()[2].rstrip(":"): line.split()[0] for line in lines}
        assert addresses == {"a": "root:1:2", "b": "3", "c": "middle:2", "d": "2"}
        for message_id, address in addresses.items():
            answer = tools.call("tape_context", {"seq": address, "before": 0, "after": 0})
            assert answer == f"{address} {'revise' if message_id == 'b' else 'append'} {message_id}: " + (
                fork.message(message_id).text
            )
        assert tools.call("tape_context", {"seq": 2}) == tools.call("tape_context", {"seq": "fork:2"})
        assert tools.call("tape_context", {"seq": 2}) == tools.call("tape_context", {"seq": "2"})

    def test_s13_nothing_beyond_the_fork_can_be_read(self, backend: Backend) -> None:
        """What a parent wrote after the fork, other tapes and other owners' tapes cannot be read by any address."""
        everyone = backend.open()
        everyone.create("other", owner="bob", messages=[{"role": "user", "content": "secret"}])
        store = everyone.scoped("ann")
        chat = store.tape("parent")
        chat.append(role="user", content="before", id="a")
        store.tape("aside").append(role="user", content="secret")
        fork = chat.fork("fork")
        chat.append(role="user", content="secret")
        tools = fork.tools()
        assert "before" in tools.call("tape_context", {"seq": "parent:2", "after": 20})
        assert "secret" not in tools.call("tape_context", {"seq": "parent:2", "after": 20})
        for address in ("parent:3", "parent:4", "other:2", "aside:2", "fork:99", "nobody:1", "parent:0", "parent:-1"):
            assert tools.call("tape_context", {"seq": address}).startswith("Error: seq"), address
        assert chat.tools().call("tape_context", {"seq": "fork:1"}).startswith("Error: seq")

    def test_s13_inherited_anchors_carry_an_address(self, store: tape.Store) -> None:
        """Anchors of an ancestor are listed by an address that can be read, too."""
        chat = store.tape("parent")
        chat.anchor("start")
        fork = chat.fork("fork")
        fork.anchor("own")
        tools = fork.tools()
        assert tools.call("tape_anchors").split("\n") == ["parent:2 start", "2 own"]
        assert tools.call("tape_context", {"seq": "parent:2", "before": 0}) == "parent:2 anchor"


class TestTools:
    def test_s13_only_what_applies_is_offered_and_described(self, backend: Backend) -> None:
        """Without a writable block there is no tool to write one, and the prompt section does not speak of it."""
        bare = backend.open().tape("bare").tools()
        assert "set_block" not in bare
        assert "set_block" not in bare.prompt()
        chat = backend.open(blocks=[BlockSpec("memory"), BlockSpec("persona", read_only=True)]).tape("chat")
        tools = chat.tools()
        assert "set_block" in tools
        assert tools["set_block"].parameters["properties"]["label"]["enum"] == ["memory"]
        assert [line.split(":")[0] for line in tools.prompt().split("\n")[1:]] == [f"- {name}" for name in tools.names]
        for shape in (tools.openai(), tools.anthropic()):
            assert len(shape) == len(tools)
            msgspec.json.encode(shape)

    def test_s16_the_store_s_tools_search_all_tapes_of_the_owner(self, store: tape.Store) -> None:
        """A model finds text on every tape that the store sees, is told the tape, and finds no other owner's."""
        for owner in ("ann", "bob"):
            for n in range(3):
                store.create(f"{owner}-{n}", owner=owner, messages=[{"role": "user", "content": f"pelican {n}"}])
        tools = store.scoped("ann").tools()
        assert tools.names == ["search_tapes"]
        assert [line.split()[0] for line in tools.call("search_tapes", {"query": "pelican"}).split("\n")] == [
            "ann-2",
            "ann-1",
            "ann-0",
        ]
        assert len(store.tools().call("search_tapes", '{"query": "pelican", "limit": 5}').split("\n")) == 5
        assert len(tools.call("search_tapes", {"query": "pelican", "tape": "ann-1"}).split("\n")) == 1
        for nothing in ({"query": "pelican", "tape": "bob-1"}, {"query": "nowhere"}, {"query": "", "tape": "nobody"}):
            assert tools.call("search_tapes", nothing) == "Nothing found."
        for wrong in ({}, {"query": 7}, {"query": "x", "owner": "bob"}, {"query": "x", "limit": "many"}):
            assert tools.call("search_tapes", wrong).startswith("Error: ")
        for shape in (tools.openai(), tools.anthropic()):
            assert len(msgspec.json.decode(msgspec.json.encode(shape))) == 1

    def test_s16_a_model_reads_and_writes_the_tapes_of_the_store(self, store: tape.Store) -> None:
        """Each tool of the store does what the call of its name does, and answers with JSON."""
        ann = store.scoped("ann")
        assert [len(ann.tools(scope)) for scope in ("search", "read", "write")] == [1, 8, 13]
        assert {tool.effect for tool in ann.tools("read")} == {"reads"}
        with pytest.raises(tape.InvalidEntry):
            ann.tools("all")
        tools = ann.tools("write", actor="helper")

        def ask(tool: str, /, **arguments: Any) -> Any:
            answer = tools.call(tool, json.dumps(arguments))
            assert not answer.failed, answer
            return json.loads(answer)

        first = ask("append", tape="trip", content="Plan the trip", key="k", fields={"mood": "keen"})
        assert ask("append", tape="trip", content="Plan the trip", key="k", fields={"mood": "keen"})["duplicate"]
        trip = store.get("trip")
        assert (first["seq"], trip.entry(seq=2).actor, trip.info().owner) == (2, "helper", "ann")
        ask("handoff", tape="trip", name="booked", summary="Booked.", next_steps=["pack"])
        assert ask("fork", tape="trip", id="side", at="2")["tape"] == "side"
        for wrong in ({"content": "x", "fields": {"role": "y"}}, {"content": "x", "expected_head": 1}):
            assert tools.call("append", {"tape": "trip", **wrong}).failed
        assert tools.call("read_around", {"tape": "trip", "seq": 0}).failed
        ask("append", tape="side", role="assistant", content="By bus")
        ask("label", tape="side", add=["golden"])
        assert [info["id"] for info in ask("list_tapes", label="golden")["items"]] == ["side"]
        assert ask("tape_info", tape="side")["ancestors"][0]["tape"] == "trip"
        assert ask("tape_info", tape="trip", at=2)["head"] == 2
        (hit,) = ask("search", query="bus")["items"]
        assert [entry["kind"] for entry in ask("read_around", tape=hit["tape"], seq=hit["seq"])["items"]][1] == "append"
        assert [message["id"] for message in ask("messages", tape="trip")["items"]] == [first["message_id"]]
        assert ask("messages", tape="trip", at="2")["truncated"] is False
        assert ask("context", tape="side")["messages"][-1]["content"] == "By bus"
        assert ask("anchors", tape="trip")["items"][0]["next_steps"] == ["pack"]
        assert "bus" in ask("diff", tape="trip", a=2, other="side")["text"]
        ask("retract", tape="side", message_ids=[hit["message_id"]])
        assert ask("search", query="bus")["items"] == []
        store.create("bobs", owner="bob", messages=[{"role": "user", "content": "secret"}])
        for name in ("tape_info", "messages", "context", "anchors"):
            answer = tools.call(name, {"tape": "bobs"})
            assert answer.failed
            assert "bobs" in answer
        assert ask("search", query="secret")["items"] == []

    def test_s13_a_long_answer_is_json_and_tells_that_there_is_more(self, store: tape.Store) -> None:
        """Items are left out until the rest has room, those that were asked for last, and nothing is cut."""
        store.create("long", messages=[{"role": "user", "content": f"word {n} " * 60} for n in range(60)])
        for room in (16_000, 2_000):
            tools = store.tools("read", room=room)
            said = json.loads(tools.call("messages", {"tape": "long", "limit": 60}))
            assert said["truncated"]
            assert [item["data"] for item in said["items"]] == [
                message.data for message in store.get("long").messages()[-len(said["items"]) :]
            ]
            for seq in (1, 2, 30, 61):
                answer = tools.call("read_around", {"tape": "long", "seq": seq, "before": 60, "after": 60})
                assert len(answer) < room + 100
                said = json.loads(answer)
                seqs = [item["seq"] for item in said["items"]]
                assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
                assert seq in seqs
                assert said["truncated"]
                assert "cut]" not in answer
                if seq == 30 and len(seqs) > 1:
                    assert abs((seqs[0] + seqs[-1]) / 2 - seq) <= 1
        assert store.tools("read").call("read_around", {"tape": "long", "seq": 62}).failed

    def test_s13_no_answer_is_longer_than_its_room(self, store: tape.Store) -> None:
        """However large one message, what is said beside a tape, or a family is, and whatever budget a model names."""
        text = 'word \u6771"\n' * 60_000
        message = {"role": "user", "content": text, "id": "m"}
        big = store.create("big", meta={"m": text, "n": "short"}, messages=[message])
        small = {str(n): "short" for n in range(30_000)}
        store.create("wide", meta=small, messages=[{"role": "user", "content": "x", "more": small}])
        store.tape("many").extend([{"role": "user", "content": text[: 80 * 9]} for _ in range(2_500)])
        for n in range(30):
            store.create(f"t{n}", meta={"m": text[:50_000], "n": n})
            big.fork(f"fork {n}" + "z" * 200)
            store.tape("wide").handoff(f"h{n}", summary=text[:20_000], state=[text[:5_000]])
        asked: list[tuple[str, dict[str, Any]]] = [("list_tapes", {}), ("list_tapes", {"limit": 200})]
        asked += [("anchors", {"tape": "wide"}), ("fork", {"tape": "big"}), ("diff", {"tape": "many", "a": 1})]
        for name in ("big", "wide"):
            asked += [(tool, {"tape": name}) for tool in ("messages", "tape_info")]
            asked += [("read_around", {"tape": name, "seq": 2})]
        asked += [("context", {"tape": name, "budget": 10**9}) for name in ("big", "many")]
        asked += [("messages", {"tape": "many", "limit": 1_000})]
        for room in (3_000, 16_000, 200_000):
            tools = store.tools("write", room=room)
            answers = {(name, *arguments.values()): tools.call(name, arguments) for name, arguments in asked}
            for which, answer in answers.items():
                assert not answer.failed, answer
                assert len(answer.encode()) < room + 700, which
                assert json.loads(answer).get("truncated", which[0] == "fork"), which
            for which in (("messages", "big"), ("read_around", "big", 2), ("diff", "many", 1)):
                assert "characters cut]" in answers[which]
                assert len(answers[which].encode()) > room * 0.9
            assert json.loads(answers["tape_info", "big"])["meta"]["n"] == "short"
            assert json.loads(answers["messages", "big"])["items"][0]["id"] == "m"

    def test_s13_what_has_no_room_is_reached_by_further_calls(self, store: tape.Store) -> None:
        """Tapes by the cursor, messages and anchors by what was first; the last come first, an ancestor's, too."""
        chat = store.tape("parent")
        for n in range(20):
            store.create(f"t{n}", meta={"m": "x" * 20_000})
            chat.append(role="user", content="y" * 3_000, id=f"m{n}")
            chat.handoff(f"h{n}", summary="z" * 3_000)
            if n == 9:
                chat = chat.fork("fork")
        tools = store.tools("read")

        def ask(tool: str, **arguments: Any) -> Any:
            return json.loads(tools.call(tool, arguments))

        listed: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = ask("list_tapes", limit=7, cursor=cursor)
            assert page["truncated"]
            listed += [item["id"] for item in page["items"]]
            cursor = page["cursor"]
        assert listed == [info.id for info in store.list(limit=50)]
        anchors: list[str] = []
        before, more = "", True
        while more:
            page = ask("anchors", tape="fork", before=before)
            anchors[:0] = [item["name"] for item in page["items"]]
            more, before = page["truncated"], f"{page['items'][0]['tape']}:{page['items'][0]['seq']}"
        assert anchors == [f"h{n}" for n in range(20)]
        assert [item["name"] for item in ask("anchors", tape="fork", limit=2)["items"]] == ["h18", "h19"]
        own = chat.anchors(limit=2)
        assert ask("anchors", tape="fork", limit=1, before=own[1].seq)["items"][0]["name"] == own[0].name
        for wrong in ("h3", "no:h3", ":", -1, 1.5):
            assert tools.call("anchors", {"tape": "fork", "before": wrong}).failed
        ids: list[str] = []
        before, more = "", True
        while more:
            page = ask("messages", tape="fork", before=before)
            ids[:0] = [item["id"] for item in page["items"]]
            more, before = page["truncated"], ids[0]
        assert ids == [f"m{n}" for n in range(20)]
        assert chat.tools().call("tape_anchors").split("\n")[-1].split()[1] == "h19:"
        assert len(chat.tools().call("tape_anchors")) <= 16_000

    def test_s13_a_store_to_be_read_offers_nothing_that_writes(self, backend: Backend) -> None:
        """On a read-only store the tools of a store and of a tape are those that read, and no text speaks of more."""
        specs = [BlockSpec("memory"), BlockSpec("skills", provider=Documents())]
        with backend.open(blocks=specs) as store:
            store.tape("chat").set_block("memory", "x")
            assert len(store.tape("chat").tools()) == 9
        store = backend.open(blocks=specs, read_only=True)
        chat = store.tape("chat")
        assert store.tools("write").names == store.tools("read").names == STORE_TOOLS[:8]
        names = ["tape_info", "tape_search", "tape_context", "tape_anchors", "search_block"]
        assert chat.tools().names == names
        for tools in (store.tools("write"), chat.tools()):
            assert {tool.effect for tool in tools} == {"reads"}
            assert "notes" not in tools.prompt()

    def test_s13_a_text_in_place_of_an_object_or_a_list_is_refused(self, store: tape.Store) -> None:
        """It is answered with the name of the argument, and a text is not taken apart into labels."""
        store.tape("chat").append(role="user", content="x")
        tools = store.tools("write")
        for name, arguments, field in (
            ("append", {"content": "x", "fields": "{}"}, "fields: must be an object, not a str"),
            ("append", {"content": "x", "fields": [1]}, "fields: must be an object, not a list"),
            ("label", {"add": "abc"}, "add: must be a list, not a str"),
            ("handoff", {"name": "n", "summary": "s", "next_steps": [1]}, "next_steps[0]: must be a string, not a int"),
            ("messages", {"at": [1]}, "at: must be a whole number or a string, not a list"),
        ):
            assert tools.call(name, {"tape": "chat", **arguments}) == f"Error: {field}"
        assert store.get("chat").info().head == 2

    def test_s13_an_async_program_runs_tools_beside_its_loop(self, backend: Backend) -> None:
        """The tools of an async store are plain ones; a call in a thread, or in a hop of the store, is awaited."""

        async def work() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                tools = await store.tools("write")
                assert not (await asyncio.to_thread(tools.call, "append", {"tape": "t", "content": "hi"})).failed
                answer = await store.run(lambda plain: plain.tools("read").call("messages", {"tape": "t"}))
                assert json.loads(answer)["items"][0]["data"]["content"] == "hi"

        asyncio.run(asyncio.wait_for(work(), 60))

    def test_s13_tools_say_what_they_do(self, chat: tape.Tape) -> None:
        """Whoever lets a model only read can tell by the effect of a tool."""
        chat.append(role="user", content="hello")
        chat.set_block("memory", "x")
        effects = {tool.name: tool.effect for tool in chat.tools()}
        assert {name for name, effect in effects.items() if effect != "reads"} == {"tape_handoff", "set_block"}

    @pytest.mark.parametrize("name", STORE_TOOLS)
    def test_s13_any_arguments_of_the_store_s_tools_are_answered(self, guest: tape.Store, name: str) -> None:
        """Wrong, missing and unknown arguments come back as words."""
        tools = guest.tools("write")
        assert tools.names == STORE_TOOLS
        properties = tools[name].parameters["properties"]
        for wrong in WRONG:
            for argument in (*properties, *UNKNOWN):
                answer = tools.call(name, {**dict.fromkeys(tools[name].parameters["required"], "x"), argument: wrong})
                # A name that was given comes back whole.
                assert 0 < len(answer) < 120_000
        assert tools.call(name, {"nobody": 1}).failed

    def test_s13_every_failure_is_text(self, chat: tape.Tape) -> None:
        """Unknown tools, wrong arguments, refusals of the store: all are answered in words."""
        chat.append(role="user", content="hello")
        chat.set_block("memory", "x", max_tokens=5)
        chat.set_block("persona", "y", read_only=True)
        tools = chat.tools()
        head = chat.info().head
        bad: list[tuple[str, Any]] = [
            ("nope", {}),
            ("tape_context", {}),
            ("tape_context", {"seq": "one"}),
            ("tape_context", {"seq": 99}),
            ("tape_handoff", {"name": "x", "summary": " "}),
            ("tape_anchors", {"limit": -1}),
            ("set_block", {"label": "memory", "text": "word " * 50}),
            ("set_block", {"label": "persona", "text": "z"}),
            ("set_block", {"label": "memory", "text": "z", "action": "explode"}),
            ("set_block", "{not json"),
            ("tape_info", {"surprise": 1}),
        ]
        for name, arguments in bad:
            assert tools.call(name, arguments).startswith("Error"), (name, arguments)
        assert chat.info().head == head

    def test_s13_the_tools_do_what_they_say(self, chat: tape.Tape) -> None:
        """Info, reading around a seq, anchors, handoff, writing a block with its usage told."""
        chat.extend([{"role": "user", "content": "find me"}, {"role": "assistant", "content": "found"}])
        chat.set_block("memory", "", max_tokens=100)
        tools = chat.tools()
        assert "2 messages" in tools.call("tape_info")
        assert "find me" in tools.call("tape_context", {"seq": 3})
        assert tools.call("tape_anchors") == "This tape has no anchors."
        assert "recorded" in tools.call("tape_handoff", '{"name": "next", "summary": "done", "next_steps": ["rest"]}')
        assert tools.call("tape_anchors").endswith("next: done")
        assert tools.call("set_block", {"label": "memory", "text": "tea"}).startswith("Written to memory. Usage: 1/100")
        chat.retract(chat.messages()[0].id)
        assert "find me" not in tools.call("tape_context", {"seq": 3})
