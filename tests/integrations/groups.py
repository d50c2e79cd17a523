"""The groups of tests that need a framework: what each imports, and how its packages are installed.

A group is a folder beside this file and an extra of the same name in pyproject.toml. It is left out where its packages
are not installed. ``python -m tests.integrations NAME`` installs them in an environment of their own and runs it there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

__all__ = ["GROUPS", "Group", "group_of", "told"]

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Group:
    """The tests of one adapter."""

    name: str
    """The folder, and the module under ``tape.integrations``."""
    needs: tuple[str, ...]
    """What it imports."""
    also: tuple[str, ...] = ()
    """What its tests install besides the extra: the framework's own backend, a conformance kit."""
    python: tuple[int, int] = (3, 11)
    npm: tuple[str, ...] = ()
    """The packages of npm that its tests can use, where there is npm; the first has a program of the same name."""
    npm_variable: str = ""
    """The environment variable in which the tests are told the command of that program."""

    @property
    def extra(self) -> str:
        return self.name.replace("_", "-")

    @property
    def written(self) -> bool:
        """Whether there are tests yet."""
        return any((HERE / self.name).glob("test_*.py"))

    @property
    def lacks(self) -> str | None:
        """What keeps it from running here, or None."""
        if sys.version_info < self.python:
            return f"Python {self.python[0]}.{self.python[1]}"
        return next((name for name in self.needs if not _there(name)), None)


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


_ALL = [
    Group("claude_agent", ("claude_agent_sdk",)),
    Group(
        "openai_agents",
        ("agents", "agents.memory"),
        also=("openai-agents[sqlalchemy,encrypt]>=0.24", "aiosqlite>=0.22"),
    ),
    Group("pydantic_ai", ("pydantic_ai.conversation_store",)),
    # Beside it, not with it: the harness asks for one release of Pydantic AI, which may be an older one.
    Group("pydantic_ai_harness", ("pydantic_ai_harness.step_persistence",)),
    Group(
        "langgraph",
        ("langgraph.graph", "langgraph.checkpoint.base", "langgraph.checkpoint.conformance"),
        also=("langgraph-checkpoint-conformance", "langgraph-checkpoint-sqlite>=3.1"),
    ),
    Group("adk", ("google.adk",), also=("google-adk[db]>=2.13",)),
    Group("langchain", ("langchain_core", "langchain.agents"), also=("langchain>=1.2",)),
    Group("llama_index", ("llama_index.core",)),
    Group("agent_framework", ("agent_framework",)),
    Group("ag2", ("ag2",)),
    Group("strands", ("strands",)),
    Group("bub", ("bub",), python=(3, 12)),
    Group("otel", ("opentelemetry.util.genai", "opentelemetry.sdk")),
    Group(
        "mcp",
        ("mcp.server.mcpserver",),
        # The suite needs a newer Node than most machines have.
        npm=("@modelcontextprotocol/conformance@0.1.16", "node@22"),
        npm_variable="TAPE_MCP_CONFORMANCE",
    ),
    Group("temporal", ("temporalio.converter",)),
    Group("httpx", ("httpx", "httpx2"), also=("httpx>=0.28", "httpx2>=2")),
]
GROUPS = {group.name: group for group in _ALL}


def group_of(path: str) -> Group | None:
    """Return the group that a test file or a node id belongs to."""
    behind = path.replace("\\", "/").rpartition("integrations/")[2]
    return GROUPS.get(behind.partition("/")[0])


def told(ran: Iterable[str]) -> list[str]:
    """Return what a test run says at its end: the groups that it ran, and those that it left out."""
    done = [group.name for group in _ALL if group.name in set(ran)]
    lines = [f"integrations run: {', '.join(done) or 'none'}"]
    out = [f"{group.name} (no {lack})" for group in _ALL if group.written and (lack := group.lacks) is not None]
    if out:
        lines.append(f"integrations left out: {', '.join(out)}")
        lines.append("install and run one: python -m tests.integrations NAME (pip install 'tape-store[NAME]')")
    return lines
