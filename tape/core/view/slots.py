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
"""The prefix of a slot of state; its own name follows."""
BLOCK = "block:"
"""The prefix of a block's slot; its label follows."""
COMPACTING = "compacting:"
"""The prefix of the slot with the progress of a lane's compaction; the lane follows."""
ASKED, DECIDED, LEASE = "~asked:", "~decided:", "~lease:"
"""The prefixes of the slots with an open request, a decision and a lease. They sort after all slots that a context or
a merge reads."""
PROMPT, USAGE, STATUS, NAME, LABELS = "prompt", "usage", "status", "name", "labels"


def beginning_with(prefix: str) -> tuple[str, str]:
    """Return the range of the names with a prefix: the first of them, and the first name after them."""
    # The last character of Unicode has no successor, and surrogates cannot be stored.
    stem = prefix.rstrip(chr(sys.maxunicode))
    after = ord(stem[-1]) + 1
    return prefix, stem[:-1] + chr(0xE000 if after == 0xD800 else after)


BLOCKS_AND_PROMPT = (BLOCK, beginning_with(PROMPT)[1])
"""The range of names with the blocks and the prompt, which are read at once. Some other slots lie between them."""
MERGED = (BLOCK, beginning_with(USAGE)[1])
"""The range of names with all that a merge applies: blocks, state and usage. Some other slots lie between them."""
