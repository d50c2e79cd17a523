"""Effects: what a tool is handed to make its side effect happen once. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import Struct

__all__ = ["EFFECTS", "MAY_HAVE_RUN", "ON_UNKNOWN", "Effect", "effect_key"]

EFFECTS = ("read", "idempotent", "write")
"""What a tool does to the world: nothing; the same however often it is done; something that counts each time."""
ON_UNKNOWN = ("ask", "retry", "skip")
"""What a resumed run does with a write of which nobody knows whether it happened; a function is asked (a probe)."""
MAY_HAVE_RUN = "[the outcome of this call is unknown: it was started and may have run; check before running it again]"
"""What the agent is given for such a write that is skipped."""


def effect_key(run: str, step: str, tool: str, request_digest: str) -> str:
    """Return the key of an effect: the same whenever the same run does the same thing at the same step.

    The id of the model's tool call is no part of it: a model mints a new one whenever it is asked again.
    """
    facts = "\0".join((run, step, tool, request_digest))
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:40]


class Effect(Struct):
    """What a tool with a parameter ``effect`` is handed: the key of its side effect, and a way to settle it.

    Send ``key`` as the idempotency key of whatever the tool calls. It stays the same when a run is resumed.
    """

    key: str
    run: str
    lane: str
    n: int
    attempt: int
    _settle: Callable[[Any, Any], Any] | None = None

    def settle(self, store: Any, value: Any = None) -> Any:
        """Record the outcome in the caller's transaction: ``store`` is one bound to its connection.

        Then the effect and its outcome are one commit. Raises AlreadySettled, so that the transaction rolls back, when
        another process has settled the call in between. With an AsyncStore the result is to be awaited.
        """
        if self._settle is None:
            return None
        return self._settle(store, value)
