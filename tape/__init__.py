"""tape: an append-only, event-sourced store for the history of AI agents.

import tape

with tape.open("agent.db") as store:
    chat = store.tape("chat-1")
    chat.append(role="user", content="Plan the trip")
    prompt = chat.context(budget=8_000).to_openai()
"""

from tape.aio import AsyncConsumer, AsyncFork, AsyncSnapshot, AsyncStore, AsyncTape, open_async
from tape.core.context.build import Context
from tape.core.context.manifest import Manifest
from tape.core.context.policy import Policy, Standard
from tape.core.memory.state import Block, BlockSpec, Slot, Usage
from tape.core.merge.diff import Diff, Revised
from tape.core.merge.divergence import Conflict
from tape.core.records import (
    Ancestor,
    Anchor,
    Check,
    Descendant,
    Entry,
    Health,
    Hit,
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
from tape.core.summaries.compaction import Summary, SummaryRequest
from tape.db.read.contexts import Recalled
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
from tape.handles.consumer import Consumer
from tape.handles.snapshot import Snapshot
from tape.handles.tape import Fork, Tape
from tape.store import Store, open
from tape.tools import Tool, Toolset

__version__ = "0.1.0"

__all__ = [
    "Ancestor",
    "Anchor",
    "AsyncConsumer",
    "AsyncFork",
    "AsyncSnapshot",
    "AsyncStore",
    "AsyncTape",
    "Block",
    "BlockSpec",
    "BudgetExceeded",
    "Check",
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
    "Health",
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
    "Retention",
    "Revised",
    "SchemaTooNew",
    "Slot",
    "Snapshot",
    "Source",
    "Standard",
    "Stats",
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
    "TapeInUse",
    "TapeInfo",
    "TapeNotFound",
    "Tool",
    "Toolset",
    "Transfer",
    "UnknownMessage",
    "Usage",
    "open",
    "open_async",
]
