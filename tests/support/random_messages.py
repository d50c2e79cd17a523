"""Messages at random for the state machines: said, calling tools, and answering, in the shapes of several APIs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["answered", "anthropic_call", "anthropic_result", "called", "calls", "contents"]
__all__ += ["messages", "openai_call", "said", "some_calls", "texts"]

texts = st.sampled_from(["", "one", "two", "three"])
calls = st.sampled_from(["c1", "c2", "c3"])
some_calls = st.lists(calls, min_size=1, max_size=3, unique=True)


def openai_call(call: str) -> dict[str, Any]:
    return {"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def anthropic_call(call: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": "look", "input": {}}


def anthropic_result(call: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": "found"}


said = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), texts)
called = st.one_of(
    st.builds(
        lambda made: {"role": "assistant", "content": None, "tool_calls": [openai_call(c) for c in made]}, some_calls
    ),
    st.builds(lambda made: {"role": "assistant", "content": [anthropic_call(c) for c in made]}, some_calls),
    st.builds(lambda call: {"type": "function_call", "call_id": call, "name": "look", "arguments": "{}"}, calls),
)
answered = st.one_of(
    st.builds(lambda call, text: {"role": "tool", "tool_call_id": call, "content": text}, calls, texts),
    st.builds(lambda made: {"role": "user", "content": [anthropic_result(c) for c in made]}, some_calls),
    st.builds(lambda call, text: {"type": "function_call_output", "call_id": call, "output": text}, calls, texts),
    # A result that makes a call itself: what hides the one hides both, and the results of the second.
    st.builds(lambda one, two: {"role": "tool", "content": [anthropic_result(one), anthropic_call(two)]}, calls, calls),
)
messages = st.one_of(said, said, called, answered)
contents = st.one_of(texts, st.builds(lambda made: [anthropic_call(c) for c in made], some_calls))
