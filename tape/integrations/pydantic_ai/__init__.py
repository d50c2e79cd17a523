"""Pydantic AI: a ``ConversationStore`` that keeps conversations on tapes, as messages, branches and forks.

``from tape.integrations.pydantic_ai import TapeConversationStore`` needs ``pip install 'tape-store[pydantic-ai]'``. The
step store of its harness is in ``tape.integrations.pydantic_ai_harness``, with an extra of its own, because the harness
asks for one release of Pydantic AI, which may not have conversation stores yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tape.integrations.pydantic_ai.conversations import TapeConversationStore

__all__ = ["TapeConversationStore"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from tape.integrations.pydantic_ai import conversations

        return getattr(conversations, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
