"""How a message is passed to a write, and what a call says about arguments that do not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.backends import Backend

import tape

MISSPELT: dict[str, Callable[[Any], Any]] = {
    "append": lambda chat: chat.append(role="user", content="x", expected_heed=1),
    "extend": lambda chat: chat.extend([{"content": "x"}], expected_heed=1),
    "upsert": lambda chat: chat.upsert({"content": "x"}, expected_heed=1),
    "revise": lambda chat: chat.revise("m", content="x", expected_heed=1),
    "merge": lambda chat: chat.merge("child", strategy="squash", expected_heed=1),
    "replace_history": lambda chat: chat.replace_history([], expected_heed=1),
}
OTHERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "handoff": ("summary", lambda chat: chat.handoff("booking")),
    "event": ("name", lambda chat: chat.event()),
    "retract": ("expected_heed", lambda chat: chat.retract("m", expected_heed=1)),
    "put": ("value", lambda chat: chat.put("slot")),
    "set_summary": ("first", lambda chat: chat.set_summary("text", last="m")),
    "compact": ("summarize", lambda chat: chat.compact()),
    "resolve": ("expected_heed", lambda chat: chat.resolve("r", expected_heed=1)),
    "context": ("buget", lambda chat: chat.context(buget=1)),
}
FIELDS: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "name": "planner",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
}


class TestArguments:
    """A keyword that no write has is never taken for data."""

    @pytest.mark.parametrize("method", MISSPELT)
    def test_a_misspelt_option_names_the_method_and_the_dict_form(self, chat: tape.Tape, method: str) -> None:
        """A write that takes messages refuses an unknown keyword, says where other fields go, and writes nothing."""
        with pytest.raises(TypeError, match=rf"^Tape\.{method}\(\) got an unexpected.*'expected_heed'.*in a dict$"):
            MISSPELT[method](chat)
        assert chat.info().head == 0

    @pytest.mark.parametrize("method", OTHERS)
    def test_an_argument_that_does_not_fit_names_the_public_method(self, chat: tape.Tape, method: str) -> None:
        """A missing or unknown argument names the method as users know it, not the function behind it."""
        argument, call = OTHERS[method]
        with pytest.raises(TypeError, match=rf"^(Tape|Snapshot)\.{method}\(\) .*'{argument}'"):
            call(chat)

    @pytest.mark.parametrize("method", [*MISSPELT, *OTHERS])
    def test_the_async_twin_names_itself(self, backend: Backend, method: str) -> None:
        """The error of an awaited call names the method of the async tape."""
        call = MISSPELT.get(method) or OTHERS[method][1]

        async def run() -> None:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                with pytest.raises(TypeError, match=rf"^Async(Tape|Snapshot)\.{method}\(\) "):
                    await call(chat)
                assert (await chat.info()).head == 0

        asyncio.run(run())

    def test_an_error_of_the_callers_function_stays_as_it_is(self, chat: tape.Tape) -> None:
        """A TypeError from a function or an object of the caller's is not taken for a wrong argument."""

        class Odd:
            def to_dict(self) -> dict[str, Any]:
                raise TypeError("from to_dict")

        with pytest.raises(tape.InvalidEntry, match="from to_dict"):
            chat.append(Odd())
        for number in range(12):
            chat.append(role="user", content=f"{number}" * 50)

        def summarize(_: Any) -> str:
            raise TypeError("from the summarizer")

        with pytest.raises(tape.InvalidEntry, match="from the summarizer"):
            chat.compact(summarize, budget=1)


