"""The recorded contexts of a tape in a report: all of them, in blocks, each region once in a block.

Manifests are in the entries already, and name the messages that are entries of the tape. What the prompt, a checkpoint,
an inherited or an altered message said is kept once for all contexts of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

import tape
from tape.core.messages.tokens import estimate, message_tokens
from tape.web.addresses import reference
from tape.web.pages.context import TEXT, cause_of, common, is_context, sources_of
from tape.web.parts import cut, message_view

__all__ = ["BLOCK", "Contexts"]

BLOCK = 100
"""Contexts of one block."""
_EXPLAINED = 200
"""Contexts whose cause is looked for, the last ones: each is built anew several times to find it."""
_TEXTS = ("prompt", "documents", "checkpoint")
Key = tuple[str, int] | str
"""The entry that a region comes from, or its text."""


class _Before:
    """The context before: its regions by their keys, and the request that they make."""

    def __init__(self, keys: list[Key], request: bytes) -> None:
        self.keys = keys
        self.request = request


class Contexts:
    """Finds the recorded contexts of a tape while its entries are read in order, and makes blocks of them."""

    def __init__(self, clean: Any) -> None:
        self.seqs: list[int] = []
        self._messages: set[int] = set()
        self._clean = clean

    def see(self, entry: tape.Entry) -> None:
        """Take notice of the next entry."""
        if entry.kind in ("append", "revise") and entry.payload is not None:
            self._messages.add(entry.seq)
        elif is_context(entry):
            self.seqs.append(entry.seq)

    def blocks(self, chat: tape.Tape) -> Iterator[dict[str, Any]]:
        """Yield the blocks: what regions say, and for each context which of them it has and what moved."""
        before: _Before | None = None
        for start in range(0, len(self.seqs), BLOCK):
            pool: dict[str, int] = {}
            made = []
            for seq in self.seqs[start : start + BLOCK]:
                try:
                    context, before = self._context(chat, seq, pool, before)
                except (tape.InvalidEntry, tape.Corrupt) as error:
                    context, before = {"error": self._clean.text(str(error))}, None
                made.append(context)
            yield {"pool": [msgspec.json.decode(text) for text in pool], "contexts": made}

    def _context(
        self, chat: tape.Tape, seq: int, pool: dict[str, int], before: _Before | None
    ) -> tuple[dict[str, Any], _Before]:
        recalled = chat.recall(seq)
        request = msgspec.json.encode(recalled.to_openai())
        explained = self._explained(chat, seq)
        keys: list[Key] = []
        regions: list[dict[str, Any] | None] = []
        cleaned = self._clean(recalled.manifest)
        for name in _TEXTS:
            # The page counts what is in the entry, of which something may have been taken out.
            if text := cleaned.get(name):
                keys.append(str(recalled.manifest.get(name)))
                regions.append(_text_region(name, str(text)))
        for message, source in zip(recalled.messages, sources_of(recalled.manifest), strict=False):
            keys.append(source if source is not None else msgspec.json.encode(message).decode())
            regions.append(None if self.is_entry(chat.id, source) else self._region(message, source))
        origins = explained.regions if explained is not None and len(explained.regions) == len(regions) else []
        for region, origin in zip(regions, origins, strict=False):
            if region is not None:
                region |= self._clean({"step": origin.step, "actor": origin.actor})
                region["source"] = region["source"] or self._address(origin.tape, origin.seq)
        shown: dict[str, Any] = {
            "pooled": [_pooled(pool, region) for region in regions if region is not None],
            "moved": None if before is None else _moved(before, keys, request),
        }
        if explained is not None:
            shown["cause"] = self._cause(explained)
        return shown, _Before(keys, request)

    def is_entry(self, tape: str, source: tuple[str, int] | None) -> bool:
        """Whether a message is an entry of this tape, which the report has."""
        return source is not None and source[0] == tape and source[1] in self._messages

    def _explained(self, chat: tape.Tape, seq: int) -> tape.Explanation | None:
        if seq not in self.seqs[-_EXPLAINED:]:
            return None
        try:
            return chat.explain(seq)
        except tape.TapeError:
            # Without it the page still shows what the manifest tells.
            return None

    def _cause(self, explained: tape.Explanation) -> Mapping[str, Any] | None:
        cause = cause_of(explained)
        moved = explained.difference
        if cause is None or moved is None:
            return None
        return dict(self._clean(cause)) | {"source": self._address(moved.tape, moved.seq)}

    def _region(self, message: dict[str, Any], source: tuple[str, int] | None) -> dict[str, Any]:
        about = {"region": "altered" if source is None else "message", "tokens": message_tokens(message)}
        address = None if source is None else self._address(*source)
        return message_view(self._clean(message)) | about | {"source": address}

    def _address(self, id: str | None, seq: int | None) -> dict[str, Any] | None:
        return None if id is None or seq is None else {"ref": reference(self._clean.text(id)), "seq": seq}


def _text_region(name: str, text: str) -> dict[str, Any]:
    part = {"part": "text", **cut(text, TEXT)}
    return {"region": name, "role": name, "tokens": estimate(text), "source": None, "parts": [part]}


def _pooled(pool: dict[str, int], region: dict[str, Any]) -> int:
    """Return the number of a region in the pool."""
    return pool.setdefault(msgspec.json.encode(region).decode(), len(pool))


def _moved(before: _Before, keys: list[Key], request: bytes) -> list[int]:
    """Return how many bytes are as before, how many there are, how many regions are as before, and how many were."""
    return [common(before.request, request), len(request), common(before.keys, keys), len(before.keys)]
