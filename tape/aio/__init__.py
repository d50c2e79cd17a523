"""The async twin: the same store and tape, awaited.

Every call is one hop to a worker thread around the synchronous core. A cancelled call is either not started, and
nothing was written, or it runs to its end in the thread: an append is wholly there or wholly absent.
"""

from tape.aio.consumer import AsyncConsumer
from tape.aio.leases import AsyncLease
from tape.aio.store import AsyncStore, open_async
from tape.aio.tape import AsyncFork, AsyncSnapshot, AsyncTape

__all__ = ["AsyncConsumer", "AsyncFork", "AsyncLease", "AsyncSnapshot", "AsyncStore", "AsyncTape", "open_async"]