class TestFields:
    """The usual fields of a message as keywords."""

    def test_a_tool_result_is_appended_by_keywords(self, chat: tape.Tape) -> None:
        """A call and its result are found as those of a dict are."""
        chat.append(**FIELDS)
        receipt = chat.append(role="tool", tool_call_id="c1", content="24 C")
        assert chat.messages()[0].to_dict() == FIELDS
        assert chat.messages()[1].to_dict() == {"role": "tool", "content": "24 C", "tool_call_id": "c1"}
        chat.retract(chat.messages()[0].id)
        assert chat.find(receipt.message_id or "") is None, "the result goes with its call"

    def test_keywords_and_a_dict_are_the_same_message(self, chat: tape.Tape) -> None:
        """Under one key the dict and the keywords are duplicates of each other."""
        first = chat.append({**FIELDS}, key="k")
        again = chat.append(key="k", **FIELDS)
        assert (again.duplicate, again.seq) == (True, first.seq)

    def test_upsert_takes_keywords(self, chat: tape.Tape) -> None:
        """It appends, does nothing, and revises, as with a dict."""
        first = chat.upsert(id="m", **FIELDS)
        assert chat.upsert(id="m", **FIELDS).duplicate
        revised = chat.upsert(id="m", **{**FIELDS, "name": "other"})
        assert (first.message_id, revised.duplicate) == ("m", False)
        assert chat.message("m").to_dict() == {**FIELDS, "name": "other"}

    def test_revise_changes_the_fields_that_are_given(self, chat: tape.Tape) -> None:
        """Other fields stay; a retry under its key is a duplicate, and other fields under it are a conflict."""
        chat.append(id="m", **FIELDS)
        receipt = chat.revise("m", name="other", content="Looking.", key="k")
        assert chat.message("m").to_dict() == {**FIELDS, "name": "other", "content": "Looking."}
        again = chat.revise("m", name="other", content="Looking.", key="k")
        assert (again.duplicate, again.seq) == (True, receipt.seq)
        with pytest.raises(tape.ProvenanceConflict):
            chat.revise("m", content="Looking.", key="k")
        with pytest.raises(tape.InvalidEntry, match="role"):
            chat.revise("m", role="user")
        assert chat.verify().ok

    def test_a_squash_takes_keywords_or_a_message(self, chat: tape.Tape) -> None:
        """The message is passed as keywords or as a dict; only a dict takes other fields."""
        ways = {"role": "tool", "tool_call_id": "c1"}, {"message": {"role": "tool", "x": 1}}
        for number, fields in enumerate(ways):
            child = chat.fork(f"child-{number}")
            child.append(role="assistant", content="long work")
            given: Any = fields
            chat.merge(child, strategy="squash", summary="42", **given)
        held = [message.to_dict() for message in chat.messages()]
        assert held[0] == {"role": "tool", "content": "42", "tool_call_id": "c1"}
        assert held[1] == {"role": "tool", "content": "42", "x": 1}

    def test_the_async_twins_take_the_same(self, backend: Backend) -> None:
        """Append, revise and a squash by keywords, awaited."""

        async def run() -> list[tape.Message]:
            async with tape.open_async(backend.url, **backend.options) as store:
                chat = store.tape("chat")
                await chat.append(id="m", **FIELDS)
                child = await chat.fork("child")
                await child.append(role="user", content="go")
                await chat.merge(child, strategy="squash", role="tool", tool_call_id="c1", content="24 C")
                await chat.revise("m", name="other")
                return await chat.messages()

        assert [message.to_dict() for message in asyncio.run(run())] == [
            {**FIELDS, "name": "other"},
            {"role": "tool", "content": "24 C", "tool_call_id": "c1"},
        ]

    BOTH: dict[str, Callable[[tape.Tape], Any]] = {
        "append": lambda chat: chat.append({"role": "user"}, name="x"),
        "upsert": lambda chat: chat.upsert({"role": "user"}, content="x"),
        "revise": lambda chat: chat.revise("m", {"role": "user"}, content="x"),
        "merge": lambda chat: chat.merge("child", strategy="squash", message={"role": "user"}, content="x"),
        "merge twice": lambda chat: chat.merge("child", strategy="squash", summary="s", content="x"),
        "nothing": lambda chat: chat.append(),
        "revise nothing": lambda chat: chat.revise("m"),
    }

    @pytest.mark.parametrize("call", BOTH)
    def test_a_message_is_passed_in_one_way(self, chat: tape.Tape, call: str) -> None:
        """A call with both a message and keywords, or with neither, is InvalidEntry and writes nothing."""
        with pytest.raises(tape.InvalidEntry):
            self.BOTH[call](chat)
        assert chat.info().head == 0
