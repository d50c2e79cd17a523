"""The environments in which the groups run: what all of them need is installed once, and each adds its framework.

A group's environment sees the packages of the shared one, and what it installs itself hides those. So pip installs only
what is missing or has another version. A group that needs a newer Python gets an environment with everything in it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .groups import Group

__all__ = ["NotInstalled", "Shared", "install", "install_npm", "share"]

ROOT = Path(__file__).resolve().parent.parent.parent
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


class NotInstalled(Exception):
    """An environment could not be made; the message says why."""


@dataclass(frozen=True)
class Shared:
    """The environment whose packages the others see."""

    python: Path
    packages: Path
    has_pip: bool


def share(folder: Path, seconds: float) -> Shared:
    """Return the shared environment: the one that runs this if the tests can run in it, or else a new one."""
    if _complete():
        return Shared(Path(sys.executable), Path(sysconfig.get_path("purelib")), find_spec("pip") is not None)
    python = _make(folder, Path(sys.executable), with_pip=True)
    _pip(python, ["-e", f"{ROOT}[test]"], seconds)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    return Shared(python, Path(packages), has_pip=True)


def install(group: Group, folder: Path, shared: Shared, seconds: float) -> Path:
    """Make the group's environment and return its Python; raises NotInstalled."""
    if sys.version_info < group.python:
        newer = newer_python(group.python)
        if newer is None:
            raise NotInstalled(f"it needs Python {group.python[0]}.{group.python[1]}")
        python = _make(folder, newer, with_pip=True)
        _pip(python, ["-e", f"{ROOT}[test,{group.extra}]", *group.also], seconds)
        return python
    python = _make(folder, shared.python, with_pip=not shared.has_pip)
    (own,) = folder.glob("Lib/site-packages" if sys.platform == "win32" else "lib/python*/site-packages")
    # A plain line with the folder would not make Python read the .pth files in it, and tape itself is in one of those.
    (own / "shared.pth").write_text(f"import site; site.addsitedir({str(shared.packages)!r})\n", "utf-8")
    _pip(python, [*EXTRAS[group.extra], *group.also], seconds)
    return python


def install_npm(group: Group, folder: Path, seconds: float) -> dict[str, str]:
    """Install what the group's tests use of npm; returns the variable that names its command. Raises NotInstalled."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("there is no npm")
    folder.mkdir(parents=True, exist_ok=True)
    programs = folder / "node_modules" / ".bin"
    name = group.npm[0].rpartition("@")[0].rpartition("/")[2]
    if not (programs / name).exists():
        _bounded([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *group.npm], seconds)
    command = [str(programs / "node"), str(programs / name)]
    # That it starts is not sure: a machine may refuse to run what a package does when it is installed.
    _bounded([*command, "--version"], seconds)
    return {group.npm_variable: shlex.join(command)}


def newer_python(needed: tuple[int, int]) -> Path | None:
    """Return an interpreter of that version or a later one, from the path or from pyenv, that makes environments."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(needed[1], needed[1] + 3):
        name = f"python{needed[0]}.{minor}"
        on_path = shutil.which(name)
        # pyenv puts programs on the path that only say that this version is not chosen here.
        for python in ([Path(on_path)] if on_path else []) + sorted(versions.glob(f"*/bin/{name}")):
            try:
                asked = subprocess.run([python, "-c", "import ensurepip, venv"], capture_output=True, timeout=60)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if asked.returncode == 0:
                return python
    return None


def _complete() -> bool:
    """Tell whether everything that the tests need is installed here."""
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in EXTRAS["test"]]
    try:
        for name in (*names, "psycopg", "typer"):
            version(name)
    except PackageNotFoundError:
        return False
    return True


def _make(folder: Path, python: Path, *, with_pip: bool) -> Path:
    """Make an environment unless it is there, and return its Python."""
    made = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if made.exists():
        return made
    if python == Path(sys.executable):
        venv.create(folder, with_pip=with_pip)
    else:
        quiet = [] if with_pip else ["--without-pip"]
        subprocess.run([python, "-m", "venv", *quiet, folder], check=True, capture_output=True)
    return made


def _pip(python: Path, requirements: Sequence[str], seconds: float) -> None:
    # Compiling all of a framework takes longer than compiling what the tests import of it.
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile", "--retries", "2"]
    _bounded([*pip, *requirements], seconds)


def _bounded(command: list[str], seconds: float) -> None:
    """Run a command that installs something. Raises NotInstalled if it fails, or takes too long."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"it could not be installed within {seconds / 60:.0f} minutes") from None
    except OSError as error:
        raise NotInstalled(f"it could not be installed: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = (
            [line for line in lines if line.startswith(("ERROR", "npm error"))] or lines[-1:] or ["no reason given"]
        )
        raise NotInstalled(f"it could not be installed: {errors[-1]}")
