"""Sources: which entry of a tape a value in a request came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tape.runs.pure.divergence import Divergence
from tape.runs.pure.requests import Body
from tape.runs.recording import RecordedCall

if TYPE_CHECKING:
    from tape.core.records import Message
    from tape.handles.tape import Tape

__all__ = ["with_sources"]


def with_sources(divergence: Divergence, call: RecordedCall | None, body: Body, chat: Tape) -> Divergence:
    """Return a divergence with the entries that the two values came from, where they are messages of the tape.

    The recorded value is looked for in the tape as it was when the call was made, the given one in the tape as it is.
    """
    if call is None or divergence.path is None or divergence.kind != "request_changed":
        return divergence
    parts = divergence.path.split("/")[1:]
    if len(parts) < 2:
        return divergence
    recorded, given = (_element(request.get(parts[0]), parts[1]) for request in (call.request(), body.values()))
    source = _source(recorded, chat.at(call.seq).messages())
    given_source = _source(given, chat.messages())
    return structs.replace(divergence, source=source, given_source=given_source)


def _element(items: Any, index: str) -> Any:
    """Return the element of a list that a part of a JSON pointer names; None if there is none."""
    if not isinstance(items, list) or not re.fullmatch("[0-9]{1,9}", index) or int(index) >= len(items):
        return None
    return items[int(index)]


def _source(element: Any, messages: Sequence[Message]) -> tuple[str, int] | None:
    """Return where the message with this content stands, the newest if there are several."""
    content = element.get("content") if isinstance(element, dict) else None
    if content is None:
        return None
    for message in reversed(messages):
        if message.role == element.get("role") and _same_content(message.content, content):
            return message.tape, message.revision
    return None


def _same_content(stored: Any, rendered: Any) -> bool:
    """Whether a rendered content is that of a message: as it is, or as the only part of a list of parts."""
    if stored == rendered:
        return True
    only = rendered[0] if isinstance(rendered, list) and len(rendered) == 1 else None
    return isinstance(only, dict) and isinstance(stored, str) and only.get("text") == stored
