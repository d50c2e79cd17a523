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
    "Across",
    "AlreadySettled",
    "Ancestor",
    "Anchor",
    "AsyncConsumer",
    "AsyncFork",
    "AsyncLease",
    "AsyncPool",
    "AsyncPoolFeed",
    "AsyncRun",
    "AsyncSnapshot",
    "AsyncStore",
    "AsyncTape",
    "Bisection",
    "Block",
    "BlockSpec",
    "BudgetExceeded",
    "CallState",
    "Change",
    "Check",
    "CheckReport",
    "Checked",
    "CommitUnknown",
    "Conflict",
    "Consumer",
    "Context",
    "Corrupt",
    "DatabaseDown",
    "Descendant",
    "Diff",
    "Difference",
    "Diverged",
    "Divergence",
    "Effect",
    "EffectRefused",
    "EffectUnknown",
    "Entry",
    "Explanation",
    "Fork",
    "HeadMoved",
    "Finding",
    "Health",
    "Hit",
    "ImportFailed",
    "InvalidEntry",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Lineage",
    "Loaded",
    "Manifest",
    "MergeConflict",
    "MergeReceipt",
    "Message",
    "Move",
    "NotAStore",
    "NotInTransaction",
    "OwnerMoved",
    "Page",
    "Policy",
    "Pool",
    "PoolFeed",
    "Price",
    "Prices",
    "Problem",
    "ProcessForked",
    "ProvenanceConflict",
    "Provider",
    "ReadOnly",
    "Recalled",
    "Receipt",
    "RecordedCall",
    "RecordedError",
    "Recording",
    "Redact",
    "Region",
    "ReplicaBehind",
    "Report",
    "Request",
    "RequestClosed",
    "Retention",
    "Revised",
    "Run",
    "RunInfo",
    "RunReport",
    "SchemaTooNew",
    "SchemaTooOld",
    "Slot",
    "Snapshot",
    "Source",
    "Standard",
    "StateValue",
    "Stats",
    "Store",
    "StoreBusy",
    "StoreFailed",
    "Summary",
    "SummaryMoved",
    "SummaryRequest",
    "TablesTaken",
    "Tape",
    "TapeClosed",
    "TapeError",
    "TapeExists",
    "TapeHidden",
    "TapeInUse",
    "TapeInfo",
    "TapeNotFound",
    "Tool",
    "ToolResult",
    "Toolset",
    "Transfer",
    "UnknownEntry",
    "UnknownMessage",
    "Usage",
    "UsageRow",
    "ViewMoved",
    "as_id",
    "bisect",
    "check",
    "from_strict",
    "lenient",
    "load_prices",
    "new_id",
    "open",
    "open_async",
    "open_pool",
    "open_pool_async",
    "record",
    "recover",
    "replay",
    "resolve",
    "to_strict",
]

if TYPE_CHECKING:
    from tape import payloads as payloads
    from tape.aio import AsyncConsumer, AsyncFork, AsyncLease, AsyncSnapshot, AsyncStore, AsyncTape, open_async
    from tape.aio.pool import AsyncPool, AsyncPoolFeed, open_pool_async
    from tape.aio.runs import AsyncRun
    from tape.core.context.build import Context
    from tape.core.context.explain import Difference, Explanation, Region
    from tape.core.context.manifest import Manifest
    from tape.core.context.policy import Policy, Standard
    from tape.core.ids import as_id
    from tape.core.journal.requests import Request
    from tape.core.lenient import from_strict, lenient, to_strict
    from tape.core.memory.loading import Loaded, Provider
    from tape.core.memory.prices import Price, Prices, UsageRow
    from tape.core.memory.state import Block, BlockSpec, Slot, Usage
    from tape.core.merge.diff import Diff, Revised
    from tape.core.merge.divergence import Conflict
    from tape.core.records import (
        Ancestor,
        Anchor,
        Check,
        Descendant,
        Entry,
        Finding,
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
        StateValue,
        Stats,
        TapeInfo,
        Transfer,
    )
    from tape.core.redact import Redact
    from tape.core.summaries.compaction import Summary, SummaryRequest
    from tape.db.read.recall import Recalled
    from tape.errors import (
        AlreadySettled,
        BudgetExceeded,
        CommitUnknown,
        Corrupt,
        DatabaseDown,
        Diverged,
        EffectRefused,
        EffectUnknown,
        HeadMoved,
        ImportFailed,
        InvalidEntry,
        LeaseHeld,
        LeaseLost,
        MergeConflict,
        NotAStore,
        NotInTransaction,
        OwnerMoved,
        ProcessForked,
        ProvenanceConflict,
        ReadOnly,
        RecordedError,
        ReplicaBehind,
        RequestClosed,
        SchemaTooNew,
        SchemaTooOld,
        StoreBusy,
        StoreFailed,
        SummaryMoved,
        TablesTaken,
        TapeClosed,
        TapeError,
        TapeExists,
        TapeHidden,
        TapeInUse,
        TapeNotFound,
        UnknownEntry,
        UnknownMessage,
        ViewMoved,
    )
    from tape.handles.consumer import Consumer
    from tape.handles.journal.leases import Lease
    from tape.handles.journal.pointers import resolve
    from tape.handles.snapshot import Snapshot
    from tape.handles.tape import Fork, Tape
    from tape.new_ids import new_id
    from tape.opening import open
    from tape.pool.following import PoolFeed
    from tape.pool.listing import Across
    from tape.pool.moving import Move
    from tape.pool.pool import Pool, open_pool
    from tape.prices import load_prices
    from tape.runs.bisecting import Bisection, bisect
    from tape.runs.checking import Checked, CheckReport, check
    from tape.runs.opening import record, replay
    from tape.runs.pure.divergence import Change, Divergence, RunReport
    from tape.runs.pure.effects import Effect
    from tape.runs.recording import RecordedCall, Recording, RunInfo
    from tape.runs.recovery import CallState, recover
    from tape.runs.run import Run
    from tape.store import Store
    from tape.tools import Tool, ToolResult, Toolset
