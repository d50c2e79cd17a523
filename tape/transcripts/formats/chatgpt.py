"""ChatGPT: the ``conversations.json`` of a data export, a list of conversations, each a tree of messages. Pure.

Every branch is kept. The one that the conversation continued on (``current_node``) is written last, which makes it the
active path. A message to a tool is a tool call, and the tool's output is its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tape.errors import ImportFailed
from tape.transcripts.formats.conversations import each_value, reasoning, tool_call, without
from tape.transcripts.formats.lines import Reading, digest, nonblank, stamp
from tape.transcripts.steps import Event, Message, Start, Step, Title

__all__ = ["parse"]

Body = dict[str, Any]


def parse(lines: Iterable[bytes], reading: Reading) -> Iterator[Step]:
    """Read an export."""

    def steps(line: int, where: str, value: Body) -> Iterator[Step]:
        mapping = value.get("mapping")
        if not isinstance(mapping, dict):
            raise ImportFailed(line, f"{where} is not a ChatGPT conversation: it has no mapping")
        id = nonblank(value.get("conversation_id")) or nonblank(value.get("id"))
        yield Start(line=line, id=id, part=None if id else digest(value)[:8], agent="chatgpt", meta={})
        title = nonblank(value.get("title"))
        if title is not None:
            yield Title(line=line, key=f"chatgpt:title/{digest(title)}", name=title)
        yield from _Tree(line, mapping, value.get("current_node")).steps()
        rest = without(value, "mapping")
        yield Event(line=line, key=f"chatgpt:{digest(rest)}", name="chatgpt.conversation", data=rest)

    return each_value(lines, reading, steps)


class _Tree:
    """The messages of one conversation."""

    def __init__(self, line: int, mapping: Body, current: Any) -> None:
        self._line = line
        self._nodes = {id: node for id, node in mapping.items() if isinstance(node, dict)}
        self._main = self._path(current)
        self._behind: dict[str, str | None] = {}
        """For every node that was read, the key of the message that a child of it follows."""
        self._calls: dict[str, str] = {}
        """The tool call that a node made."""

    def steps(self) -> Iterator[Step]:
        """Read every node after its parent, those of the path last."""
        for id in self._order():
            yield from self._node(id, self._nodes[id])

    def _path(self, current: Any) -> set[str]:
        """Return the nodes from the root to the one that the conversation ends with."""
        path: set[str] = set()
        while isinstance(current, str) and current in self._nodes and current not in path:
            path.add(current)
            current = self._nodes[current].get("parent")
        return path

    def _order(self) -> Iterator[str]:
        children: dict[str | None, list[str]] = {}
        for id, node in self._nodes.items():
            parent = node.get("parent")
            known = isinstance(parent, str) and parent in self._nodes and parent != id
            children.setdefault(parent if known else None, []).append(id)
        done: set[str] = set()
        # A cycle of parents has no root, so its first node is used as one.
        roots = sorted(children.get(None, []), key=lambda root: root in self._main)
        for root in (*roots, *self._nodes):
            waiting = [root]
            while waiting:
                id = waiting.pop()
                if id in done:
                    continue
                done.add(id)
                yield id
                # This is a stack, so the path goes in first and comes out last.
                below = children.get(id, [])
                waiting += [child for child in below if child in self._main]
                waiting += [child for child in reversed(below) if child not in self._main]

    def _node(self, id: str, node: Body) -> Iterator[Step]:
        parent = node.get("parent")
        behind = self._behind.get(parent) if isinstance(parent, str) else None
        self._behind[id] = behind
        message = node.get("message")
        if not isinstance(message, dict):
            return
        key, at = f"chatgpt:{id}", stamp(message.get("create_time"))
        author_field = message.get("author")
        author = author_field if isinstance(author_field, dict) else {}
        body = self._body(id, parent, message, author)
        if body is None:
            yield Event(line=self._line, key=key, name="chatgpt.message", data=message, at=at)
            return
        self._behind[id] = key
        content = message.get("content")
        raw_content = content if "tool_calls" in body or body.get("type") or not isinstance(content, dict) else None
        meta = without(message, "content", "id") if raw_content is None else without(message, "id")
        actor = nonblank(author.get("role")) or "user"
        yield Message(line=self._line, key=key, parent=behind, message=body, id=id, meta=meta, actor=actor, at=at)

    def _body(self, id: str, parent: Any, message: Body, author: Body) -> Body | None:
        """Return a message as a chat message, or None for one without content."""
        role, recipient = nonblank(author.get("role")) or "user", nonblank(message.get("recipient")) or "all"
        content = message.get("content")
        content = content if isinstance(content, dict) else {"content_type": "text", "parts": [content]}
        thoughts = content.get("thoughts")
        if isinstance(thoughts, list):
            texts = [
                nonblank(thought.get("content")) or nonblank(thought.get("summary"))
                for thought in thoughts
                if isinstance(thought, dict)
            ]
            return reasoning(*(text for text in texts if text is not None)) if any(texts) else None
        text_or_parts = _text_or_parts(content)
        if role == "assistant" and recipient != "all":
            self._calls[id] = id
            text = text_or_parts if isinstance(text_or_parts, str) else msgspec.json.encode(text_or_parts).decode()
            return {"role": role, "content": None, "tool_calls": [tool_call(id, recipient, {"input": text})]}
        if not text_or_parts:
            return None
        if role == "tool":
            call = self._calls.get(parent) if isinstance(parent, str) else None
            if call is not None:
                return {"role": "tool", "tool_call_id": call, "content": text_or_parts}
            # A tool may send several messages, and only the first answers the call.
            return {"role": "user", "name": nonblank(author.get("name")) or "tool", "content": text_or_parts}
        return {"role": role, "content": text_or_parts}


def _text_or_parts(content: Body) -> Any:
    """Return a content as a text, or as parts if there is more than text."""
    parts = content.get("parts")
    if not isinstance(parts, list):
        for name in ("text", "result", "content", "user_instructions"):
            text = nonblank(content.get(name))
            if text is not None:
                return text
        return ""
    if all(isinstance(part, str) or part is None for part in parts):
        return "".join(part for part in parts if part is not None)
    return [
        {"type": "text", "text": part if isinstance(part, str) else msgspec.json.encode(part).decode()}
        for part in parts
        if part is not None and part != ""
    ]
