"""Checks export files by the specification in ``docs/format.md`` alone: the standard library, and nothing of ours."""

from __future__ import annotations

import hashlib
import json
import re

__all__ = ["FormatError", "commitment", "link", "verify_export"]


class FormatError(ValueError):
    """The file is not an export, or was changed afterwards."""


def H(data: bytes) -> bytes:
    """Return BLAKE2b with 32 bytes."""
    return hashlib.blake2b(data, digest_size=32).digest()


def commitment(salt: bytes, payload: bytes, meta: bytes | None) -> bytes:
    """Return the commitment to the content of an entry."""
    content = salt + len(payload).to_bytes(8, "big") + payload
    return H(content if meta is None else content + len(meta).to_bytes(8, "big") + meta)


def link(before: bytes, committed: bytes, header: list[object]) -> bytes:
    """Return the hash of an entry."""
    return H(before + committed + json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode())


_ENTRY = re.compile(rb'(\{"seq":.*?,"salt":"(?P<salt>[0-9a-f]{32})"),"meta":(?P<rest>.*)\}')


def _content(line: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Cut salt, payload and meta out of the line of an entry."""
    match = _ENTRY.fullmatch(line)
    if match is None:
        raise FormatError("not the line of an entry")
    rest = match["rest"]
    # Two JSON values with a name between them. JSON is ASCII where it matters, so characters and bytes agree here.
    text = rest.decode("utf-8", "surrogateescape")
    _, end = json.JSONDecoder().raw_decode(text)
    meta = text[:end].encode("utf-8", "surrogateescape")
    name = b',"payload":'
    if not rest[len(meta) :].startswith(name):
        raise FormatError("the payload does not follow the meta")
    return bytes.fromhex(match["salt"].decode()), rest[len(meta) + len(name) :], None if meta == b"null" else meta


def verify_export(file: bytes) -> dict[str, tuple[int, str]]:
    """Return the number of entries and the last hash of each tape; raises FormatError for a file that was changed."""
    lines = file.splitlines(keepends=True)
    tapes: dict[str, tuple[int, str]] = {}
    at = entries = 0
    try:
        while not lines[at].startswith(b'{"tapes":'):
            first = json.loads(lines[at])
            name, count = first["tape"], first["entries"]
            if first["format"] != 1 or name in tapes:
                raise FormatError("not the line of a tape")
            before = bytes(32)
            for seq in range(1, count + 1):
                line = lines[at + seq]
                fields = json.loads(line)
                lane, ordinal, of = fields["head"]
                header = [name, *(fields[field] for field in ("seq", "kind", "key", "actor", "source", "stamp"))]
                before = link(
                    before, commitment(*_content(line.rstrip(b"\n"))), [*header, fields["version"], of, lane, ordinal]
                )
                if fields["seq"] != seq or before.hex() != fields["hash"]:
                    raise FormatError(f"the hash of seq {seq} of {name!r} does not follow")
            if before.hex() != first["hash"]:
                raise FormatError(f"the last hash of {name!r} is another")
            tapes[name] = (count, before.hex())
            entries += count
            at += count + 1
        end = json.loads(lines[at])
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(str(error)) from error
    if at + 1 != len(lines) or not lines[at].endswith(b"\n"):
        raise FormatError("there is more, or less, after the end")
    if end != {"tapes": len(tapes), "entries": entries, "digest": H(b"".join(lines[:at])).hex()}:
        raise FormatError("the counts or the digest do not match")
    return tapes
