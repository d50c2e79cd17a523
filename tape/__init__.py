"""tape: an append-only, event-sourced store for the history of AI agents.

import tape

with tape.open("agent.db") as store:
    chat = store.tape("chat-1")
    chat.append(role="user", content="Plan the trip")
    prompt = chat.context(budget=8_000).to_openai()
"""

from tape.aio import AsyncConsumer, AsyncFork, AsyncSnapshot, AsyncStore, AsyncTape, open_async
from tape.consumer import Consumer
from tape.core.context import Context
from tape.core.diff import Diff, Revised
from tape.core.merge import Conflict
from tape.core.records import (
    Ancestor,
    Anchor,
    Descendant,
    Entry,
    Hit,
    Lineage,
    MergeReceipt,
    Message,
    Page,
    Problem,
    Receipt,
    Report,
    Source,
    TapeInfo,
)
from tape.errors import (
    BudgetExceeded,
    CommitUnknown,
    Corrupt,
    HeadMoved,
    ImportFailed,
    InvalidEntry,
    MergeConflict,
    ProvenanceConflict,
    SchemaTooNew,
    StoreBusy,
    StoreFailed,
    SummaryMoved,
    TapeClosed,
    TapeError,
    TapeExists,
    TapeNotFound,
    UnknownMessage,
)
from tape.handle import Fork, Snapshot, Tape
from tape.store import Store, open

__version__ = "0.1.0"

__all__ = [
    "Ancestor",
    "Anchor",
    "AsyncConsumer",
    "AsyncFork",
    "AsyncSnapshot",
    "AsyncStore",
    "AsyncTape",
    "BudgetExceeded",
    "CommitUnknown",
    "Conflict",
    "Consumer",
    "Context",
    "Corrupt",
    "Descendant",
    "Diff",
    "Entry",
    "Fork",
    "HeadMoved",
    "Hit",
    "ImportFailed",
    "InvalidEntry",
    "Lineage",
    "MergeConflict",
    "MergeReceipt",
    "Message",
    "Page",
    "Problem",
    "ProvenanceConflict",
    "Receipt",
    "Report",
    "Revised",
    "SchemaTooNew",
    "Snapshot",
    "Source",
    "Store",
    "StoreBusy",
    "StoreFailed",
    "SummaryMoved",
    "Tape",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeInfo",
    "TapeNotFound",
    "UnknownMessage",
    "open",
    "open_async",
]
