"""Small transcripts in the shapes that models and frameworks use, as fixtures for rendering."""

from __future__ import annotations

from typing import Any

__all__ = ["TRANSCRIPTS"]

_PIXEL = "data:image/png;base64,iVBORw0KGgo="

TRANSCRIPTS: dict[str, list[dict[str, Any]]] = {
    "openai parallel calls": [
        {"role": "user", "content": "Weather in Kyoto and Osaka?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Kyoto"}'}},
                {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Osaka"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
        {"role": "assistant", "content": "Sun in Kyoto, rain in Osaka."},
    ],
    "openai interrupted call": [
        {"role": "user", "content": "Look it up"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": ""}}],
        },
        {"role": "user", "content": "Never mind, tell me a joke"},
        {"role": "assistant", "content": "A tape walks into a bar."},
    ],
    "openai multimodal": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": _PIXEL}},
            ],
        },
        {"role": "assistant", "content": "A pixel."},
    ],
    "responses with reasoning": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "f1", "name": "add", "arguments": '{"a":2,"b":2}'},
        {"type": "function_call_output", "call_id": "f1", "output": "4"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]},
    ],
    "anthropic tools and thinking": [
        {"role": "user", "content": "List the files"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "ls", "signature": "sig"},
                {"type": "text", "text": "Listing."},
                {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"path": "."}},
                {"type": "tool_use", "id": "toolu_2", "name": "pwd", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "a.py"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "boom", "is_error": True},
                {"type": "text", "text": "and be quick"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "Only a.py."}]},
    ],
    "ai-sdk parts": [
        {"role": "user", "parts": [{"type": "text", "text": "Book it"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "text": "hm"},
                {
                    "type": "tool-book",
                    "toolCallId": "b1",
                    "state": "output-available",
                    "input": {"n": 1},
                    "output": {"ok": True},
                },
                {"type": "tool-pay", "toolCallId": "b2", "state": "input-available", "input": {}},
                {"type": "text", "text": "Booked."},
            ],
        },
    ],
    "orphan result": [
        {"role": "user", "content": "Hello"},
        {"role": "tool", "tool_call_id": "gone", "content": "a result of nothing"},
        {"role": "assistant", "content": "Hello."},
    ],
    "late result": [
        {"role": "user", "content": "Start the job"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "j1", "function": {"name": "job"}}]},
        {"role": "user", "content": "Still there?"},
        {"role": "tool", "tool_call_id": "j1", "content": "done"},
        {"role": "assistant", "content": "Yes, and it is done."},
    ],
}
