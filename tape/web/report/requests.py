"""The texts in requests of recorded calls. A call keeps what it adds to an earlier one, and a secret may stand across
the cut: texts are redacted whole, and then cut again."""

from __future__ import annotations

from typing import Any

import tape
from tape.web.pages.context import common
from tape.web.report.redact import REDACTED, Redaction

__all__ = ["Requests"]

_KEPT = 64
"""Calls whose texts are kept; older ones are read again."""
_Text = tuple[str, str]
"""A text as it was recorded, and without what is to be taken out."""


class Requests:
    """The requests of the calls of one tape."""

    def __init__(self, chat: tape.Tape, clean: Redaction) -> None:
        self._chat = chat
        self._clean = clean
        self._texts: dict[int, dict[str, _Text]] = {}

    def recut(self, entry: tape.Entry, raw: dict[str, Any]) -> dict[str, Any]:
        """Return an entry as ``raw_entry`` gives it, with the texts of its request without secrets."""
        if (request := _request(entry)) is None:
            return raw
        texts = self._read(entry)
        made = {name: self._field(name, stored, texts) for name, stored in request.items()}
        if made == request:
            return raw
        return raw | {"payload": raw["payload"] | {"data": raw["payload"]["data"] | {"request": made}}}

    def _field(self, name: str, stored: Any, texts: dict[str, _Text]) -> Any:
        if not _adds_text(stored):
            return stored
        before = self._texts.get(stored["of"], {}).get(name)
        if before is None or name not in texts:
            return stored | {"add": REDACTED}
        keep = common(before[1], texts[name][1])
        return stored | {"keep": keep, "add": texts[name][1][keep:]}

    def _read(self, entry: tape.Entry) -> dict[str, _Text]:
        """Return the texts of an entry's request; those that it goes on from are read first."""
        waiting = [entry]
        while waiting:
            last = waiting[-1]
            needed = {stored["of"] for stored in (_request(last) or {}).values() if _goes_on(stored, last.seq)}
            missing = [self._chat.find_entry(seq=seq) for seq in sorted(needed - self._texts.keys())]
            if earlier := [found for found in missing if found is not None]:
                waiting += earlier
                continue
            waiting.pop()
            self._texts[last.seq] = self._of(_request(last) or {})
        texts = self._texts[entry.seq]
        for seq in list(self._texts)[:-_KEPT]:
            del self._texts[seq]
        return texts

    def _of(self, request: dict[str, Any]) -> dict[str, _Text]:
        texts: dict[str, _Text] = {}
        for name, stored in request.items():
            if not isinstance(stored, dict):
                continue
            before = self._texts.get(stored.get("of", 0), {}).get(name)
            if isinstance(stored.get("is"), str):
                texts[name] = stored["is"], self._clean.text(stored["is"])
            elif before is not None and _adds_text(stored):
                text = before[0][: stored["keep"]] + stored["add"]
                texts[name] = text, self._clean.text(text)
            elif before is not None and stored.keys() <= {"of"}:
                texts[name] = before
        return texts


def _request(entry: tape.Entry) -> dict[str, Any] | None:
    payload: Any = entry.payload
    if entry.kind != "event" or payload is None or payload.name != "run.call" or not isinstance(payload.data, dict):
        return None
    request = payload.data.get("request")
    return request if isinstance(request, dict) else None


def _goes_on(stored: Any, seq: int) -> bool:
    return isinstance(stored, dict) and type(stored.get("of")) is int and 0 < stored["of"] < seq


def _adds_text(stored: Any) -> bool:
    return (
        isinstance(stored, dict)
        and type(stored.get("of")) is int
        and type(stored.get("keep")) is int
        and isinstance(stored.get("add"), str)
    )
