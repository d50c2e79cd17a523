"""ATIF: trajectories in the Agent Trajectory Interchange Format (Harbor's RFC 0001), versions 1.0 to 1.6. Pure.

A step of the agent becomes what the model thought, its message with the tool calls, and the results that were observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import Conversation, each_value, reasoning, tool_call, without
from tape.transcripts.formats.lines import Reading, count, nonblank, stamp
from tape.transcripts.steps import Start, Step

__all__ = ["parse"]

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read a file with one trajectory, or several."""

    def steps(line: int, where: str, value: dict[str, Any]) -> Iterator[Step]:
        if not isinstance(value.get("steps"), list) or not isinstance(value.get("agent"), dict):
            raise ImportFailed(line, f"{where} is not a trajectory: it needs an agent and steps")
        agent = value["agent"]
        meta = without(value, "steps", "session_id", "final_metrics")
        yield Start(line=line, id=nonblank(value.get("session_id")), agent=nonblank(agent.get("name")), meta=meta)
        conversation = Conversation("atif")
        for index, step in enumerate(value["steps"]):
            if not isinstance(step, dict) or str(step.get("source")) not in _ROLES:
                reading.problem(line, f"steps[{index}] is not a trajectory step")
                yield conversation.event(line, "step", step)
                continue
            yield from _step(line, conversation, step, nonblank(agent.get("model_name")))
        if value.get("final_metrics") is not None:
            yield conversation.event(line, "final_metrics", value["final_metrics"])

    return each_value(lines, reading, steps)


def _step(line: int, conversation: Conversation, step: dict[str, Any], model: str | None) -> Iterator[Step]:
    at, calls = stamp(step.get("timestamp")), step.get("tool_calls")
    thought = nonblank(step.get("reasoning_content"))
    if thought is not None:
        yield conversation.message(line, reasoning(thought), original=[step.get("step_id"), thought], at=at)
    message: dict[str, Any] = {"role": _ROLES[step["source"]], "content": step.get("message")}
    made = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if made:
        message["tool_calls"] = [
            tool_call(str(call.get("tool_call_id")), str(call.get("function_name")), call.get("arguments") or {})
            for call in made
        ]
    rest = without(step, "message", "observation", "source", "reasoning_content")
    yield conversation.message(line, message, rest, original=without(step, "observation"), at=at)
    metrics = step.get("metrics")
    if isinstance(metrics, dict):
        usage = {
            "input_tokens": count(metrics.get("prompt_tokens")),
            "output_tokens": count(metrics.get("completion_tokens")),
            "input_tokens_details": {"cached_tokens": metrics.get("cached_tokens")},
        }
        yield from conversation.usage(line, usage, nonblank(step.get("model_name")) or model, at)
    observed = step.get("observation")
    results = observed.get("results") if isinstance(observed, dict) else None
    for result in results if isinstance(results, list) else ():
        if not isinstance(result, dict):
            yield conversation.event(line, "observation", result, at)
            continue
        content, call = result.get("content"), nonblank(result.get("source_call_id"))
        if not isinstance(content, str | list):
            content = "" if content is None else msgspec.json.encode(content).decode()
        seen: dict[str, Any] = {"role": "user", "content": content}
        if call is not None:
            seen = {"role": "tool", "tool_call_id": call, "content": content}
        rest = {**without(result, "content", "source_call_id"), "observation": True}
        yield conversation.message(line, seen, rest, original=[step.get("step_id"), result], at=at)
