"""What entries say: the type of ``entry.payload`` for each kind of entry.

A program that reads entries asks which kind it has, and its type checker follows::

    match entry.payload:
        case tape.payloads.Append(message=message):
            print(message["content"])
        case tape.payloads.Retract(ids=ids):
            print("retracted", ids)

Entries are read, never made from these: the calls of ``Tape`` record them.
"""

from __future__ import annotations

from tape.core.entries.payloads import (
    Anchor,
    Append,
    Block,
    Clear,
    Compact,
    Discard,
    Erase,
    Event,
    Fork,
    Handoff,
    Label,
    Merge,
    Open,
    Payload,
    Restore,
    Retract,
    Revise,
    State,
    Status,
    Switch,
    Usage,
)

__all__ = [
    "Anchor",
    "Append",
    "Block",
    "Clear",
    "Compact",
    "Discard",
    "Erase",
    "Event",
    "Fork",
    "Handoff",
    "Label",
    "Merge",
    "Open",
    "Payload",
    "Restore",
    "Retract",
    "Revise",
    "State",
    "Status",
    "Switch",
    "Usage",
]
