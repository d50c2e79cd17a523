"""How the environments of the groups are found and made."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import pytest
from support.processes import until
from support.sizes import full

from integrations.__main__ import Groups, run
from integrations.environments import NotInstalled, install, install_npm, newer_python, share
from integrations.groups import GROUPS


class TestNewerPython:
    def test_one_of_pyenv_is_found_behind_a_shim_that_only_complains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What stands on the path and cannot run is passed over; the next later version is taken."""
        shims, versions = tmp_path / "shims", tmp_path / "versions" / "3.99.1" / "bin"
        for folder in (shims, versions):
            folder.mkdir(parents=True)
        shim = shims / "python3.98"
        shim.write_text("#!/bin/sh\nexit 127\n")
        shim.chmod(0o755)
        (versions / "python3.99").symlink_to(sys.executable)
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
        monkeypatch.setenv("PATH", str(shims), prepend=":")
        assert newer_python((3, 98)) == versions / "python3.99"

    def test_none_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without one there is none, and nothing is raised."""
        monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
        assert newer_python((3, 98)) is None


class TestRun:
    def test_what_it_says_and_whether_it_succeeded(self) -> None:
        """Its output, its errors among them, and the variables that it was given."""
        code = "import os, sys; print('out', os.environ['GIVEN'], flush=True); sys.exit('no')"
        assert run([sys.executable, "-c", code], 60, {"GIVEN": "1"}) == (False, "out 1\nno\n")
        assert run([sys.executable, "-c", ""], 60) == (True, "")

    @full
    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="where the child's state can be seen")
    def test_one_that_hangs_is_ended_with_its_children(self, tmp_path: Path) -> None:
        """Within its time and a little more, though a child has its output open."""
        child = f"import os, time; open({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
        began = time.monotonic()
        passed, said = run([sys.executable, "-c", code], 10)
        assert not passed
        assert said.endswith("and was ended\n")
        assert time.monotonic() - began < 60
        child_id = int((tmp_path / "child").read_text())
        # One that nobody has waited for yet is a zombie.
        state = Path(f"/proc/{child_id}/stat")
        until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX", "the child ends")


class TestLeftOut:
    def test_a_group_that_cannot_be_installed(self, tmp_path: Path) -> None:
        """It says why, and does not raise anything else."""
        group = dataclasses.replace(GROUPS["otel"], also=("tape-store-has-no-such-package==0",))
        with pytest.raises(NotInstalled, match="could not be installed"):
            install(group, tmp_path / "otel", share(tmp_path / "shared", 60), 0.1)

    def test_a_group_that_begins_too_late(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What had not begun when the time was over is named as left out."""
        monkeypatch.setattr(Groups, "_mypy", lambda *_: (True, ""))
        options = argparse.Namespace(minutes=-1, install_minutes=1, group_minutes=1)
        assert Groups(tmp_path, options).run(GROUPS["otel"]) == "left out: the time was over before it could begin"

    def test_no_npm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then what needs it is skipped, with the reason."""
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(NotInstalled, match="no npm"):
            install_npm(GROUPS["mcp"], tmp_path / "npm", 5)
