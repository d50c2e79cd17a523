"""Stores for agent frameworks, each a thin face over tapes, in a module and an extra of its own.

``from tape.integrations.claude_agent import TapeSessionStore`` needs ``pip install 'tape-store[claude-agent]'``. Every
adapter takes a ``Store``, an ``AsyncStore`` or a URL, and uses nothing of them but public names.
"""
