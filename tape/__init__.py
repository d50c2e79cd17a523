"""tape: an append-only, event-sourced store for the history of AI agents.

import tape

with tape.open("agent.db") as store:
    chat = store.tape("chat-1")
    chat.append(role="user", content="Plan the trip")
    prompt = chat.context(budget=8_000).to_openai()
"""

from tape.aio import AsyncFork, AsyncSnapshot, AsyncStore, AsyncTape, open_async
from tape.core.compaction import Summary, SummaryRequest
from tape.core.context import Context, Manifest, Policy, Standard
from tape.core.diff import Diff, Revised
from tape.core.memory import Block, BlockSpec, Slot, Usage
from tape.core.merge import Conflict
from tape.core.records import (
    Ancestor,
    Anchor,
    Descendant,
    Entry,
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
from tape.db.contexts import Recalled
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
from tape.tools import Tool, Toolset

__version__ = "0.1.0"

__all__ = [
    "Ancestor",
    "Anchor",
    "AsyncFork",
    "AsyncSnapshot",
    "AsyncStore",
    "AsyncTape",
    "Block",
    "BlockSpec",
    "BudgetExceeded",
    "CommitUnknown",
    "Conflict",
    "Context",
    "Corrupt",
    "Descendant",
    "Diff",
    "Entry",
    "Fork",
    "HeadMoved",
    "ImportFailed",
    "InvalidEntry",
    "Lineage",
    "Manifest",
    "MergeConflict",
    "MergeReceipt",
    "Message",
    "Page",
    "Policy",
    "Problem",
    "ProvenanceConflict",
    "Recalled",
    "Receipt",
    "Report",
    "Revised",
    "SchemaTooNew",
    "Slot",
    "Snapshot",
    "Source",
    "Standard",
    "Store",
    "StoreBusy",
    "StoreFailed",
    "Summary",
    "SummaryMoved",
    "SummaryRequest",
    "Tape",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeInfo",
    "TapeNotFound",
    "Tool",
    "Toolset",
    "UnknownMessage",
    "Usage",
    "open",
    "open_async",
]
