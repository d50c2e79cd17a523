"""What a transcript says, in the order in which it says it: the steps that its import takes. Pure.

A step names its record by a key that is the same whenever the same record is read, also from a file that has grown
since. Parents are named by key. ``lane`` is empty for the conversation itself and otherwise names a side
conversation, such as that of a subagent.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

__all__ = ["Branch", "Event", "ImportProblem", "Message", "Restart", "Start", "Step", "Title", "Used"]


class ImportProblem(Struct, frozen=True):
    """A line of a transcript that could not be taken as it is, and why."""

    line: int
    reason: str


class Start(Struct, kw_only=True):
    """A conversation begins: every step up to the next start belongs to it."""

    line: int
    id: str | None = None
    """The id of the session or thread, if the transcript tells it."""
    part: str | None = None
    """What tells this conversation from the first one of the file."""
    agent: str | None = None
    meta: dict[str, Any]


class Message(Struct, kw_only=True):
    """A message behind another, or (None) a new root."""

    line: int
    key: str
    parent: str | None
    message: dict[str, Any]
    id: str | None = None
    meta: dict[str, Any]
    actor: str | None = None
    lane: str = ""
    at: int | None = None
    """When it happened: microseconds since 1970."""


class Event(Struct, kw_only=True):
    """A record that is no message."""

    line: int
    key: str
    name: str
    data: Any
    lane: str = ""
    at: int | None = None


class Restart(Struct, kw_only=True):
    """What a model sees begins anew behind a message: with a summary, or with the messages that follow."""

    line: int
    key: str
    parent: str | None
    name: str
    summary: str | None = None
    meta: dict[str, Any]
    lane: str = ""
    at: int | None = None


class Used(Struct, kw_only=True):
    """Tokens that a model call took. ``input_tokens`` counts all of the input, cached or not."""

    line: int
    key: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    model: str | None = None
    lane: str = ""
    at: int | None = None


class Title(Struct, kw_only=True):
    """The conversation is given a name."""

    line: int
    key: str
    name: str


class Branch(Struct, kw_only=True):
    """A side conversation begins: at the message with the key ``parent``, or where its tape shows that it was started.

    ``agent`` and ``prompt`` are the name and the first words of a subagent, by which that message is found.
    """

    line: int
    lane: str
    parent: str | None = None
    agent: str | None = None
    prompt: str | None = None


Step = Start | Message | Event | Restart | Used | Title | Branch
