"""Claude Code's queue: prompts that were typed while the model was working. Pure.

A prompt enters the queue (``enqueue``) and leaves it once: into the running turn (``remove``, with an attachment of
type ``queued_command`` in newer files), into a turn of its own (``dequeue``, with a user's record), or back into the
editor (``popAll``). A prompt that the model read becomes a message even if no other record contains it.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tape.transcripts.formats.lines import nonblank

__all__ = ["Queue", "Queued", "prompt_text"]

_ABSORBED = "absorbed_mid_turn"


class Queued(Struct):
    """A prompt in the queue, or on its way from there to the model."""

    key: str
    content: Any
    record: dict[str, Any]
    taken: bool = False


class Queue:
    """The prompts that no other record contains so far."""

    def __init__(self) -> None:
        self._prompts: list[Queued] = []
        self._attaches = False
        """Whether the program that writes this file writes attachments."""

    def note(self, key: str, record: dict[str, Any]) -> None:
        """Add a record of the queue."""
        operation, content = record.get("operation"), record.get("content")
        if operation == "enqueue":
            self._prompts.append(Queued(key, content, record))
        elif operation == "dequeue":
            self._take(None)
        elif operation == "remove":
            prompt = self._take(prompt_text(content))
            reason = nonblank(record.get("reason"))
            if prompt is not None and (reason or (_ABSORBED if not self._attaches else "")) != _ABSORBED:
                self._prompts.remove(prompt)
        elif operation == "popAll":
            self._prompts = [prompt for prompt in self._prompts if prompt.taken]

    def attached(self) -> None:
        """Note that the file has attachments, so that a prompt removed without one was withdrawn."""
        self._attaches = True

    def recorded(self, content: Any) -> None:
        """Note that a record contains these prompts."""
        text = prompt_text(content)
        if text is None:
            return
        equal = next((prompt for prompt in self._prompts if prompt_text(prompt.content) == text), None)
        if equal is not None:
            self._prompts.remove(equal)
        else:
            # Several prompts that were taken together are in one record.
            self._prompts = [
                prompt
                for prompt in self._prompts
                if not prompt.taken or (prompt_text(prompt.content) or "") not in text
            ]

    def absorbed(self) -> list[Queued]:
        """Return the prompts that the model has read by now, and forget them."""
        read = [prompt for prompt in self._prompts if prompt.taken]
        if read:
            self._prompts = [prompt for prompt in self._prompts if not prompt.taken]
        return [prompt for prompt in read if prompt_text(prompt.content) is not None]

    def remaining(self) -> list[Queued]:
        """Return the prompts that are still in the queue."""
        return [prompt for prompt in self._prompts if prompt_text(prompt.content) is not None]

    def _take(self, text: str | None) -> Queued | None:
        waiting = [prompt for prompt in self._prompts if not prompt.taken]
        named = [prompt for prompt in waiting if text is not None and prompt_text(prompt.content) == text]
        prompt = next(iter(named or waiting), None)
        if prompt is not None:
            prompt.taken = True
        return prompt


def prompt_text(content: Any) -> str | None:
    """Return the text of a prompt, which is a text or a list of blocks; None if it has none."""
    if isinstance(content, list):
        texts = [block.get("text") for block in content if isinstance(block, dict)]
        content = "\n".join(text for text in texts if isinstance(text, str))
    return content.strip() if nonblank(content) else None
