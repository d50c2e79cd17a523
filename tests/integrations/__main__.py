"""Install a framework in an environment of its own and run the tests of its adapter there.

``python -m tests.integrations langgraph adk`` runs two groups, without a name all of them. The adapter is also checked
by mypy against the framework's own types. Two groups run at a time (``--jobs``); each shows its output when it is over.
The end says which groups passed, which failed, and which were left out and why: they could not be installed, or had not
begun when the time was over. Only a failed one makes the status 1, or with ``--strict`` any that was left out. A group
that does not end in its time is ended, and has failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .environments import ROOT, NotInstalled, Shared, install, install_npm, share
from .groups import GROUPS, Group

PASSED, FAILED, LEFT_OUT = "passed", "FAILED", "left out"


def command() -> argparse.ArgumentParser:
    """Return what the command line may say."""
    parser = argparse.ArgumentParser(prog="python -m tests.integrations", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="NAME", help=", ".join(GROUPS))
    parser.add_argument("--minutes", type=float, default=60, help="for all groups; what has not begun then is left out")
    parser.add_argument("--install-minutes", type=float, default=8, help="for installing one group")
    parser.add_argument("--group-minutes", type=float, default=15, help="for the tests of one group, and for its types")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="groups that run at a time")
    parser.add_argument("--venvs", type=Path, help="keep the environments in this folder, and use them again")
    parser.add_argument("--strict", action="store_true", help="fail when a group cannot be installed, too")
    return parser


class Groups:
    """Runs groups beside each other, and prints what each of them said as one piece."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._install_seconds = options.install_minutes * 60
        self._seconds = options.group_minutes * 60
        self._until = time.monotonic() + options.minutes * 60
        self._printing = threading.Lock()
        # The repository's own settings, but for those that leave the frameworks alone.
        self._settings = folder / "mypy.toml"
        text = (ROOT / "pyproject.toml").read_text("utf-8")
        self._settings.write_text(text.replace('follow_imports = "skip"', 'follow_imports = "silent"'), "utf-8")
        self._shared: Shared = share(folder / "shared", self._install_seconds)
        # What mypy finds out about tape and SQLAlchemy is the same for all groups.
        self._known = folder / "known"
        self._mypy(self._shared.python, self._known, "-p", "tape.core", "-m", "tape", "-m", "tape.integrations.opening")

    def run(self, group: Group) -> str:
        """Install a group, run its tests, and return the verdict."""
        began = time.monotonic()
        if began > self._until:
            return f"{LEFT_OUT}: the time was over before it could begin"
        seconds = min(self._install_seconds, self._until - began)
        try:
            python = install(group, self._folder / group.name, self._shared, seconds)
        except NotInstalled as error:
            return f"{LEFT_OUT}: {error}"
        environment, said = {}, ""
        if group.npm:
            try:
                environment = install_npm(group, self._folder / f"{group.name}-npm", seconds)
            except NotInstalled as error:
                said = f"npm: {error}\n"
        installed = time.monotonic()
        known = self._folder / f"{group.name}-mypy"
        shutil.copytree(self._known, known, dirs_exist_ok=True)
        typed, types = self._mypy(python, known, "-p", f"tape.integrations.{group.name}")
        tests: list[str | Path] = [python, "-m", "pytest", f"tests/integrations/{group.name}"]
        tested, results = run(tests, self._seconds, environment)
        with self._printing:
            print(f"-- {group.name}: installed in {installed - began:.0f} s, ran {time.monotonic() - installed:.0f} s")
            print(f"{said}{types}{results}", flush=True)
        return PASSED if typed and tested else FAILED

    def _mypy(self, python: Path, known: Path, *what: str) -> tuple[bool, str]:
        return run([python, "-m", "mypy", "--config-file", self._settings, "--cache-dir", known, *what], self._seconds)


def run(command: list[str | Path], seconds: float, more: dict[str, str] | None = None) -> tuple[bool, str]:
    """Run a command; returns whether it succeeded, and what it said. Past its time it is ended, with its children."""
    # What the tests import of a framework is compiled once, though pip did not.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Not a pipe: a process that the command leaves behind would hold it open, and be waited for.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment, **(more or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = ""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = f"it did not end within {seconds / 60:.1f} minutes, and was ended\n"
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
        output.seek(0)
        return process.returncode == 0 and not late, output.read() + late


def main() -> int:
    """Run the groups that are named; the status is 1 if one fails."""
    parser = command()
    options = parser.parse_args()
    names = [name.replace("-", "_") for name in options.groups] or list(GROUPS)
    if unknown := [name for name in names if name not in GROUPS]:
        parser.error(f"there is no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    chosen = [GROUPS[name] for name in names if options.groups or GROUPS[name].written]
    with tempfile.TemporaryDirectory(prefix="tape-groups-") as made, ThreadPoolExecutor(options.jobs) as pool:
        folder = options.venvs or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            verdicts = list(pool.map(Groups(folder, options).run, chosen))
        except NotInstalled as error:
            verdicts = [f"{LEFT_OUT}: what all groups need: {error}"] * len(chosen)
    for group, verdict in zip(chosen, verdicts, strict=True):
        print(f"{group.name}: {verdict}")
    passed, failed = verdicts.count(PASSED), verdicts.count(FAILED)
    left = len(verdicts) - passed - failed
    print(f"integrations: {passed} passed, {failed} failed, {left} left out")
    return int(failed > 0 or (options.strict and left > 0))


if __name__ == "__main__":
    sys.exit(main())
