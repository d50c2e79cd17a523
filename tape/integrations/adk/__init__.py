"""Google ADK: sessions and memories on tapes, for a ``Runner`` as it is.

A session is a tape of its user: events with content are messages of its conversation, other events stand beside them,
state is in slots. Everything that ADK has recorded comes back as it was.
"""

from tape.integrations.adk.memory import TapeMemoryService
from tape.integrations.adk.sessions import TapeSessionService

__all__ = ["TapeMemoryService", "TapeSessionService"]
