"""How the environments of the groups are found and made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from integrations.environments import newer_python


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
