"""What changed between two views, word by word. Changed text is never shortened. Pure: from values to text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import tape
from tape.command.output import Line, clean, cut, flat, plain, width, wrapped
from tape.command.show.messages import PLAIN, Look, body, indented, message_line, speaker
from tape.core.amounts import count
from tape.core.merge.diff import Aligned
from tape.core.worddiff import Skipped, Span, count_words, hunks, spans

__all__ = ["CONTEXT", "changes", "side_by_side", "stat_of"]

CONTEXT = 3
"""How many equal lines are shown around a change."""
_ALIKE = 0.5
"""The share of two messages of unrelated tapes that must be equal to show one as a change of the other."""
_MARKS = {"equal": ("", ""), "removed": ("[-", "-]"), "added": ("{+", "+}")}


class Change(NamedTuple):
    """A message that was added, removed, left on another branch, or replaced by another one."""

    mark: str
    before: tape.Message | None
    after: tape.Message | None
    unrelated: bool = False
    """Whether the tapes share no ancestor: then their ids always differ, and only content is compared."""

    @property
    def message(self) -> tape.Message:
        """The message as it is, or was."""
        message = self.after or self.before
        assert message is not None
        return message

    @property
    def title(self) -> str:
        """Its seq and its role: ``7 user``."""
        if self.before is None or self.after is None:
            return f"{self.message.seq} {flat(speaker(self.message.data))}"
        seqs, who = [self.before.seq, self.after.seq], [speaker(self.before.data), speaker(self.after.data)]
        return " ".join(flat(" -> ".join(map(str, dict.fromkeys(pair)))) for pair in (seqs, who))

    def spans(self, look: Look) -> list[Span]:
        """Return the words that changed: in its text, or in all its members where the text is the same."""
        if self.before is None or self.after is None:
            text = body(self.message.data, look.calls)
            return [Span("added" if self.after is not None else "removed", text)] if text else []
        before, after = body(self.before.data, look.calls), body(self.after.data, look.calls)
        changed = spans(before, after) if before != after else []
        if self.unrelated:
            return changed
        rest = [_members(side.data, everything=before == after) for side in (self.before, self.after)]
        if rest[0] != rest[1]:
            changed += [*([Span("equal", "\n")] if changed else []), *spans(*rest)]
        return changed


def _members(data: dict[str, object], *, everything: bool) -> str:
    """Return the members of a message as lines: all of them, or without those that its text is made of."""
    hidden = () if everything else ("role", "content", "parts", "tool_calls", "summary", "arguments", "output", "input")
    rest = {name: value for name, value in data.items() if name not in hidden}
    return json.dumps(rest, indent=2, ensure_ascii=False)


def changes(diff: tape.Diff, look: Look = PLAIN, context: int = CONTEXT, *, color: bool = False) -> Iterator[Line]:
    """Yield a diff: messages that changed, were removed, left on another branch or added, and then anchors."""
    for change in _listed(diff):
        yield from _change_lines(change, look, context, color=color)
    yield from _anchored(diff, look)


def _listed(diff: tape.Diff) -> list[Change]:
    """Return the changes in the order of their messages."""
    listed = [Change("~", change.before, change.after) for change in diff.revised]
    listed += [Change("-", message, None) for message in diff.retracted]
    listed += [Change("<", message, None) for message in diff.left]
    listed += [Change("+", None, message) for message in diff.added]
    return sorted(listed, key=lambda change: (change.message.recorded_at, change.message.seq))


def side_by_side(
    aligned: Aligned,
    diff: tape.Diff,
    look: Look = PLAIN,
    context: int = CONTEXT,
    *,
    color: bool = False,
) -> Iterator[Line]:
    """Yield two unrelated tapes: where they diverge, then the messages that only one of them has."""
    if aligned.parted is None:
        yield [("different from the first message on", "quiet")]
    else:
        before, after = aligned.parted
        where = f"{before.seq}" if before.seq == after.seq else f"{before.seq} and {after.seq}"
        start = f"  same up to {where} "
        yield [(start + message_line(before.data, look.room(len(start)), look.calls), "quiet")]
    for change in _paired(aligned.changes, look):
        yield from _change_lines(change, look, context, color=color)
    yield from _anchored(diff, look)


def _paired(listed: Iterable[tuple[str, tape.Message]], look: Look) -> Iterator[Change]:
    """Yield messages of one tape alone, and pairs of messages with nearly the same text on both."""
    gone: list[tape.Message] = []
    new: list[tape.Message] = []

    def pairs() -> Iterator[Change]:
        for before, after in zip(gone, new, strict=False):
            if speaker(before.data) == speaker(after.data) and _alike(before, after, look):
                yield Change("~", before, after, unrelated=True)
            else:
                yield from (Change("-", before, None), Change("+", None, after))
        yield from (Change("-", message, None) for message in gone[len(new) :])
        yield from (Change("+", None, message) for message in new[len(gone) :])

    for side, message in listed:
        if side == "-" and new:
            yield from pairs()
            gone, new = [], []
        (gone if side == "-" else new).append(message)
    yield from pairs()


def _alike(before: tape.Message, after: tape.Message, look: Look) -> bool:
    a, b = body(before.data, look.calls), body(after.data, look.calls)
    equal = sum(len(text) for kind, text in spans(a, b) if kind == "equal")
    return equal >= _ALIKE * max(len(a), len(b), 1)


def _change_lines(change: Change, look: Look, context: int, *, color: bool) -> Iterator[Line]:
    style = {"+": "add", "-": "remove", "~": "change", "<": "quiet"}[change.mark]
    title = f"{change.mark} {change.title}"
    if change.mark == "<":
        # The message did not change, it is on another branch.
        yield [
            (f"{change.mark} {change.message.seq} ", style),
            message_line(change.message.data, look.room(len(title))),
        ]
        return
    if change.mark in "+-":
        text = clean(body(change.message.data, look.calls))
        if "\n" not in text and width(f"{title}: {text}") <= look.room(0):
            yield [(f"{title}: {text}", style)]
            return
        yield [(title, style)]
        for line in indented(change.message.data, look._replace(full=True)):
            yield [(plain(line), style)]
        return
    rows = [_row(line, color=color) for line in _near(change.spans(look), look, context)]
    if len(rows) == 1 and width(f"{title}: {plain(rows[0])}") <= look.room(0):
        yield [(f"{title}: ", style), *rows[0]]
        return
    yield [(title, style)]
    for row in rows:
        yield from wrapped(row, look.columns, "    ")


def _near(diff: list[Span], look: Look, context: int) -> Iterator[list[Span] | Skipped]:
    """Yield the lines around changes. Long lines are shortened to the text near a change."""
    most = max(context, 1) * max(look.room(4), 20)
    for line in hunks(diff, context):
        if isinstance(line, Skipped):
            yield line
            continue
        shortened = []
        for index, span in enumerate(line):
            inner = span.text
            if span.kind == "equal" and len(inner) > 2 * most + 40 and len(line) > 1:
                first = "" if index == 0 else inner[:most]
                last = "" if index == len(line) - 1 else inner[-most:]
                inner = f"{first} [... {count(len(inner) - len(first) - len(last), 'character')} ...] {last}"
            shortened.append(Span(span.kind, inner))
        yield shortened


def _row(line: list[Span] | Skipped, *, color: bool) -> list[str | tuple[str, str]]:
    """Return a line of a word diff; without colour, removed and added text is in brackets."""
    if isinstance(line, Skipped):
        return [(f"... {count(line.lines, 'equal line')}", "quiet")]
    row: list[str | tuple[str, str]] = []
    for kind, text in line:
        # An added or removed line break would be invisible.
        shown = (
            clean(text[:-1] + ("\\n" if kind != "equal" and not text[:-1] else ""))
            if text[-1:] == "\n"
            else clean(text)
        )
        before, after = ("", "") if color else _MARKS[kind]
        if shown:
            row.append(shown if kind == "equal" else (f"{before}{shown}{after}", kind))
    return row


def stat(listed: Iterable[Change], look: Look) -> Iterator[Line]:
    """Yield how many words of each message changed, and the sum."""
    removed = added = messages = 0
    for change in listed:
        if change.mark == "<":
            continue
        gone, new = count_words(change.spans(look))
        removed, added, messages = removed + gone, added + new, messages + 1
        title = cut(f"{change.mark} {change.title}", 30)
        sum_ = f"{gone + new:,}".rjust(7)
        bar = min(gone + new, look.room(45))
        plus = round(bar * new / max(gone + new, 1))
        yield [f"{title:<30} |{sum_} ", ("+" * plus, "add"), ("-" * (bar - plus), "remove")]
    yield f"{count(messages, 'message')}, {count(added, 'word')} added, {count(removed, 'word')} removed"


def stat_of(diff: tape.Diff, aligned: Aligned | None, look: Look) -> Iterator[Line]:
    """Yield the words that changed by message, of one family or of two tapes side by side."""
    return stat(_listed(diff) if aligned is None else _paired(aligned.changes, look), look)


def _anchored(diff: tape.Diff, look: Look) -> Iterator[Line]:
    for anchor in diff.anchored:
        summary = f": {clean(anchor.summary)}" if anchor.summary else ""
        for number, line in enumerate(f"@ {flat(anchor.name)}{summary}".split("\n")):
            yield from wrapped([(line, "change")], look.columns, "    " if number else "")
