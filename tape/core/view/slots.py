"""The names of slots: named facts of a tape that hold until they are set again."""

from __future__ import annotations

import sys

__all__ = [
    "ASKED",
    "BLOCK",
    "BLOCKS_AND_PROMPT",
    "COMPACTING",
    "DECIDED",
    "LABELS",
    "LEASE",
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
ASKED, DECIDED, LEASE = "~asked:", "~decided:", "~lease:"
"""How the names of the slots begin that hold an open request, a decision and a lease. They sort behind all that is read
for a context or a merge."""
PROMPT, USAGE, STATUS, NAME, LABELS = "prompt", "usage", "status", "name", "labels"


def beginning_with(prefix: str) -> tuple[str, str]:
    """Return the range of the names that begin so: the first of them, and the first name after them."""
    # Nothing comes after the last character of all, and none of the surrogates can be stored.
    kept = prefix.rstrip(chr(sys.maxunicode))
    after = ord(kept[-1]) + 1
    return prefix, kept[:-1] + chr(0xE000 if after == 0xD800 else after)


BLOCKS_AND_PROMPT = (BLOCK, beginning_with(PROMPT)[1])
"""The range of names with the blocks and the prompt, which are read at once. Some other slots lie between them."""
MERGED = (BLOCK, beginning_with(USAGE)[1])
"""The range of names with all that a merge takes over: blocks, state and usage. Some other slots lie between them."""
