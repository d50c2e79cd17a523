"""tape: an append-only, event-sourced store for the history of AI agents.

import tape

with tape.open("agent.db") as store:
    chat = store.tape("chat-1")
    chat.append(role="user", content="Plan the trip")
    prompt = chat.context(budget=8_000).to_openai()
"""

TYPE_CHECKING = False
"""As in ``typing``, whose import would take longer than this one."""

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

if TYPE_CHECKING:
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
    from tape.db.read.recall import Recalled
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
else:
    # Where each name lives. A name is loaded when it is first used, with what it needs: a program that only reads the
    # version, or the command that only prints its help, does not pay for a database. A test holds this list equal to
    # the imports above.
    _HOMES = {
        "tape.aio": "AsyncConsumer AsyncFork AsyncSnapshot AsyncStore AsyncTape open_async",
        "tape.core.context.build": "Context",
        "tape.core.context.manifest": "Manifest",
        "tape.core.context.policy": "Policy Standard",
        "tape.core.memory.state": "Block BlockSpec Slot Usage",
        "tape.core.merge.diff": "Diff Revised",
        "tape.core.merge.divergence": "Conflict",
        "tape.core.records": (
            "Ancestor Anchor Check Descendant Entry Health Hit Lineage MergeReceipt Message Page Problem Receipt "
            "Report Retention Source Stats TapeInfo Transfer"
        ),
        "tape.core.summaries.compaction": "Summary SummaryRequest",
        "tape.db.read.recall": "Recalled",
        "tape.errors": (
            "BudgetExceeded CommitUnknown Corrupt HeadMoved ImportFailed InvalidEntry MergeConflict ProvenanceConflict "
            "SchemaTooNew StoreBusy StoreFailed SummaryMoved TapeClosed TapeError TapeExists TapeInUse TapeNotFound "
            "UnknownMessage"
        ),
        "tape.handles.consumer": "Consumer",
        "tape.handles.snapshot": "Snapshot",
        "tape.handles.tape": "Fork Tape",
        "tape.store": "Store open",
        "tape.tools": "Tool Toolset",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
    _ROOMS = ("aio", "core", "db", "errors", "handles", "new_ids", "store", "tools")
    """The modules that are attributes of the package without being imported."""

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _ROOMS:
            return import_module(f"tape.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'tape' has no attribute {name!r}", name=name)
        # From now on the package has it, so that Python no longer asks here.
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})


del TYPE_CHECKING
