"""Explaining a context: where each part comes from, what is out and why, and which entry moved the request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from support.backends import Backend
from support.shell import Shell
from support.sizes import heavy, size

import tape
from tape.core.context.explain import Piece, common_prefix, kept_of, pieces_of
from tape.core.messages.tokens import estimate

pytestmark = pytest.mark.alike

TOOLS = [{"name": "look", "input_schema": {"type": "object"}}]
SHOWN: dict[str, Any] = {"model": "small-1", "tools": TOOLS}


class Expected(NamedTuple):
    """What an explanation should name: the cause, the entry if there is one, and how the next context is asked for."""

    cause: str
    seq: int | None
    asked: dict[str, Any] = SHOWN


class Story:
    """A random conversation with a recorded context, and something that happens to it."""

    def __init__(self, store: tape.Store, seed: int) -> None:
        self.random = random.Random(seed)
        self.chat = store.create(f"explained-{seed}")
        self.number = 0

    def turn(self) -> None:
        """Append a turn, with a tool call now and then."""
        self.number += 1
        n, call = self.number, f"c{self.number}"
        made: list[dict[str, Any]] = [{"id": f"u{n}", "role": "user", "content": f"question {n} " + self.words()}]
        if self.random.random() < 0.4:
            function = {"name": "look", "arguments": "{}"}
            made.append({"id": f"m{n}", "role": "assistant", "tool_calls": [{"id": call, "function": function}]})
            made.append({"id": f"t{n}", "role": "tool", "tool_call_id": call, "content": f"found {n} " + self.words()})
        made.append({"id": f"a{n}", "role": "assistant", "content": f"answer {n} " + self.words()})
        self.chat.extend(made, actor="agent")

    def words(self) -> str:
        return "word " * self.random.randint(1, 40)

    def noise(self) -> None:
        """Let things happen that move nothing."""
        for _ in range(self.random.randint(0, 3)):
            self.random.choice(
                [
                    lambda: self.chat.event("note", {"n": 1}),
                    lambda: self.chat.record_usage(input_tokens=5, output_tokens=5),
                    lambda: self.chat.label(f"l{self.random.randint(0, 99)}"),
                    lambda: self.chat.put("slot", self.random.random()),
                    self.turn,
                ]
            )()

    def begin(self) -> None:
        """Have a conversation."""
        if self.random.random() < 0.6:
            self.chat.set_block("memory", "likes tea " + self.words())
        for _ in range(self.random.randint(2, 8)):
            self.turn()

    def record(self) -> int:
        """Record what the model is shown, and return where."""
        return self.chat.recorded_context(**SHOWN)[1].seq

    def some(self, kinds: str = "ua") -> str:
        return f"{self.random.choice(kinds)}{self.random.randint(1, self.number)}"


def _revise(story: Story) -> Callable[[], Expected]:
    id = story.some()
    return lambda: Expected("revise", story.chat.revise(id, content="otherwise").seq)


def _revise_twice(story: Story) -> Callable[[], Expected]:
    id = story.some()

    def twice() -> Expected:
        story.chat.revise(id, content="otherwise " * 2)
        story.noise()
        return Expected("revise", story.chat.revise(id, content="otherwise again").seq)

    return twice


def _retract(story: Story) -> Callable[[], Expected]:
    id = story.some()
    return lambda: Expected("retract", story.chat.retract(id).seq)


def _restore(story: Story) -> Callable[[], Expected]:
    # Not the last message, with which the request would only grow.
    id = story.some("u")
    story.chat.retract(id)
    return lambda: Expected("restore", story.chat.restore(id).seq)


def _clear(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("clear", story.chat.clear().seq)


def _compact(story: Story) -> Callable[[], Expected]:
    last = story.random.randint(1, story.number)
    return lambda: Expected("compact", story.chat.set_summary("in short", first="u1", last=f"a{last}").seq)


def _anchor(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("anchor", story.chat.anchor("here", {"city": "Kyoto"}).seq)


def _handoff(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("handoff", story.chat.handoff("next", summary="done so far").seq)


def _block(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("block", story.chat.set_block("memory", "likes coffee").seq)


def _prompt(story: Story) -> Callable[[], Expected]:
    story.chat.set_block("memory", "likes tea")
    story.chat.freeze_prompt()

    def refresh() -> Expected:
        # A block that is changed moves nothing while the prompt is frozen.
        story.chat.set_block("memory", "likes coffee")
        story.noise()
        story.chat.refresh_prompt()
        return Expected("prompt", next(story.chat.entries(kinds=["block"], reverse=True)).seq)

    return refresh


def _switch(story: Story) -> Callable[[], Expected]:
    end = story.chat.messages()[-1].id
    other = story.chat.append(role="assistant", content="another way", parent=story.some("u")).message_id
    story.chat.switch(end)
    assert other is not None
    return lambda: Expected("switch", story.chat.switch(other).seq)


def _branch(story: Story) -> Callable[[], Expected]:
    parent = f"u{story.random.randint(1, story.number)}"
    return lambda: Expected("append", story.chat.append(role="assistant", content="again", parent=parent).seq)


def _model(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("model", None, {**SHOWN, "model": "large-1"})


def _tools(story: Story) -> Callable[[], Expected]:
    return lambda: Expected("tools", None, {**SHOWN, "tools": [*TOOLS, {"name": "write"}]})


def _policy(story: Story) -> Callable[[], Expected]:
    budget = story.chat.context().tokens - 10
    policy = tape.Standard(head=0, name="tail")
    return lambda: Expected("policy", None, {**SHOWN, "budget": budget, "policy": policy})


def _merge(story: Story) -> Callable[[], Expected]:
    child = story.chat.fork()
    child.revise(story.some(), content="as the helper has it")

    def merge() -> Expected:
        before = story.chat.info().head
        story.chat.merge(child)
        moved = [entry.seq for entry in story.chat.entries(after=before, kinds=["revise", "merge"])]
        kind = "revise" if len(moved) > 1 else "merge"
        return Expected(kind, moved[0])

    return merge


KINDS: dict[str, Callable[[Story], Callable[[], Expected]]] = {
    "revise": _revise,
    "revise twice": _revise_twice,
    "retract": _retract,
    "restore": _restore,
    "clear": _clear,
    "compact": _compact,
    "anchor": _anchor,
    "handoff": _handoff,
    "block": _block,
    "prompt": _prompt,
    "switch": _switch,
    "branch": _branch,
    "model": _model,
    "tools": _tools,
    "policy": _policy,
}


class TestBlame:
    @heavy
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_entry_that_moved_the_request_is_named(self, guest: tape.Store, standing: Backend, kind: str) -> None:
        """Whatever else happened before and after it, on the live context and on the recorded one."""
        many = size(1, 3) if standing.postgres else size(2, 20)
        number = list(KINDS).index(kind)
        for seed in range(number * 1_000, number * 1_000 + many):
            story = Story(guest, seed)
            story.begin()
            mutate = KINDS[kind](story)
            before = story.record()
            story.noise()
            expected = mutate()
            story.noise()
            api = story.random.choice(["chat", "responses", "anthropic"])
            told = story.chat.context(**expected.asked).explain(api=api)
            assert told.against == before, f"seed {seed}"
            assert told.difference is not None, f"seed {seed}"
            assert (told.difference.cause, told.difference.seq) == (expected.cause, expected.seq), f"seed {seed} {told}"
            self.check_offset(story.chat, told)
            context, receipt = story.chat.recorded_context(**expected.asked)
            again = story.chat.explain(receipt.seq, api=api, policy=expected.asked.get("policy")).difference
            assert again is not None
            assert (again.cause, again.seq) == (expected.cause, expected.seq or receipt.seq), f"seed {seed}"
            assert context.explain(api=api).difference == again, f"seed {seed}"

    def check_offset(self, chat: tape.Tape, told: tape.Explanation) -> None:
        """Up to the byte that is named both requests are the same, and there they are not."""
        assert told.against is not None
        moved = told.difference
        assert moved is not None
        if moved.cause in ("model", "tools"):
            assert (moved.offset, moved.kept_tokens) == (0, 0)
            return
        old = chat.recall(told.against)
        shown = pieces_of(old.to_anthropic() if told.api == "anthropic" else old.to_openai(told.api), estimate)
        raw = b"".join(piece.raw for piece in shown)
        assert raw[moved.offset :].decode("utf-8", "replace").startswith(moved.before.rstrip("\n"))
        assert moved.before[:1] != moved.after[:1]
        assert moved.kept_tokens + moved.lost_tokens == sum(piece.tokens for piece in shown)
        assert moved.lost_tokens > 0

    @heavy
    @pytest.mark.parametrize("part", range(3))
    def test_what_only_grows_is_no_alarm(self, guest: tape.Store, standing: Backend, part: int) -> None:
        """Messages, notes, usage, labels, state and forks move nothing, however often a context is recorded."""
        many = size(1, 10) if standing.postgres else size(3, 100)
        for seed in range(50_000 + part * many, 50_000 + (part + 1) * many):
            story = Story(guest, seed)
            story.begin()
            for _ in range(story.random.randint(1, 3)):
                story.record()
                story.noise()
            story.chat.fork(f"fork-{seed}").append(role="user", content="elsewhere")
            told = story.chat.context(**SHOWN).explain(api=story.random.choice(["chat", "responses", "anthropic"]))
            assert told.against is not None
            assert told.difference is None, f"seed {seed}"

    def test_a_budget_that_no_longer_holds_all_is_named_with_the_message(self, store: tape.Store) -> None:
        """It is the message with which the rest no longer fits, not a later one."""
        story = Story(store, 3)
        for _ in range(10):
            story.turn()
        budget = story.chat.context().tokens + 20
        story.chat.context(budget=budget, record=True)
        other = story.chat.context(budget=budget // 2).explain().difference
        assert other is not None
        assert (other.cause, other.seq) == ("budget", None)
        story.chat.append(role="user", content="ok")
        assert story.chat.context(budget=budget).explain().difference is None
        over = story.chat.append(role="user", content="word " * 200)
        story.chat.append(role="assistant", content="ok")
        moved = story.chat.context(budget=budget).explain().difference
        assert moved is not None
        assert (moved.cause, moved.seq) == ("budget", over.seq)

    def test_a_merge_names_what_it_brought(self, store: tape.Store) -> None:
        """An inherited message that the fork revised is another after the merge."""
        for seed in range(3):
            story = Story(store, 900 + seed)
            story.begin()
            merge = _merge(story)
            story.record()
            expected = merge()
            moved = story.chat.context(**SHOWN).explain().difference
            assert moved is not None
            assert (moved.cause, moved.seq) == (expected.cause, expected.seq)

    def test_an_answer_that_takes_the_place_of_a_mark_is_named(self, chat: tape.Tape) -> None:
        """A request that was made while a call had no result said so; the result moved that."""
        chat.append(role="user", content="go")
        chat.append({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]})
        chat.context(record=True)
        answer = chat.append({"role": "tool", "tool_call_id": "c", "content": "done"})
        moved = chat.context().explain().difference
        assert moved is not None
        assert (moved.cause, moved.seq) == ("append", answer.seq)

    def test_a_long_way_back_is_bisected(self, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of hundreds of entries since then, few views are built."""
        chat.extend({"id": f"m{n}", "role": "user", "content": f"note {n}"} for n in range(20))
        chat.context(record=True)
        revised = chat.revise("m7", content="otherwise")
        chat.extend({"role": "user", "content": f"more {n}"} for n in range(300))
        built: list[int] = []
        real = tape.Snapshot._context_at

        def counted(self: tape.Snapshot, seq: int, *arguments: Any) -> tape.Context:
            built.append(seq)
            return real(self, seq, *arguments)

        monkeypatch.setattr(tape.Snapshot, "_context_at", counted)
        moved = chat.context().explain().difference
        assert moved is not None
        assert moved.seq == revised.seq
        assert len(built) <= 25

    def test_another_recorded_context_can_be_named(self, chat: tape.Tape) -> None:
        """Against the last one nothing moved, against the one before it something did."""
        chat.append(role="user", content="one", id="m")
        first = chat.recorded_context()[1].seq
        chat.revise("m", content="two")
        second = chat.recorded_context()[1].seq
        context = chat.context()
        assert context.explain().against == second
        assert context.explain().difference is None
        assert context.explain(against=first).difference is not None
        for recorded, against in ((second, 1), (first, second)):
            with pytest.raises(tape.InvalidEntry):
                chat.explain(recorded, against=against)

    def test_what_is_lost_has_a_price(self, chat: tape.Tape) -> None:
        """When usage was recorded for the calls and the model's price is known."""
        prices = tape.Prices({"small": tape.Price(input=3, output=9, cached_input=0.3, cache_write=4)}, currency="EUR")
        chat.append(role="user", content="word " * 1_000, id="m")
        chat.context(record=True, **SHOWN)
        chat.record_usage(input_tokens=1_000, output_tokens=1, cached_tokens=900, model="small-1")
        chat.revise("m", content="short")
        chat.context(record=True, **SHOWN)
        chat.record_usage(input_tokens=100, output_tokens=1, cached_tokens=0, model="small-1")
        seqs = [entry.seq for entry in chat.entries(name="tape.context")]
        moved = chat.explain(seqs[1], prices=prices).difference
        assert moved is not None
        assert (moved.cached_before, moved.cached_after) == (900, 0)
        assert (moved.cost, moved.currency) == (round(moved.lost_tokens * 2.7), "EUR")
        unpriced = chat.explain(seqs[1]).difference
        assert unpriced is not None
        assert (unpriced.cost, unpriced.currency) == (None, None)
        chat.revise("m", content="shorter")
        # The call before read nothing from a cache and wrote nothing to it, so that nothing was lost.
        uncached = chat.explain(prices=prices).difference
        assert uncached is not None
        assert uncached.cost is None


