"""LangGraph on tapes: ``TapeSaver`` keeps the checkpoints of graphs, ``TapeStore`` their long-term memory.

``pip install 'tape-store[langgraph]'``. A thread is a tape. Its messages are the messages of the graph, so that search,
context, branches and ``tape cat`` work on it; everything else of a checkpoint is an event. ``records`` tells which.
"""

from tape.integrations.langgraph.saver import TapeSaver
from tape.integrations.langgraph.store import TapeStore

__all__ = ["TapeSaver", "TapeStore"]
