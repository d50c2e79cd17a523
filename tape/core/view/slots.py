"""The names of slots: named facts of a tape that hold until they are set again."""

from __future__ import annotations

__all__ = [
    "BLOCK",
    "BLOCKS_AND_PROMPT",
    "COMPACTING",
    "LABELS",
    "MERGED",
    "NAME",
    "PROMPT",
    "STATE",
    "STATUS",
    "USAGE",
    "beginning_with",
]

STATE = "state:"
"""How the name of a slot of state begins; its own name follows."""
BLOCK = "block:"
"""How the name of a block's slot begins; its label follows."""
COMPACTING = "compacting:"
"""How the name of the slot begins that tells how a compaction of a lane goes; the lane follows."""
PROMPT, USAGE, STATUS, NAME, LABELS = "prompt", "usage", "status", "name", "labels"


def beginning_with(prefix: str) -> tuple[str, str]:
    """Return the range of the names that begin so: the first of them, and the first name after them."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


BLOCKS_AND_PROMPT = (BLOCK, beginning_with(PROMPT)[1])
"""The range of names with the blocks and the prompt, which are read at once. Some other slots lie between them."""
MERGED = (BLOCK, beginning_with(USAGE)[1])
"""The range of names with all that a merge takes over: blocks, state and usage. Some other slots lie between them."""
