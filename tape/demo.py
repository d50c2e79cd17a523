"""A short story on a real store: ``python -m tape.demo [PATH]``.

An agent plans a trip: messages, a retry, a tool call, a correction, a handoff, a subagent on a fork, and then the
questions one asks afterwards. Every step checks what it claims; the exit status is not 0 if one does not hold.
``PATH`` is a file (the default is a new temporary one) or a database URL.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tape

__all__ = ["main", "story"]


def _say(text: str) -> None:
    print(f"\n{text}")


def _show(messages: Sequence[tape.Message]) -> None:
    for message in messages:
        calls = [f"calls {call['function']['name']}" for call in message.data.get("tool_calls", [])]
        print(f"   seq {message.seq:>2}  {message.role:<9}  {message.content or ', '.join(calls)}")


def _expect(holds: bool, claim: str) -> None:
    """Print a claim that holds; end the program with status 1 at one that does not."""
    if not holds:
        sys.exit(f"FAILED: {claim}")
    print(f"   {claim}")


def story(store: tape.Store) -> str:
    """Tell the story on a new tape of ``store``, and return the tape's id."""
    chat = store.create(name="Lisbon")
    answered = _talk(chat)
    _delegate(chat)
    _look_back(store, chat, answered)
    return chat.id


def _talk(chat: tape.Tape) -> int:
    """Ask, answer, correct and hand off; return the seq of the first answer."""
    question = "Plan two days in Lisbon."
    _say("1. A user asks. Every write returns a receipt: a seq, a key and a hash.")
    first = chat.append(role="user", content=question, key="web-1", actor="user")
    print(f"   seq {first.seq}, key {first.key}, hash {first.hash[:16]}...")

    _say("2. The reply is lost, so the client retries with the same key. Nothing is written twice.")
    again = chat.append(role="user", content=question, key="web-1", actor="user")
    _expect(again.duplicate and again.hash == first.hash, "the same receipt comes back, marked as a duplicate")

    _say("3. The model calls a tool. Call, result and answer are written together or not at all.")
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lisbon"}'}}
    *_, answer = chat.extend(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Friday 24 C, Saturday rain"},
            {"role": "assistant", "id": "plan", "content": "Go on Saturday."},
        ]
    )
    _show(chat.messages())

    _say("4. The answer is corrected. The old one stays on the tape.")
    chat.revise("plan", content="Go on Friday, before the rain.")
    _show(chat.messages()[-1:])

    _say("5. A handoff closes the phase. From here on, the context starts with its summary.")
    handoff = chat.handoff("booking", summary="Two days from Friday.", next_steps=["find a hotel"], actor="planner")
    print(f"   seq {handoff.seq}, next steps: find a hotel")
    return answer.seq


def _delegate(chat: tape.Tape) -> None:
    """Let a subagent work on a fork, and merge what it did."""
    _say("6. A subagent works on a fork. It inherits the history; the parent does not see its messages.")
    before = chat.messages()
    helper = chat.fork(name="hotels")
    helper.append(role="user", content="Find a hotel near the river.", actor="planner")
    helper.append(role="assistant", content="Three have rooms; the Tejo is the quietest.", actor="hotels")
    inherited = len(helper.messages()) - 2
    _expect(inherited == len(before), f"the fork shows {inherited} inherited messages and 2 new ones")
    _expect(chat.messages() == before, f"the parent still shows {len(before)} messages")

    _say("7. A merge appends the subagent's messages to the parent. A second merge adds nothing.")
    chat.merge(helper)
    chat.merge(helper)
    _show(chat.messages()[len(before) :])
    _expect(len(chat.messages()) == len(before) + 2, f"the parent shows {len(before) + 2} messages")


def _look_back(store: tape.Store, chat: tape.Tape, answered: int) -> None:
    """Ask what the model is shown next, what was known before, and whether all is intact."""
    _say("8. The next model call gets the handoff and the messages after it.")
    context = chat.context(budget=8_000)
    for message in context.to_openai():
        print(f"   {message['role']:<9}  {message['content'].splitlines()[0]}")
    _expect(len(context.messages) == 2, f"about {context.tokens} tokens of a budget of 8000")

    _say(f"9. Time travel: the conversation as of seq {answered}, before the correction.")
    past = chat.at(answered).messages()
    _show(past[-1:])
    _expect(past[-1].content == "Go on Saturday.", "the earlier answer can still be read")

    _say("10. Verify recomputes every hash and every row of the view from the entries.")
    report = store.verify()
    _expect(report.ok, f"{report.entries} entries on {report.tapes} tapes, no problems found")


def main(arguments: Sequence[str]) -> None:
    """Open the store that ``arguments`` name, or a temporary one, and tell the story."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: python -m tape.demo [PATH]")
    where = arguments[0] if arguments else str(Path(tempfile.mkdtemp(prefix="tape-demo-")) / "demo.db")
    try:
        with tape.open(where) as store:
            print(f"tape {tape.__version__} demo, kept in {where if '://' not in where else 'the given database'}")
            story(store)
        sys.stdout.flush()
    except tape.TapeError as error:
        sys.exit(f"FAILED: {error}")
    except BrokenPipeError:
        # The reader (``| head``) has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main(sys.argv[1:])
