"""A model that says what it was told to: the Messages API on the loopback interface, for examples and tests.

``with ScriptedAnthropic(reply) as model`` serves until the end of the block; ``model.environment`` makes the Claude
Agent SDK use it. ``reply`` is given each request and returns content blocks.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

__all__ = ["ScriptedAnthropic", "asked", "text", "tool_use"]

Block = dict[str, Any]
Reply = Callable[[dict[str, Any]], list[Block]]


def text(said: str) -> Block:
    """Return a block of text."""
    return {"type": "text", "text": said}


def tool_use(id: str, name: str, given: dict[str, Any]) -> Block:
    """Return a call of a tool."""
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def asked(request: dict[str, Any], words: str) -> bool:
    """Tell whether the words stand in what the user or a tool said since the model spoke last."""
    behind = 0
    for place, message in enumerate(request["messages"]):
        behind = place + 1 if message["role"] == "assistant" else behind
    return words in json.dumps(request["messages"][behind:])


class ScriptedAnthropic:
    """The server, and the requests that it was sent."""

    def __init__(self, reply: Reply) -> None:
        self.requests: list[dict[str, Any]] = []
        self._reply = reply
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if "count_tokens" in self.path:
                    return self._send("application/json", json.dumps({"input_tokens": 1}))
                return self._send("text/event-stream", "".join(model.stream(request)))

            def _send(self, kind: str, body: str) -> None:
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def stream(self, request: dict[str, Any]) -> Iterator[str]:
        """Yield the events of one response."""
        self.requests.append(request)
        blocks = self._reply(request)
        message = {"id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "model": request["model"]}
        usage = {"input_tokens": 10, "output_tokens": 1}
        yield _event("message_start", message={**message, "content": [], "stop_reason": None, "usage": usage})
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                begin, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                part = json.dumps(block["input"])
                begin, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": part}
            yield _event("content_block_start", index=index, content_block=begin)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
        yield _event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 5})
        yield _event("message_stop")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What the SDK's program has to find in its environment: this model, and nobody else."""
        return {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{self._server.server_port}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }


def _event(name: str, **data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n"
