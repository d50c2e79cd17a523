"""Provenance keys that are derived from what is recorded."""

from __future__ import annotations

from hashlib import blake2b

from tape.core.strict import MAX_ID, RESERVED

__all__ = [
    "BATCH",
    "COPY",
    "DISCARD",
    "FORK",
    "MERGE",
    "MESSAGE",
    "REVISION",
    "SPLIT",
    "SQUASH",
    "batch_key",
    "copy_key",
    "discard_key",
    "fits",
    "fork_key",
    "is_like_batch",
    "merge_key",
    "keyed_id",
    "message_key",
    "revision_key",
    "spare_batch_key",
    "split_key",
    "squash_key",
]

MESSAGE, REVISION, COPY, SQUASH = f"{RESERVED}m:", f"{RESERVED}r:", f"{RESERVED}c:", f"{RESERVED}s:"
FORK, MERGE, DISCARD, SPLIT = f"{RESERVED}f:", f"{RESERVED}g:", f"{RESERVED}d:", f"{RESERVED}t:"
BATCH = f"{RESERVED}b:"
"""How the keys that the store derives begin, by what they are derived for."""


def fits(key: str) -> str:
    """Return the derived ``key``, or its digest when it is longer than a key may be."""
    if len(key) <= MAX_ID:
        return key
    return f"{RESERVED}#{blake2b(key.encode(), digest_size=32).hexdigest()}"


def message_key(message_id: str) -> str:
    """Return the key of the entry that appends this message."""
    key = f"{MESSAGE}{message_id}"
    return key if len(key) <= MAX_ID else fits(key)


def revision_key(seq: int, tape: str | None = None) -> str:
    """Return the key of the entry that supersedes the body recorded at ``seq`` (of an ancestor, if named)."""
    return fits(f"{REVISION}{seq}" if tape is None else f"{REVISION}{seq}@{tape}")


def fork_key(child: str) -> str:
    """Return the key of the parent's receipt of a fork."""
    return fits(f"{FORK}{child}")


def discard_key(other: str) -> str:
    """Return the key of the receipt of a discard."""
    return fits(f"{DISCARD}{other}")


def merge_key(other: str, seq: int) -> str:
    """Return the key of the receipt of a merge that takes the other tape up to ``seq``."""
    return fits(f"{MERGE}{seq}@{other}")


def copy_key(child: str, seq: int) -> str:
    """Return the key of an entry that carries over what the child recorded at ``seq``."""
    return fits(f"{COPY}{seq}@{child}")


def split_key(other: str) -> str:
    """Return the key of the entries by which a tape ends and its successor begins."""
    return fits(f"{SPLIT}{other}")


def squash_key(child: str, seq: int) -> str:
    """Return the key of the message that stands for all that the child recorded up to ``seq``."""
    return fits(f"{SQUASH}{seq}@{child}")


def keyed_id(tape: str, key: str) -> str:
    """Return the id of a tape that a keyed call on another tape makes, the same for every call with that key."""
    return blake2b(f"{key}@{tape}".encode(), digest_size=16).hexdigest()


def batch_key(key: str, index: int) -> str:
    """Return the key of the ``index``-th entry of a batch keyed ``key``."""
    return fits(f"{key}#{index}")


def spare_batch_key(key: str, index: int) -> str:
    """Return the key of that entry when a caller has used its usual one for something else."""
    return fits(f"{BATCH}{index}@{key}")


def is_like_batch(key: str) -> bool:
    """Whether a caller's key looks like one of a batch."""
    return key.rpartition("#")[2].isdecimal() and "#" in key
