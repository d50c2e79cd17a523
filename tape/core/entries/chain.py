"""The hash chain: what ties every entry to all entries before it.

    commitment = H( salt | length of payload | payload [ | length of meta | meta ] )
    hash(n)    = H( hash(n-1) | commitment | header )

H is BLAKE2b with 32 bytes. A length is eight bytes, big-endian. The header is a JSON array of every other field. To
erase an entry means to remove salt, payload and meta and to keep the commitment: the chain stays valid, and without the
random salt the commitment confirms no guess. ``docs/format.md`` specifies all of it.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from tape.core.entries.payloads import Place

__all__ = ["SALT_SIZE", "ZERO", "commit", "link"]

SALT_SIZE = 16
"""Bytes of the random salt of an entry."""
ZERO = bytes(32)
"""The hash before the first entry."""

_header = msgspec.json.Encoder().encode
# Copied for every hash, because a new object with its parameters takes longer than the hashing.
_begun = blake2b(digest_size=32).copy


def commit(salt: bytes, payload: bytes, meta: bytes | None) -> bytes:
    """Return the commitment to the content of an entry; raises ValueError for a salt of another size."""
    if len(salt) != SALT_SIZE:
        raise ValueError(f"a salt has {SALT_SIZE} bytes, not {len(salt)}")
    hash = _begun()
    if meta is None:
        hash.update(b"%b%b%b" % (salt, len(payload).to_bytes(8, "big"), payload))
    else:
        sizes = len(payload).to_bytes(8, "big"), len(meta).to_bytes(8, "big")
        hash.update(b"%b%b%b%b%b" % (salt, sizes[0], payload, sizes[1], meta))
    return hash.digest()


def link(
    before: bytes,
    commitment: bytes,
    tape: str,
    seq: int,
    kind: str,
    key: str,
    actor: str | None,
    source: tuple[str | None, int] | None,
    stamp: int,
    version: int,
    place: Place,
) -> bytes:
    """Return the hash of an entry."""
    header = _header((tape, seq, kind, key, actor, source, stamp, version, place.tape, place.lane, place.ordinal))
    hash = _begun()
    hash.update(b"%b%b%b" % (before, commitment, header))
    return hash.digest()
