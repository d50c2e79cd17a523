"""Files that no store exported: entries of any content with hashes that fit, as whoever knows the format can write."""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Raw

from tape.core.entries import chain, ids, payloads
from tape.core.entries.payloads import Payload
from tape.core.transfer import export_format

Line = export_format.TapeLine | export_format.EntryLine
Head = tuple[int, int, str | None]
ROOT: Head = (0, 0, None)
SALT = bytes(chain.SALT_SIZE)


def forged(
    tape: str,
    *entries: Payload,
    head: Head = ROOT,
    heads: Sequence[Head] = (),
    stamps: Sequence[int] = (),
    keys: Sequence[str] = (),
    metas: Sequence[bytes | None] = (),
) -> list[Line]:
    """Return the lines of a tape with these entries; ``head`` is where all leave it, unless ``heads`` differ."""
    found: list[Line] = []
    hash = chain.ZERO
    for number, entry in enumerate(entries):
        raw, seq, key = payloads.encode(entry), number + 1, f"k{number}"
        if isinstance(entry, payloads.Append) and not entry.aliased:
            key = ids.message_key(entry.id)
        key = keys[number] if keys else key
        stamp = stamps[number] if stamps else 1
        at = heads[number] if heads else head
        place, meta = payloads.Place(*at), metas[number] if metas else None
        hash = chain.link(
            hash, chain.commit(SALT, raw, meta), tape, seq, entry.kind, key, None, None, stamp, entry.version, place
        )
        found.append(
            export_format.EntryLine(
                seq,
                entry.kind,
                key,
                None,
                None,
                stamp,
                entry.version,
                at,
                hash.hex(),
                SALT.hex(),
                Raw(meta or b"null"),
                Raw(raw),
            )
        )
    return [export_format.TapeLine(tape, len(entries), hash.hex(), export_format.FORMAT), *found]


def file(*tapes: list[Line]) -> io.BytesIO:
    """Return a file of forged tapes, with the end that fits."""
    digest = blake2b(digest_size=32)
    out = io.BytesIO()
    for line in (line for tape in tapes for line in tape):
        raw = export_format.encode(line) + b"\n"
        digest.update(raw)
        out.write(raw)
    entries = sum(len(tape) - 1 for tape in tapes)
    out.write(export_format.encode(export_format.End(len(tapes), entries, digest.hexdigest())) + b"\n")
    out.seek(0)
    return out


def opening(owner: str | None, *layers: payloads.Layer, hash: str = "") -> payloads.Open:
    """Return the first entry of a fork that inherits from these, nearest first."""
    nearest = layers[0]
    point = payloads.ForkPoint(tape=nearest.tape, seq=nearest.asof, hash=hash, layers=list(layers))
    return payloads.Open(owner=owner, parent=point)