else:
    # Where each name lives. A name is loaded when it is first used, with what it needs: a program that only reads the
    # version, or the command that only prints its help, does not pay for a database. A test holds this list equal to
    # the imports above.
    _HOMES = {
        "tape.aio": "AsyncConsumer AsyncFork AsyncLease AsyncSnapshot AsyncStore AsyncTape open_async",
        "tape.aio.pool": "AsyncPool AsyncPoolFeed open_pool_async",
        "tape.aio.runs": "AsyncRun",
        "tape.core.context.build": "Context",
        "tape.core.context.explain": "Difference Explanation Region",
        "tape.core.context.manifest": "Manifest",
        "tape.core.context.policy": "Policy Standard",
        "tape.core.ids": "as_id",
        "tape.core.journal.requests": "Request",
        "tape.core.lenient": "from_strict lenient to_strict",
        "tape.core.memory.loading": "Loaded Provider",
        "tape.core.memory.prices": "Price Prices UsageRow",
        "tape.core.memory.state": "Block BlockSpec Slot Usage",
        "tape.core.merge.diff": "Diff Revised",
        "tape.core.merge.divergence": "Conflict",
        "tape.core.redact": "Redact",
        "tape.core.records": (
            "Ancestor Anchor Check Descendant Entry Finding Health Hit Lineage MergeReceipt Message Page Problem "
            "Receipt Report Retention Source StateValue Stats TapeInfo Transfer"
        ),
        "tape.core.summaries.compaction": "Summary SummaryRequest",
        "tape.db.read.recall": "Recalled",
        "tape.errors": (
            "AlreadySettled BudgetExceeded CommitUnknown Corrupt DatabaseDown Diverged EffectRefused EffectUnknown "
            "HeadMoved ImportFailed InvalidEntry LeaseHeld LeaseLost MergeConflict NotAStore NotInTransaction "
            "OwnerMoved ProcessForked ProvenanceConflict ReadOnly RecordedError ReplicaBehind RequestClosed "
            "SchemaTooNew SchemaTooOld StoreBusy StoreFailed SummaryMoved TablesTaken TapeClosed TapeError TapeExists "
            "TapeHidden TapeInUse TapeNotFound UnknownEntry UnknownMessage ViewMoved"
        ),
        "tape.handles.consumer": "Consumer",
        "tape.handles.journal.leases": "Lease",
        "tape.handles.journal.pointers": "resolve",
        "tape.handles.snapshot": "Snapshot",
        "tape.handles.tape": "Fork Tape",
        "tape.new_ids": "new_id",
        "tape.opening": "open",
        "tape.pool.following": "PoolFeed",
        "tape.pool.listing": "Across",
        "tape.pool.moving": "Move",
        "tape.pool.pool": "Pool open_pool",
        "tape.prices": "load_prices",
        "tape.runs.checking": "CheckReport Checked check",
        "tape.runs.bisecting": "Bisection bisect",
        "tape.runs.opening": "record replay",
        "tape.runs.pure.divergence": "Change Divergence RunReport",
        "tape.runs.pure.effects": "Effect",
        "tape.runs.recording": "RecordedCall Recording RunInfo",
        "tape.runs.recovery": "CallState recover",
        "tape.runs.run": "Run",
        "tape.store": "Store",
        "tape.tools": "Tool ToolResult Toolset",
    }
    _HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
    _ROOMS = (
        "aio",
        "core",
        "db",
        "errors",
        "handles",
        "new_ids",
        "opening",
        "payloads",
        "pool",
        "runs",
        "store",
        "tools",
    )
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
