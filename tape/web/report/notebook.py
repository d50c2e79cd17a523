"""Values in a notebook: the pages of the inspector in a frame that can do nothing but draw them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from tape.web.addresses import reference
from tape.web.parts import card, instant, message_texts, message_view
from tape.web.report.bundle import document, embedded

if TYPE_CHECKING:
    import tape

__all__ = ["context_frame", "diff_frame", "message_frame", "tape_frame"]

_MOST = 40
"""Messages that a frame shows, the last ones."""
_BYTES = 500_000


def _frame(page: dict[str, Any], height: int) -> str:
    """Return an element with a page in it. It is drawn when it is scrolled to, apart from the notebook's own page."""
    index = embedded({"pages": {"/": {"title": "tape", **page}}, "start": "/"})
    html = "".join(document("tape", iter([("report", index)])))
    return (
        f'<iframe srcdoc="{escape(html)}" sandbox="allow-scripts" loading="lazy" width="100%" height="{height}" '
        f'title="{escape(str(page.get("title", "tape")))}" style="border:1px solid #8884;border-radius:8px"></iframe>'
    )


def _shown(message: tape.Message, tape_id: str) -> dict[str, Any]:
    return message_view(message.data) | {
        "id": message.id,
        "seq": message.seq,
        "revision": message.revision,
        "inherited": None if message.tape == tape_id else message.tape,
        "tokens": message.tokens,
        "at": instant(message.recorded_at) if message.stamp else None,
    }


def tape_frame(chat: tape.Snapshot) -> str:
    """Return a tape, or a point of it, as its last messages."""
    info = chat.info()
    page: Any = chat.messages(limit=_MOST, max_bytes=_BYTES)
    messages = [_shown(message, info.id) for message in page]
    return _conversation(card(info), messages, info.head, title=info.name or info.id)


def message_frame(message: tape.Message) -> str:
    """Return one message."""
    about = {
        "id": message.tape,
        "ref": reference(message.tape),
        "name": f"Message {message.id}",
        "status": "one message",
    }
    shown = [_shown(message, message.tape)]
    return _conversation(about | _UNKNOWN, shown, message.seq, title=message.id)


_UNKNOWN: dict[str, Any] = {
    "agent": None, "owner": None, "labels": [], "parent": None, "messages": 1, "tokens": 0, "cost": 0,
    "updated_at": None,
}  # fmt: skip


def _conversation(about: dict[str, Any], messages: Sequence[dict[str, Any]], head: int, *, title: str) -> str:
    page = {
        "page": "conversation", "title": title, "tape": about, "seq": head, "head": head, "live": False,
        "branch": None, "heads": [], "messages": list(messages), "earlier": None, "later": None, "between": [],
        "still": True,
    }  # fmt: skip
    return _frame(page, min(640, 220 + 90 * len(messages)))


def context_frame(context: tape.Context) -> str:
    """Return what a model would see: its regions, and what is out and why."""
    from tape.web.pages.context import regions_of

    manifest, regions = regions_of(context)
    about = {"id": manifest["tape"], "ref": reference(manifest["tape"]), "name": None, "status": "a context"}
    page = {
        "page": "context", "title": "Context", "tape": about | _UNKNOWN | {"messages": len(context.messages)},
        "seq": manifest["head"], "head": manifest["head"], "recorded": False, "budget": manifest["budget"],
        "tokens": manifest["tokens"], "policy": f"{manifest['policy']} {manifest['version']}", "steps": [],
        "hash": manifest["hash"], "regions": regions[-_MOST:], "left_out": max(0, len(regions) - _MOST),
        "excluded": [out | {"ref": reference(out["tape"])} for out in manifest["excluded"]],
        "repairs": manifest["repairs"], "moved": None, "still": True,
    }  # fmt: skip
    return _frame(page, 560)


def diff_frame(diff: tape.Diff) -> str:
    """Return what changed between two views, with the words marked."""
    from tape.web.pages.diff import marked

    rows: list[dict[str, Any]] = []
    for change in diff.revised:
        before, after = ("\n\n".join(message_texts(side.data)) for side in (change.before, change.after))
        rows.append({"a": _side(change.before), "b": _side(change.after), "words": marked(before, after)})
    rows += [{"a": _side(message), "b": None} for message in [*diff.retracted, *diff.left]]
    rows += [{"a": None, "b": _side(message)} for message in diff.added]
    about = _UNKNOWN | {"id": "", "ref": ""}
    page = {
        "page": "diff", "title": "Difference", "a": "before", "b": "after", "rows": rows[:_MOST],
        "left": about | {"name": "before"}, "right": about | {"name": "after"}, "differing": len(rows), "still": True,
    }  # fmt: skip
    return _frame(page, min(640, 200 + 110 * len(rows)))


def _side(message: tape.Message) -> dict[str, Any]:
    about = {"id": message.id, "seq": message.revision, "ref": reference(message.tape)}
    return about | message_view(message.data)
