"""Payloads of Temporal on tapes.

A list of messages becomes messages of the workflow's tape. The id of each is the digest of all up to it, so that the id
of the last stands for the whole list, and a list that goes on from one that is stored adds only what is new. Any other
payload is an event, once per content.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

import tape
from tape import Corrupt, Store, Tape
from tape.integrations.histories import readable, tape_id
from tape.integrations.opening import Connected, StoreLike

__all__ = ["TapeStorageDriver"]

_FRAMEWORK = "temporal"
_PAYLOAD = "temporal.payload"


class TapeStorageDriver(StorageDriver):
    """Payloads of workflows on tapes: ``ExternalStorage(drivers=[TapeStorageDriver("agent.db")])``.

    ``store`` is a Store, an AsyncStore or a URL. Each workflow has a tape, ``as_id("temporal", namespace, workflow)``.
    Retrieved bytes are checked: Corrupt if they are not those that were stored.
    """

    def __init__(self, store: StoreLike, *, name: str = "tape") -> None:
        self._store = Connected(store)
        self._name = name

    def name(self) -> str:
        """Return the name of the driver."""
        return self._name

    def type(self) -> str:
        """Return the type of the driver."""
        return "tape"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Keep payloads on the tape of their workflow and return a pointer for each."""

        def keep(store: Store) -> list[StorageDriverClaim]:
            where = tape_of(store, context.target)
            return [StorageDriverClaim(_keep(store, where, payload)) for payload in payloads]

        return await self._store.run(keep)

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Return the payloads that pointers were given for. Raises Corrupt for one that was changed since."""

        def find(store: Store) -> list[Payload]:
            return [_find(store, claim.claim_data) for claim in claims]

        return await self._store.run(find)


def tape_of(store: Store, target: Any) -> str:
    """Return the id of the tape of a workflow or of a standalone activity. Each has a different id."""
    if target is None:
        return tape_id(store, _FRAMEWORK)
    kind = () if isinstance(target, StorageDriverWorkflowInfo) else ("activity",)
    return tape_id(store, _FRAMEWORK, target.namespace, *kind, target.id or "")


def _keep(store: Store, where: str, payload: Payload) -> dict[str, str]:
    raw = payload.SerializeToString(deterministic=True)
    digest = blake2b(raw, digest_size=32).hexdigest()
    chat = store.tape(where)
    if (messages := _messages(payload.data)) is not None:
        with contextlib.suppress(tape.InvalidEntry):
            # What is no strict JSON is kept as it is.
            return {**_keep_messages(chat, messages), "digest": digest, "metadata": _metadata(payload)}
    data = {"payload": base64.b64encode(raw).decode()}
    receipt = chat.event(_PAYLOAD, data, key=f"temporal:{digest}")
    return {"pointer": chat.at(receipt.seq).pointer(), "digest": digest}


def _keep_messages(chat: Tape, messages: list[dict[str, Any]]) -> dict[str, str]:
    """Append what is new of a list of messages. Where one is known, so are all before it."""
    ids = _ids(messages)
    known = bisect.bisect_left(range(len(ids)), 1, key=lambda n: chat.find(ids[n]) is None)
    if known < len(ids):
        chat.extend(messages[known:], ids=ids[known:], parent=ids[known - 1] if known else None)
    return {"pointer": chat.pointer(), "head": ids[-1]}


def _metadata(payload: Payload) -> str:
    return json.dumps({name: base64.b64encode(value).decode() for name, value in payload.metadata.items()})


def _find(store: Store, claim: Any) -> Payload:
    snapshot = tape.resolve(store, claim["pointer"])
    with readable(snapshot.id, 0):
        if "head" in claim:
            messages = snapshot.messages(branch=claim["head"])
            data = _encoded([message.to_dict() for message in messages])
            metadata = {name: base64.b64decode(value) for name, value in json.loads(claim["metadata"]).items()}
            payload = Payload(metadata=metadata, data=data)
        else:
            entry = snapshot.entry(key=f"temporal:{claim['digest']}")
            held: Any = getattr(entry.payload, "data", None)
            payload = Payload.FromString(base64.b64decode(held["payload"]))
    raw = payload.SerializeToString(deterministic=True)
    if blake2b(raw, digest_size=32).hexdigest() != claim["digest"]:
        raise Corrupt(snapshot.id, snapshot.info().head, "the payload does not match its recorded digest")
    return payload


def _messages(data: bytes) -> list[dict[str, Any]] | None:
    """Return the messages in a payload, if it is a list of them that comes back byte for byte."""
    try:
        value = json.loads(data)
        if not isinstance(value, list) or not value or not all(isinstance(each, dict) and each for each in value):
            return None
        return value if _encoded(value) == data else None
    except (ValueError, RecursionError):
        return None


def _encoded(value: Any) -> bytes:
    """Return JSON as Temporal's own converter writes it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def _ids(messages: list[dict[str, Any]]) -> list[str]:
    """Return an id for each message: the digest of all up to it."""
    hash, ids = blake2b(digest_size=24), []
    for message in messages:
        hash.update(_encoded(message) + b"\n")
        ids.append(f"temporal:{hash.hexdigest()}")
    return ids
