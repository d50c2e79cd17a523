"""What is installed is what was tested: the wheel holds the package with its Alembic scripts, and works by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from support.sizes import full

import alembic
import tape

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import importlib.metadata
import sys
from pathlib import Path

import sqlalchemy as sa

import tape
from tape.db.schema.migrate import schema_version, scripts, upgrade
from tape.db.schema.tables import KNOWN, REVISION

package = Path(tape.__file__).parent
assert package.is_relative_to(sys.prefix), package
assert scripts() == package / "_alembic", scripts()
assert importlib.metadata.version("tape-store") == tape.__version__

with tape.open("new.db") as store:
    store.tape("chat").append(role="user", content="hello")
    assert store.verify().entries == 2

# The schema as the packaged revision makes it.
engine = sa.create_engine("sqlite:///old.db")
with engine.begin() as connection:
    upgrade(connection, None, KNOWN[0])
with tape.open("old.db") as store:
    store.tape("chat").append(role="user", content="hello")
    assert store.verify().entries == 2
    with engine.connect() as connection:
        assert schema_version(connection, store._db) == REVISION
engine.dispose()

try:
    tape.open("postgresql://nowhere/nothing")
except tape.StoreFailed as error:
    print(error)
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the checkout's influence and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the source distribution as an installer does."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder)
    run(*pip, sdist, cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def files(folder: str, under: str) -> set[str]:
    """Return the files of a folder of the checkout, as they are named under another."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"{under}/{path.relative_to(ROOT / folder).as_posix()}" for path in found}


class TestDistributions:
    def test_the_wheel_holds_the_package_and_its_alembic_scripts(self, wheel: Path) -> None:
        """The wheel holds every file of tape/, those of alembic/ under tape/_alembic, and nothing else."""
        names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
        assert names == files("tape", "tape") | files("alembic", "tape/_alembic")
        assert {"tape/py.typed", "tape/_alembic/env.py", "tape/_alembic/versions/0001_store.py"} <= names

    def test_the_source_distribution_holds_the_tests_and_pages(self, sdist: Path) -> None:
        """Tests, benchmarks, examples and pages travel with the source, so that it can be tested from there."""
        with tarfile.open(sdist) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        for folder in ("tests", "docs", "benchmarks", "examples"):
            assert files(folder, folder) <= names
        assert {"README.md", "CHANGELOG.md", "LICENSE", "alembic.ini", ".ci/run"} <= names

    @full
    def test_works_in_a_clean_environment(self, wheel: Path, tmp_path: Path) -> None:
        """Installed alone it opens and upgrades stores and tells the demo; with its extra the command does so, too."""
        venv.create(tmp_path / "venv")
        (python,) = [path for path in (tmp_path / "venv").glob("*/python*") if path.stem == "python"]
        pip = (sys.executable, "-m", "pip", "--python", python)
        run(*pip, "install", "-q", "--no-compile", wheel, cwd=tmp_path)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        told = run(python, "-I", "-W", "error", "-c", SCRIPT, cwd=elsewhere)
        assert told == "PostgreSQL needs psycopg 3: pip install 'tape-store[postgres]'\n"
        story = run(python, "-I", "-W", "error", "-m", "tape.demo", "demo.db", cwd=elsewhere)
        assert story.startswith(f"tape {tape.__version__} demo, kept in demo.db\n")
        assert sorted(path.name for path in elsewhere.glob("*.db")) == ["demo.db", "new.db", "old.db"]

        # The script is there without its extra, and says what it lacks; with it, it works.
        command = python.parent / "tape"
        bare = subprocess.run([command, "ls"], cwd=elsewhere, capture_output=True, text=True, timeout=60, check=False)
        assert (bare.returncode, bare.stderr.count("\n")) == (1, 1)
        assert "pip install 'tape-store[cli]'" in bare.stderr
        run(*pip, "install", "-q", "--no-compile", f"{wheel}[cli]", cwd=tmp_path)
        assert "10. Verify" in run(command, "demo", "told.db", cwd=elsewhere)
        examined = run(command, "--store", "told.db", "doctor", cwd=elsewhere)
        assert "ok      chain        15 entries on 2 tapes verified\n" in examined


class TestNames:
    def test_the_folder_alembic_does_not_hide_the_library(self) -> None:
        """From the root of the checkout, ``import alembic`` gives the library and not the folder of revisions."""
        code = "import alembic, alembic.config; print(alembic.__file__)"
        found = Path(run(sys.executable, "-c", code, cwd=ROOT).strip())
        assert not found.is_relative_to(ROOT / "alembic")
        assert not (ROOT / "alembic" / "__init__.py").exists()

    def test_nor_does_it_under_pytest(self) -> None:
        """With the root on the path in front of everything, as pytest may put it, the library is still found."""
        assert alembic.__file__ is not None
        assert not Path(alembic.__file__).is_relative_to(ROOT / "alembic")
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import alembic.config as c; print(c.Config.__module__)"
        assert run(sys.executable, "-c", code, cwd=ROOT / "tests") == "alembic.config\n"