class TestRegions:
    def test_every_part_names_its_entry(self, store: tape.Store) -> None:
        """Prompt, checkpoint, summary and messages, with who put them there and what they take."""
        chat = store.create("chat")
        block = chat.set_block("memory", "likes tea", actor="ann")
        handoff = chat.handoff("next", summary="so far", actor="bob")
        chat.extend(({"id": f"m{n}", "role": "user", "content": f"note {n}"} for n in range(6)), actor="carl")
        summary = chat.set_summary("in short", first="m0", last="m2", actor="dora")
        revised = chat.revise("m4", content="otherwise", actor="emil")
        context = chat.context()
        told = context.explain()
        assert [(one.kind, one.seq, one.entry_kind, one.actor) for one in told.regions] == [
            ("prompt", block.seq, "block", "ann"),
            ("anchor", handoff.seq, "handoff", "bob"),
            ("summary", summary.seq, "compact", "dora"),
            ("message", 7, "append", "carl"),
            ("message", revised.seq, "revise", "emil"),
            ("message", 9, "append", "carl"),
        ]
        assert [one.message_id for one in told.regions[3:]] == ["m3", "m4", "m5"]
        assert told.regions[4].placed == 8
        assert sum(one.tokens for one in told.regions) == told.tokens == context.tokens
        assert told.left_out == context.manifest.excluded
        assert {one.why for one in told.left_out} == {"before the anchor", f"summarised by seq {summary.seq}"}

    def test_what_was_cut_says_so(self, chat: tape.Tape) -> None:
        """An output that is cut to a mark names its own entry and the policy's step."""
        chat.append(role="user", content="go")
        for n in range(8):
            chat.append({"role": "assistant", "tool_calls": [{"id": f"c{n}", "function": {"name": "f"}}]})
            chat.append({"role": "tool", "tool_call_id": f"c{n}", "content": "word " * 500})
        told = chat.context(budget=2_000).explain()
        steps = [one.step for one in told.regions if one.role == "tool"]
        assert steps[0] == "the last turn's tool output is cut"
        assert steps[-1] == "as recorded"
        assert [one.seq for one in told.regions] == list(range(2, 19))

    def test_inherited_parts_name_the_tape_that_has_them(self, store: tape.Store) -> None:
        """A fork shows what its parent recorded."""
        parent = store.create("parent")
        parent.set_block("memory", "likes tea")
        parent.append(role="user", content="before")
        child = parent.fork("child")
        child.append(role="user", content="after")
        told = child.context().explain()
        assert [(one.tape, one.seq) for one in told.regions] == [("parent", 2), ("parent", 3), ("child", 2)]

    def test_it_is_json(self, chat: tape.Tape) -> None:
        """The shape is what the page and scripts read."""
        chat.append(role="user", content="hello", id="m")
        chat.context(record=True)
        chat.revise("m", content="goodbye")
        told = chat.context().explain()
        data = msgspec.json.decode(msgspec.json.encode(told.to_dict()))
        assert msgspec.convert(data, tape.Explanation) == told
        assert data["difference"]["cause"] == "revise"

    def test_nothing_can_be_explained(self, store: tape.Store) -> None:
        """A tape that was never written has no parts, and none before."""
        told = store.tape("empty").context().explain()
        assert (told.regions, told.left_out, told.against, told.difference) == ([], [], None, None)
        with pytest.raises(tape.InvalidEntry):
            store.tape("empty").explain(api="smoke")
        with pytest.raises(tape.InvalidEntry):
            store.tape("empty").explain(5)
        for tools in ("look", [object()], 3):
            with pytest.raises(tape.InvalidEntry) as caught:
                store.tape("empty").context(tools=tools)  # type: ignore[arg-type]
            assert caught.value.field.startswith("tools")

    def test_a_context_of_another_release_is_compared(self, chat: tape.Tape, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its manifest lacks what was added since."""
        chat.append(role="user", content="hello", id="m")
        kept = msgspec.json.encode
        monkeypatch.setattr(
            "tape.handles.tape.msgspec.json.encode",
            lambda value, **options: kept(
                {name: item for name, item in msgspec.to_builtins(value).items() if name not in ("altered", "tools")}
                if isinstance(value, tape.Manifest)
                else value,
                **options,
            ),
        )
        chat.context(record=True)
        monkeypatch.undo()
        revised = chat.revise("m", content="goodbye")
        moved = chat.context().explain().difference
        assert moved is not None
        assert moved.seq == revised.seq


class TestAsync:
    def test_the_async_twin_gives_the_same(self, backend: Backend) -> None:
        """``await chat.explain(context)`` where the sync store has ``context.explain()``."""
        with backend.open() as store:
            chat = store.create("chat")
            chat.append(role="user", content="hello", id="m")
            chat.context(record=True)
            chat.revise("m", content="goodbye")
            wanted = chat.context().explain()

        async def work() -> tape.Explanation:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                return await chat.explain(await chat.context())

        assert asyncio.run(work()) == wanted


class TestCommand:
    def test_blame_names_the_entry(self, fresh: Shell) -> None:
        """As text and as the JSON of the library's call."""
        chat = fresh.backend.open().create("c", messages=[{"id": "m", "role": "user", "content": "hello"}])
        first = chat.recorded_context()[1].seq
        revised = chat.revise("m", content="goodbye", actor="ann")
        second = chat.recorded_context()[1].seq
        chat.append(role="user", content="more")
        told = fresh("blame", "c", "--recorded", str(second), "--json").json
        assert told == chat.explain(second).to_dict()
        assert (told["difference"]["seq"], told["against"]) == (revised.seq, first)
        text = fresh("blame", "c", "--against", str(first), "--api", "anthropic").out
        assert f"c:{revised.seq} revise by ann" in text
        assert f"the context starts with all of the request recorded at {second}\n" in fresh("blame", "c").out
        assert "\nno earlier context was recorded to compare with\n" in fresh("blame", "c", "--at", "2").out

    def test_what_cannot_be_explained_is_refused(self, fresh: Shell) -> None:
        """With one line that says why."""
        fresh.backend.open().create("c", messages=[{"role": "user", "content": "hello"}])
        assert fresh("blame", "c", "--recorded", "2", "--budget", "9").code == 2
        assert fresh("blame", "c", "--recorded", "99").code == 3
        assert fresh("blame", "c", "--recorded", "2").code == 2
        assert fresh("blame", "c", "--api", "smoke").code == 2


class TestPieces:
    def test_a_common_beginning_is_found_to_the_byte(self) -> None:
        """Also where one request ends inside the other's piece."""
        random_ = random.Random(1)
        for _ in range(200):
            text = bytes(random_.choices(b"ab", k=30))
            cut = random_.randrange(30)
            other = text[:cut] + (b"a" if text[cut : cut + 1] == b"b" else b"b") + text[cut + 1 :]
            assert common_prefix([Piece(b"same", 1), Piece(text, 1)], [Piece(b"same", 1), Piece(other, 1)]) == 4 + cut
        assert common_prefix([Piece(b"same", 1)], [Piece(b"same", 1), Piece(b"more", 1)]) == 4

    def test_tokens_before_a_byte(self) -> None:
        """Whole pieces, and of the piece that holds the byte its share."""
        pieces = [Piece(b"x" * 10, 4), Piece(b"y" * 10, 6)]
        assert [kept_of(pieces, at) for at in (0, 5, 10, 15, 20)] == [0, 2, 4, 7, 10]
