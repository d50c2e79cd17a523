"""Why did the agent refund the wrong order? ``python examples/replay_failed_run.py [PATH]``.

First a run that goes wrong is recorded. Then someone who was not there finds the tape, steps back to what the model
saw, finds the cause, tries the correction on a fork from that very point, and keeps the evidence.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tape


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return an assistant message that calls one tool."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "type": "function", "function": function}]}


def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Stand in for a model: refund the last order that it was shown."""
    orders = [
        line for message in messages for line in str(message["content"]).splitlines() if line.startswith("order ")
    ]
    return call("c2", "refund", json.dumps({"order": int(orders[-1].split()[1])}))


def the_run(store: tape.Store) -> None:
    """Record the run that went wrong."""
    chat = store.create("ticket-881", name="Refund for Ann", agent="support")
    chat.append(role="user", content="Please refund my kettle.", actor="ann")
    chat.append(call("c1", "list_orders", '{"user": "ann"}'), actor="model")
    listing = {"role": "tool", "tool_call_id": "c1", "content": "order 17 kettle\norder 18 laptop (other account)"}
    chat.append(listing, id="listing", actor="tools")
    context, receipt = chat.recorded_context(budget=2_000)
    chat.append(model(context.to_openai()), actor="model", meta={"saw": receipt.seq})
    chat.append({"role": "tool", "tool_call_id": "c2", "content": "order 18 refunded"}, actor="tools")
    chat.append(role="assistant", content="Your kettle is refunded.", actor="model")
    # Afterwards somebody tidied up. The tape still knows what was there before.
    chat.revise("listing", content="order 17 kettle", actor="operator")
    chat.complete()


def investigate(store: tape.Store, evidence: Path) -> None:
    """Find out what happened."""
    (hit,) = [hit for hit in store.search("refunded order") if hit.role == "tool"]
    chat = store.get(hit.tape)
    print(f"1. found seq {hit.seq} of {hit.tape}: {hit.snippet}")

    print("2. what was recorded:")
    for entry in chat.entries():
        print(f"   seq {entry.seq:>2}  {entry.kind:<8} {entry.actor or ''}")

    wrong = next(entry for entry in chat.entries(kinds=["append"]) if (entry.meta or {}).get("saw"))
    saw = chat.recall((wrong.meta or {})["saw"])
    print(f"3. what the model saw before seq {wrong.seq}: {saw.messages[-1]['content']!r}")
    print(f"   what stands there today: {chat.message('listing').content!r}")
    print("   so the listing held another account's order, and was corrected only afterwards:")
    print("   " + str(chat.diff(wrong.seq, chat.info().head)).replace("\n", "\n   "))

    fixed = chat.fork("ticket-881/fixed", at=wrong.seq - 1, name="without other accounts")
    fixed.revise("listing", content="order 17 kettle", actor="operator")
    fixed.append(model(fixed.context(budget=2_000).to_openai()), actor="model")
    (again,) = fixed.messages()[-1].data["tool_calls"]
    print(f"4. the same step with a clean listing: {again['function']['name']} {again['function']['arguments']}")

    moved = store.export("ticket-881", evidence, family=True)
    print(f"5. evidence: {moved.entries} entries of {len(moved.tapes)} tapes, verified: {store.verify().ok}")
    with tape.open(":memory:") as elsewhere:
        print(f"   and read elsewhere: {elsewhere.import_(evidence).entries} entries")


def main(url: str = ":memory:") -> None:
    """Record the run, then look into it."""
    evidence = Path(tempfile.mkdtemp(prefix="tape-replay-")) / "ticket-881.jsonl"
    with tape.open(url) as store:
        the_run(store)
        investigate(store, evidence)


if __name__ == "__main__":
    main(*sys.argv[1:2])
