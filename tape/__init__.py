"""tape: an append-only, event-sourced store for the history of AI agents.

import tape

with tape.open("agent.db") as store:
    chat = store.tape("chat-1")
    chat.append(role="user", content="Plan the trip")
    prompt = chat.context(budget=8_000).to_openai()
"""

from tape.aio import AsyncFork, AsyncSnapshot, AsyncStore, AsyncTape, open_async
from tape.core.context import Context
from tape.core.diff import Diff, Revised
from tape.core.merge import Conflict
from tape.core.records import (
    Ancestor,
    Anchor,
    Check,
    Descendant,
    Entry,
    Health,
    Lineage,
    MergeReceipt,
    Message,
    Page,
    Problem,
    Receipt,
    Report,
    Retention,
    Source,
    Stats,
    TapeInfo,
    Transfer,
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
    TapeInUse,
    TapeNotFound,
    UnknownMessage,
)
from tape.handle import Fork, Snapshot, Tape
from tape.store import Store, open

__version__ = "0.1.0"

__all__ = [
    "Ancestor",
    "Anchor",
    "AsyncFork",
    "AsyncSnapshot",
    "AsyncStore",
    "AsyncTape",
    "BudgetExceeded",
    "Check",
    "CommitUnknown",
    "Conflict",
    "Context",
    "Corrupt",
    "Descendant",
    "Diff",
    "Entry",
    "Fork",
    "HeadMoved",
    "Health",
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
    "Retention",
    "Revised",
    "SchemaTooNew",
    "Snapshot",
    "Source",
    "Stats",
    "Store",
    "StoreBusy",
    "StoreFailed",
    "SummaryMoved",
    "Tape",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeInUse",
    "TapeInfo",
    "TapeNotFound",
    "Transfer",
    "UnknownMessage",
    "open",
    "open_async",
]
