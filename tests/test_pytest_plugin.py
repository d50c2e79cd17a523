"""The pytest plugin: tests of agents against recorded runs, and how recordings are made and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tape
from tape.runs.recording import list_runs

ROOT = Path(__file__).resolve().parent.parent

TESTS = """
import os

import pytest

made = []


def ask(question):
    made.append(question)
    return f"{question}? {os.environ['SALT']}"


def agent(run, *questions):
    model = run.model(ask)
    return [model(question) for question in questions]


@pytest.mark.tape("runs.db", "checkout")
def test_checkout(tape_run):
    asked = os.environ.get("ASKED", "a b").split()
    answers = agent(tape_run, *asked)
    assert os.environ.get("WRONG") is None
    assert answers == [f"{question}? {os.environ['WANTED']}" for question in asked]


@pytest.mark.tape("runs.db", "cases")
@pytest.mark.parametrize("case", ["x", "y"])
def test_cases(tape_run, case):
    assert agent(tape_run, case)[0].startswith(case)


def test_without():
    assert made is not None
"""

SCRIPT = """
import json
import os
import sys

import pytest


class Outcomes:
    def __init__(self):
        self.seen = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.seen[report.nodeid.partition("::")[2]] = [report.when, report.outcome, str(report.longrepr)[-900:]]


for name, environment, arguments in json.loads(sys.argv[1]):
    before = dict(os.environ)
    os.environ.update(environment)
    outcomes = Outcomes()
    code = pytest.main(["-q", "-p", "tape.pytest_plugin", "-p", "no:cacheprovider", *arguments], plugins=[outcomes])
    os.environ.clear()
    os.environ.update(before)
    for module in [name for name in sys.modules if name.startswith("test_agent")]:
        del sys.modules[module]
    print("OUTCOME", json.dumps([name, int(code), outcomes.seen]), flush=True)
"""


def outcomes(folder: Path, *sessions: tuple[str, dict[str, str], list[str]]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Run pytest in a folder, once for each session; returns exit code and outcomes by name of the session."""
    (folder / "test_agent.py").write_text(TESTS)
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "SALT": "one", "WANTED": "one"}
    environment.pop("CI", None)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(sessions)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert len(lines) == len(sessions), done.stdout + done.stderr
    return {name: (code, seen) for name, code, seen in lines}


def test_record_replay_and_update(tmp_path: Path) -> None:
    """What is missing is recorded when that is asked for, replayed without a call, and fails with what differs."""
    later = {"SALT": "two"}
    seen = outcomes(
        tmp_path,
        ("nothing recorded", {}, []),
        ("in CI", {"CI": "true"}, ["--tape=record"]),
        ("a failing test records nothing", {"WRONG": "1"}, ["--tape=record", "-k", "checkout"]),
        ("record", {}, ["--tape=record"]),
        ("replay", later, []),
        ("record again", later, ["--tape=record"]),
        ("an argument changed", {**later, "ASKED": "a c"}, ["-k", "checkout"]),
        ("a call is unused", {**later, "ASKED": "a"}, ["-k", "checkout"]),
        ("update", {**later, "WANTED": "two"}, ["--tape=update"]),
        ("replay the update", {"SALT": "three", "WANTED": "two"}, []),
    )
    codes = {name: code for name, (code, _) in seen.items()}
    assert codes == {
        "nothing recorded": 1,
        "in CI": 4,
        "a failing test records nothing": 1,
        "record": 0,
        "replay": 0,
        "record again": 0,
        "an argument changed": 1,
        "a call is unused": 1,
        "update": 0,
        "replay the update": 0,
    }
    assert "pytest --tape=record" in seen["nothing recorded"][1]["test_checkout"][2]
    assert seen["nothing recorded"][1]["test_without"][1] == "passed"
    for name, kind in (("an argument changed", "request_changed"), ("a call is unused", "unused")):
        when, outcome, text = seen[name][1]["test_checkout"]
        assert (when, outcome) == ("call", "failed")
        assert kind in text
    with tape.open(tmp_path / "runs.db", read_only=True) as store:
        assert sorted(info.id for info in store.list()) == ["cases[x]", "cases[y]", "checkout"]
        statuses = [info.status for info in list_runs(store.tape("checkout"))]
    assert statuses == ["completed", "completed", "failed"]


def test_it_costs_nothing_where_it_is_not_used() -> None:
    """Loading the plugin loads neither the store nor SQLAlchemy; pytest finds it by its entry point."""
    code = "import sys, tape.pytest_plugin; print([m for m in sys.modules if m.startswith(('sqlalchemy', 'tape.'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['tape.pytest_plugin']"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"tape": "tape.pytest_plugin"}


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_ci_may_be_set_to_nothing(value: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> None:
    """``CI`` that says no is no CI."""
    from tape import pytest_plugin

    class Config:
        def addinivalue_line(self, *_: str) -> None: ...

        def getoption(self, *_: str, **__: str) -> str:
            return "record"

    monkeypatch.setenv("CI", value)
    pytest_plugin.pytest_configure(Config())  # type: ignore[arg-type]
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.UsageError):
        pytest_plugin.pytest_configure(Config())  # type: ignore[arg-type]
