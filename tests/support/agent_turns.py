"""Sessions of agents that work on one request for a long time, in the shapes that the APIs give them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

__all__ = ["SHAPES", "agent_session"]

_WORDS = "the file has a line with an error: expected int, got str at 0x7f3a (src/main.py:42)\n"
_TEXT = _WORDS * 700
"""More than the longest output."""

Step = Callable[[list[str], list[str], random.Random], list[dict[str, Any]]]


def agent_session(seed: int, shape: str | None = None, calls: int = 0) -> list[dict[str, Any]]:
    """Return one long turn: a request and 30 to 300 calls, some in parallel, with outputs of 1 to 50 KB."""
    chance = random.Random(seed)
    step = SHAPES[shape or list(SHAPES)[seed % len(SHAPES)]]
    left = calls or int(30 * 10 ** chance.random())
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find out why build {seed} fails and mend it."}]
    reused, number = chance.random() < 0.2, 0
    while left > 0:
        some = min(left, chance.choice([1, 1, 1, 2, 5]))
        # Some models number their calls anew in every step.
        ids = [f"call_{index if reused else number + index}" for index in range(some)]
        messages += step(ids, [_output(chance) for _ in ids], chance)
        if chance.random() < 0.1:
            messages.append({"role": "assistant", "content": "Let me look further."})
        left, number = left - some, number + some
    return messages


def _output(chance: random.Random) -> str:
    length = int(1_000 * 50 ** chance.random())
    begin = chance.randrange(len(_TEXT) - length)
    return _TEXT[begin : begin + length]


def _arguments(chance: random.Random) -> str:
    return f'{{"path": "src/{chance.randrange(10**6)}.py"}}'


def _chat(calls: list[str], outputs: list[str], chance: random.Random) -> list[dict[str, Any]]:
    made = [
        {"id": call, "type": "function", "function": {"name": "read", "arguments": _arguments(chance)}}
        for call in calls
    ]
    results = [
        {"role": "tool", "tool_call_id": call, "content": text} for call, text in zip(calls, outputs, strict=True)
    ]
    chance.shuffle(results)
    return [{"role": "assistant", "content": chance.choice([None, "Looking."]), "tool_calls": made}, *results]


def _anthropic(calls: list[str], outputs: list[str], chance: random.Random) -> list[dict[str, Any]]:
    thinking = {"type": "thinking", "thinking": "I should read it. " * 5, "signature": "c2ln"}
    made = [{"type": "tool_use", "id": call, "name": "read", "input": {"path": "a.py"}} for call in calls]
    results = [
        {"type": "tool_result", "tool_use_id": call, "content": chance.choice([text, [{"type": "text", "text": text}]])}
        for call, text in zip(calls, outputs, strict=True)
    ]
    if chance.random() < 0.1:
        source = {"type": "base64", "media_type": "image/png", "data": "A" * 4_000}
        results[-1]["content"] = [{"type": "image", "source": source}]
    if chance.random() < 0.3:
        # As transcripts have it: every block in a message of its own.
        return [
            *({"role": "assistant", "content": [block]} for block in [thinking, *made]),
            *({"role": "user", "content": [result]} for result in results),
        ]
    return [{"role": "assistant", "content": [thinking, *made]}, {"role": "user", "content": results}]


def _responses(calls: list[str], outputs: list[str], chance: random.Random) -> list[dict[str, Any]]:
    reasoning = {"type": "reasoning", "id": f"rs_{chance.randrange(10**9)}", "summary": [], "encrypted_content": "e"}
    made = [
        {"type": "function_call", "call_id": call, "name": "read", "arguments": _arguments(chance)} for call in calls
    ]
    given = [
        {"type": "function_call_output", "call_id": call, "output": text}
        for call, text in zip(calls, outputs, strict=True)
    ]
    return [reasoning, *made, *given]


def _parts(calls: list[str], outputs: list[str], chance: random.Random) -> list[dict[str, Any]]:
    """Results inside the message that makes the calls, as the AI SDK has them."""
    done = [
        {
            "type": "tool-read",
            "toolCallId": call,
            "state": "output-available",
            "input": {"path": _arguments(chance)},
            "output": {"text": text, "lines": text.count("\n")},
        }
        for call, text in zip(calls, outputs, strict=True)
    ]
    return [{"role": "assistant", "parts": [{"type": "step-start"}, {"type": "text", "text": "Reading."}, *done]}]


SHAPES: dict[str, Step] = {"chat": _chat, "anthropic": _anthropic, "responses": _responses, "parts": _parts}
