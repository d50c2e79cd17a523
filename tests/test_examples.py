"""Every program in examples/ runs as it stands, and tells what its page says it tells."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from support.backends import Backend

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

TOLD = {
    "agent_loop.py": [
        "the program dies here; on the tape: ['user', 'assistant', 'tool']",
        "  tool       error: KeyError: 'boat'",
        "  assistant  I found: 49 EUR, error: KeyError: 'boat', 80 EUR.",
        "the answer was given on 5 messages, 2 model calls in all",
        "verified: True",
    ],
    "fan_out.py": [
        "  tool       Two museums are worth it.",
        "  tool       failed: the weather service does not answer",
        "  trip/hotels    merged     3 messages of its own",
        "  trip/weather   discarded  2 messages of its own",
        "2 answers cite the fork they came from; verified: True",
    ],
    "app_transaction.py": [
        "req-1: order 1",
        "req-1: order 1",
        "req-2: unicorn is sold out",
        "orders: [('req-1', 'lamp')]",
        "tape: ['I would like a lamp.', 'Order 1 is placed.']",
        "verified: True",
    ],
    "recorded_agent.py": [
        "recorded: 15 calls, 17 made in all",
        "again: 15 answers from the tape, 0 calls made, same answer: True",
        "another prompt: request_changed at /messages/0/content",
        "the tools today: ['result_changed'], of booking nothing: True",
        "live from call 9: 8 from the tape, 7 made, on a fork",
        "and that one again: 15 from the tape, ok: True",
    ],
    "replay_failed_run.py": [
        "3. what the model saw before seq 6: 'order 17 kettle\\norder 18 laptop (other account)'",
        "   what stands there today: 'order 17 kettle'",
        '4. the same step with a clean listing: refund {"order": 17}',
        "5. evidence: 14 entries of 2 tapes, verified: True",
        "   and read elsewhere: 14 entries",
    ],
}


def run(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run an example in this process as ``python examples/NAME`` does."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


class TestExamples:
    @pytest.mark.parametrize("name", TOLD)
    def test_it_runs(
        self, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """The example runs by itself and prints these lines, in this order."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", None)
        run(name, monkeypatch)
        printed = iter(capsys.readouterr().out.splitlines())
        missing = [line for line in TOLD[name] if line not in printed]
        assert missing == []

    @pytest.mark.blank
    @pytest.mark.parametrize("name", ["agent_loop.py", "fan_out.py", "replay_failed_run.py"])
    def test_it_runs_on_a_database_of_yours(
        self, name: str, backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Given a URL, the example runs there: the same lines on SQLite and on PostgreSQL."""
        address = backend.address
        if backend.schema is not None:
            # An example knows nothing of schemas: the connection's own search path gives it one.
            with backend.raw() as connection:
                connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{backend.schema}"')
            glue = "&" if "?" in address else "?"
            address = f"{address}{glue}options=-csearch_path%3D{backend.schema}"
        run(name, monkeypatch, address)
        printed = iter(capsys.readouterr().out.splitlines())
        assert [line for line in TOLD[name] if line not in printed] == []

    def test_every_example_is_run(self) -> None:
        """No example is left out of this test."""
        assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(TOLD)
