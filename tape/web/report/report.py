"""Writing a report: tapes as one self-contained HTML file, packed so that a long one opens at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

import tape
from tape.command.show.describe import gist
from tape.core import typed
from tape.core.entries import payloads
from tape.web.addresses import reference, split
from tape.web.page_request import NotThere, PageRequest
from tape.web.pages import context, conversation, graph, tapes, usage
from tape.web.parts import card, failed, raw_entry
from tape.web.report.bundle import document, embedded
from tape.web.report.contexts import BLOCK, Contexts
from tape.web.report.packing import CHUNK, Chunk, pack
from tape.web.report.paths import Turns, frames
from tape.web.report.redact import Redaction
from tape.web.report.requests import Requests

__all__ = ["write"]

_LINE = 160
_ADDRESSES = ("ref", "child", "other")
"""Where a page has the address of a tape."""


def write(
    store: tape.Store,
    ids: Sequence[str],
    write_bytes: Callable[[bytes], object],
    redaction: Redaction | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write the tapes with ``write_bytes`` and return how many entries there are.

    Nothing is written before it is redacted.
    """
    clean = Redaction() if redaction is None else redaction
    chats = [store.get(id) for id in ids]
    infos = [chat.info() for chat in chats]
    total = sum(info.head for info in infos)
    done = 0

    def blocks() -> Iterator[tuple[str, str]]:
        nonlocal done
        listed = []
        for number, (chat, info) in enumerate(zip(chats, infos, strict=True)):
            chunks, turns, contexts = 0, Turns(), Contexts(clean)
            for chunk in _chunks(chat, info.head, clean, [turns, contexts]):
                yield f"c{number}-{chunks}", pack(chunk.columns)
                chunks += 1
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
            about = clean(_renamed(card(info), clean))
            paths = frames(chat, info.head, turns, clean)
            yield f"p{number}", pack(paths)
            yield f"x{number}", pack(_pages(store, chat, info, clean, contexts) | {"contexts": contexts.seqs})
            for place, block in enumerate(contexts.blocks(chat)):
                yield f"x{number}-{place}", pack(block)
            listed.append({"tape": about, "chunks": chunks, "head": info.head})
        sizes = {"chunk": CHUNK, "block": BLOCK, "redacted": bool(clean)}
        kinds = {"kinds": sorted(payloads.KINDS), "marks": conversation.BETWEEN}
        yield "report", embedded({"tapes": listed, **sizes, **kinds})

    for text in document(f"{clean.text(', '.join(ids[:3]))} · tape report", blocks()):
        write_bytes(text.encode())
    return done


def _chunks(chat: tape.Tape, head: int, clean: Redaction, readers: Sequence[Turns | Contexts]) -> Iterator[Chunk]:
    chunk, requests = Chunk(), Requests(chat, clean)
    for entry in chat.entries(before=head + 1):
        for reader in readers:
            reader.see(entry)
        raw, line = _cleaned(entry, clean, requests)
        chunk.add(raw, entry.stamp, line, failed=failed(entry))
        if len(chunk) == CHUNK:
            yield chunk
            chunk = Chunk()
    if len(chunk):
        yield chunk


def _cleaned(entry: tape.Entry, clean: Redaction, requests: Requests) -> tuple[dict[str, Any], str]:
    """Return an entry without what is to be taken out, and its one-line description."""
    raw = raw_entry(entry)
    if not clean:
        return raw, gist(entry, _LINE)
    cleaned = clean(requests.recut(entry, raw)) | {"kind": raw["kind"], "hash": raw["hash"]}
    if cleaned == raw:
        return raw, gist(entry, _LINE)
    cleaned["hash"] = None
    data = cleaned["payload"].get("data") if isinstance(cleaned["payload"], dict) else None
    if isinstance(data, dict) and data.get("request") != raw["payload"]["data"].get("request"):
        # The digest, and the key that is made of it, could confirm a guess of the secret, as the hash could.
        cleaned["payload"]["data"] = {**data, "digest": None, "key": None}
    try:
        payload = typed.convert(cleaned["payload"], type(entry.payload))
        line = gist(msgspec.structs.replace(entry, payload=payload, source=None), _LINE)
    except (msgspec.ValidationError, TypeError):
        # What was taken out was needed to tell it.
        line = entry.kind
    return cleaned, clean.text(line)


def _pages(
    store: tape.Store, chat: tape.Tape, info: tape.TapeInfo, clean: Redaction, contexts: Contexts
) -> dict[str, Any]:
    """Return the pages that are made beforehand."""
    request = PageRequest(store, id=chat.id)
    activity = tapes.activity(PageRequest(store, {"of": reference(chat.id)}))["activity"]
    pages: dict[str, Any] = {
        "usage": usage.usage(request),
        "graph": graph.graph(request),
        "activity": [*activity.values()],
    }
    for row in pages["graph"]["rows"]:
        if "entry" in row:
            of = store.get(row.pop("id"))
            row["entry"]["gist"] = _cleaned(of.entry(seq=row["entry"]["seq"]), clean, Requests(of, clean))[1]
    try:
        page = context.context(PageRequest(store, id=chat.id, point=info.head or None), clean)
        page["regions"] = [_named(region, chat.id, clean, contexts) for region in page["regions"]]
        pages["context"] = page
    except NotThere as error:
        pages["context"] = {"error": str(error)}
    return dict(clean(_renamed(pages, clean)))


def _named(region: dict[str, Any], id: str, clean: Redaction, contexts: Contexts) -> dict[str, Any] | int:
    """Return a region, or the seq of its message if that is an entry of the tape."""
    source = region["source"]
    own = region["region"] == "message" and source is not None and source["ref"] == reference(clean.text(id))
    return int(source["seq"]) if own and contexts.is_entry(id, (id, source["seq"])) else region


def _renamed(value: Any, clean: Redaction) -> Any:
    """Return a page with the addresses that its tapes have in the report: those of their redacted ids."""
    if isinstance(value, list):
        return [_renamed(item, clean) for item in value]
    if not isinstance(value, dict) or not clean:
        return value
    return {
        name: _address(item, clean) if name in _ADDRESSES and isinstance(item, str) else _renamed(item, clean)
        for name, item in value.items()
    }


def _address(ref: str, clean: Redaction) -> str:
    id, point = split(ref)
    return reference(clean.text(id), point if isinstance(point, int) else None)
