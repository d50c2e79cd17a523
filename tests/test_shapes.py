"""Messages of shapes that no API documents are kept as they are, counted, found and rendered to what the APIs take."""

from __future__ import annotations

from typing import Any

import pytest
from support.validators import check_anthropic, check_chat, check_responses

import tape

ODD: dict[str, dict[str, Any]] = {
    "a type that is no name": {"role": "user", "content": [{"type": ["text"], "text": "hello"}]},
    "a type that is an object": {"role": "user", "content": [{"type": {"a": 1}}, "hello"]},
    "a role that no API has": {"role": "function", "name": "weather", "content": "24 C"},
    "parts that are no objects": {"role": "assistant", "content": [None, 3, "hello", ["x"]]},
    "a call without a name": {"role": "assistant", "tool_calls": [{"id": "c1"}, 5, {"id": 7}]},
    "a call with an empty id": {"role": "assistant", "content": None, "tool_calls": [{"id": "", "function": {}}]},
    "an item that nobody knows": {"type": "dream", "about": ["sheep"]},
    "content that is an object": {"role": "user", "content": {"text": "hello"}},
}


class TestOddMessages:
    @pytest.mark.parametrize("name", ODD)
    def test_it_is_kept_and_rendered(self, name: str) -> None:
        """It comes back equal, and a context with it is one that every API accepts."""
        with tape.open(":memory:") as store:
            chat = store.tape("odd")
            chat.append(role="user", content="Before")
            kept = chat.append(ODD[name])
            chat.append(role="user", content="After")
            assert kept.message_id is not None
            assert chat.message(kept.message_id).to_dict() == ODD[name]
            context = chat.context(budget=1_000)
            check_chat(context.to_openai())
            check_responses(context.to_openai(api="responses"))
            check_anthropic(context.to_anthropic())
            assert [hit.message_id for hit in chat.search("hello")] in ([], [kept.message_id])
            assert chat.verify().ok
