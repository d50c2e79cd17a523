"""A client of ``tape mcp``: it finds what an agent did, and reads it as of an earlier moment.

Run it: python examples/integrations/mcp_client.py. It needs ``pip install 'tape-store[cli,mcp]'``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

import tape


async def look(file: Path) -> None:
    """Start the server as an editor or an assistant does, and ask it."""
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "tape.command", "--store", str(file.resolve()), "mcp"]
    )
    async with Client(stdio_client(command)) as client:
        found: Any = (await client.call_tool("search", {"query": "train"})).structured_content
        for hit in found["items"]:
            print(f"{hit['tape']} seq {hit['seq']}: {hit['snippet']}")
        (content,) = (await client.read_resource("tape://trip@2")).contents
        print(f"at seq 2: {[message['data']['content'] for message in json.loads(content.text)['messages']]}")
        refused = await client.call_tool("append", {"tape": "trip", "content": "By bus!"})
        print(f"a write: {refused.content[0].text}")


def main(folder: Path) -> None:
    """Make a store, and let a client look into it."""
    with tape.open(folder / "agent.db") as store:
        trip = store.create("trip")
        trip.append(role="user", content="How do I get to Lisbon?")
        trip.append(role="assistant", content="By the night train.")
    asyncio.run(look(folder / "agent.db"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
