"""Programs that tests need beside Python: found, installed where that can be done, or asked for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence

import pytest

__all__ = ["program"]

_tried: set[str] = set()


def program(names: Sequence[str], *, variable: str, package: str, without: str) -> str:
    """Return the path of a program: the one that a variable names, or the first of these that is there.

    As root on Debian or Ubuntu it is installed. If it cannot be had, the test fails in CI and is left out elsewhere,
    with what is missing ``without`` it and the command that mends it.
    """
    command = f"apt-get update && apt-get install -y --no-install-recommends {package}"
    path = os.environ.get(variable) or _named(names)
    if path is None and package not in _tried and os.geteuid() == 0 and shutil.which("apt-get"):
        _tried.add(package)
        path = _install(names, package, command)
    if path is None:
        why = f"{without} Mend it with: {command}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return path


def _named(names: Sequence[str]) -> str | None:
    # Servers are where only root's path leads.
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    return next((path for name in names if (path := shutil.which(name, path=folders)) is not None), None)


def _install(names: Sequence[str], package: str, command: str) -> str | None:
    """Install a package, one worker at a time: apt-get fails at once while another runs."""
    with open(os.path.join(tempfile.gettempdir(), "tape-apt-get.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path := _named(names)) is not None:
            return path
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(["sh", "-c", command], capture_output=True, timeout=240, check=False)
    return _named(names)
