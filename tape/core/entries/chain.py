"""The hash chain: what ties every entry to all that came before it.

    hash(n) = H( hash(n-1) | H(payload) | header | newline | meta )

H is BLAKE2b with 32 bytes. The header is a JSON array of every other field. The chain covers the digest of a payload
and not its bytes, so that a payload can later be erased and every other entry still verifies.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from tape.core.entries.payloads import Place

__all__ = ["ZERO", "digest", "link"]

ZERO = bytes(32)
"""What stands before the first entry."""

_header = msgspec.json.Encoder().encode
# Copied for every hash: to make a new one and tell it the length takes longer than the hashing.
_begun = blake2b(digest_size=32).copy


def digest(payload: bytes) -> bytes:
    """Return the digest by which the chain knows a payload."""
    hash = _begun()
    hash.update(payload)
    return hash.digest()


def link(
    before: bytes,
    payload: bytes,
    tape: str,
    seq: int,
    kind: str,
    key: str,
    actor: str | None,
    source: tuple[str | None, int] | None,
    meta: bytes | None,
    stamp: int,
    version: int,
    place: Place,
) -> bytes:
    """Return the hash of an entry, given the hash before it and the digest of its payload."""
    header = _header((tape, seq, kind, key, actor, source, stamp, version, place.tape, place.lane, place.ordinal))
    hash = _begun()
    hash.update(b"%b%b%b\n" % (before, payload, header))
    if meta is not None:
        hash.update(meta)
    return hash.digest()
