"""The README and the pages in docs/ are part of the contract: their code runs, their outputs and names are true."""

from __future__ import annotations

import builtins
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from support.backends import PROCESS, Backend
from support.pages import blocks, run

import tape
from tape.demo import story

ROOT = Path(__file__).resolve().parent.parent
INTEGRATIONS = "integrations.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
names = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.fixture
def database_url(postgres_url: sa.URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the pages' DATABASE_URL a database of its own."""
    name = f"tape_docs_{os.getpid()}_{PROCESS}"
    dsn = postgres_url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        monkeypatch.setenv("DATABASE_URL", postgres_url.set(database=name).render_as_string(hide_password=False))
        try:
            yield
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


class TestPages:
    @names
    def test_every_python_block_runs_and_prints_what_it_says(
        self, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: None
    ) -> None:
        """Every Python block of the page runs, and each print gives what the comment behind it says."""
        monkeypatch.chdir(tmp_path)
        text = page.read_text(encoding="utf-8")
        if page.name == INTEGRATIONS:
            # The sections behind the first need their frameworks; the tests of each group run its own.
            text = text.partition("\n## ")[0]
        told = run(page, text)
        assert len(told) == text.count("```python")
        for line, promises, output in told:
            assert output == promises, f"{page.name}, the block at line {line}"

    def test_every_page_but_the_decisions_and_the_reference_shows_code(self) -> None:
        """Every page has Python to run; the decision records and the reference have none."""
        silent = [page.name for page in PAGES if not blocks(page.read_text(encoding="utf-8"), "python")]
        assert silent == ["decisions.md", "reference.md"]

    @names
    def test_every_block_tells_what_it_is(self, page: Path) -> None:
        """A block is Python or a command, which are run, or text that is no program: none is left unchecked."""
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.M)
        assert set(fences[::2]) <= {"python", "sh", "console", "text"}
        assert set(fences[1::2]) <= {""}

    def test_the_readme_links_every_page(self) -> None:
        """A page in docs/ can be found from the README."""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in text] == []

    @pytest.mark.parametrize(("name", "most"), [("README.md", 750), ("CONTRIBUTING.md", 1000), ("CHANGELOG.md", 500)])
    def test_the_front_pages_stay_short(self, name: str, most: int) -> None:
        """README fits a few minutes, CONTRIBUTING two pages, CHANGELOG one; code is not counted."""
        text = re.sub(r"```.*?```", "", (ROOT / name).read_text(encoding="utf-8"), flags=re.S)
        assert len(text.split()) <= most

    def test_the_page_on_security_names_tests_that_exist(self) -> None:
        """Every row of the threat model ends with a test, by its module and its class or name."""
        text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
        rows = [row for row in re.findall(r"^\| .+$", text, re.M) if "it cannot" not in row]
        named = [
            re.findall(r"`((?:integrations/\w+/)?test_\w+\.py)(?:::(\w+))?`", row.rpartition(" | ")[2]) for row in rows
        ]
        assert sum(not tests for tests in named) == 1  # Encrypted connections are libpq's.
        for module, name in (test for tests in named for test in tests):
            source = (ROOT / "tests" / module).read_text(encoding="utf-8")
            assert re.search(rf"^\s*(class|def|async def) {name}\b", source, re.M) if name else source, (module, name)

    def test_a_wrong_promise_is_noticed(self, tmp_path: Path) -> None:
        """A page whose comment does not tell the output is not taken for true."""
        page = tmp_path / "wrong.md"
        page.write_text("```python\nprint(1 + 1)  # 3\n```\n")
        assert run(page, page.read_text()) == [(2, ["3"], ["2"])]

    @names
    def test_links_lead_somewhere(self, page: Path) -> None:
        """Every relative link names a file of the repository and, behind #, a heading in it."""
        links = re.findall(r"\]\(((?!https?:)[^)]+)\)", page.read_text(encoding="utf-8"))
        for link in links:
            file, _, heading = link.partition("#")
            target = page.parent / file if file else page
            assert target.is_file(), link
            if heading:
                titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.M)
                assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, link

    @names
    def test_named_files_exist(self, page: Path) -> None:
        """Every path of the source that a page names is there."""
        text = page.read_text(encoding="utf-8")
        paths = re.findall(r"`((?:tape|tests|alembic|benchmarks|docs|examples)/[\w/.]*)`", text)
        assert [path for path in paths if not (ROOT / path).exists()] == []

    @names
    def test_named_errors_exist(self, page: Path) -> None:
        """Every error that a page names is in the public surface."""
        errors = {name for name in (*tape.__all__, *dir(builtins)) if isinstance(getattr(tape, name, type), type)}
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"`(?:tape\.)?([A-Z][a-z]+[A-Z]\w+)(?:\([\w, ]*\))?`", text))
        if page.name == INTEGRATIONS:
            # It names classes of the adapters and of the frameworks.
            adapters = "".join(file.read_text() for file in ROOT.glob("*/integrations/**/*.py"))
            errors |= set(re.findall(r"\b[A-Z]\w+", adapters))
        assert named - errors == set()


class TestLists:
    def test_the_page_on_the_model_lists_every_table(self) -> None:
        """docs/model.md lists exactly the tables of the schema."""
        from tape.db.schema.tables import Tables

        text = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
        listed = re.findall(r"`(tape_\w+)`", "\n".join(re.findall(r"^\| `tape_.*?\|", text, re.M)))
        assert sorted(listed) == sorted(table.name for table in Tables("sqlite").metadata.sorted_tables)

    def test_the_page_on_the_model_lists_every_kind(self) -> None:
        """docs/model.md tells every kind of entry: those that are written, and those that are not yet."""
        from tape.core.entries.payloads import KINDS

        text = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
        start = text.index("Kinds that are written today")
        kinds = re.findall(r"`(\w+)`", text[start : text.index("\n\n", start)])
        assert sorted(kinds) == sorted(KINDS)

    def test_the_page_on_operations_lists_every_log_event(self) -> None:
        """docs/operations.md lists exactly the events that the source logs, with their levels."""
        source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tape").rglob("*.py")))
        logged = {(name, level) for level, name in re.findall(r'\blog\.(\w+)\(\s*"(tape\.\w+)"', source)}
        text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
        assert set(re.findall(r"^\| `(tape\.\w+)` \| (\w+) \|", text, re.M)) == logged

    def test_the_page_on_operations_lists_every_setting(self) -> None:
        """docs/operations.md lists every argument of tape.open but the clock, which is for tests."""
        import inspect

        text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
        table = text[text.index("| `tape.open(…)`") :].split("\n\n")[0]
        listed = [
            name for names in re.findall(r"^\| (`[\w`, ]+`) \|", table, re.M) for name in re.findall(r"\w+", names)
        ]
        assert sorted([*listed, "clock"]) == sorted(inspect.signature(tape.open).parameters)

    def test_what_the_readme_calls_not_yet_is_not_there(self) -> None:
        """The README's list of what is still to come names nothing that has come."""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        (paragraph,) = re.findall(r"^\*\*Not yet\*\*.*?\n\n", text, re.M | re.S)
        to_come = re.findall(r"`(Store|Tape)\.(\w+)`", paragraph)
        assert to_come != []
        assert [f"{face}.{name}" for face, name in to_come if hasattr(getattr(tape, face), name)] == []


class TestCommands:
    def test_the_first_two_shell_blocks_are_one_line_each(self) -> None:
        """The README's two commands can be pasted as they are: the demo first, then the tests."""
        demo, tests = (code.strip() for _, code in blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh"))
        assert [command.count("\n") for command in (demo, tests)] == [0, 0]
        assert demo.endswith("python -m tape.demo")
        assert " -m pytest" in tests

    def test_ci_runs_the_readme_command(self) -> None:
        """.ci/run runs the README's test command first, and then only what CONTRIBUTING names."""
        tests = blocks((ROOT / "README.md").read_text(encoding="utf-8"), "sh")[1][1].strip()
        script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
        commands = [line for line in script if line and not line.startswith(("#", "set ", "unset ", "cd "))]
        assert commands[0] == tests
        named = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        assert all(command in named for command in commands[1:])
        assert os.access(ROOT / ".ci" / "run", os.X_OK)


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as a user does, with stdout as a pipe."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tape.demo", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestDemo:
    def test_tells_its_story(self, tmp_path: Path) -> None:
        """The demo ends with status 0, tells ten steps in about 40 lines, and leaves a store that verifies."""
        done = demo(str(tmp_path / "demo.db"))
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert [line.split(".")[0] for line in lines if re.match(r"\d+\. ", line)] == [str(n) for n in range(1, 11)]
        assert 30 <= len([line for line in lines if line]) <= 50
        with tape.open(tmp_path / "demo.db") as store:
            report = store.verify()
            assert (report.ok, report.tapes) == (True, 2)

    def test_takes_a_temporary_file_by_default_and_says_where(self, tmp_path: Path) -> None:
        """Without a path the demo writes to a new temporary file and names it."""
        done = demo(TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
        (made,) = tmp_path.glob("*/demo.db")
        assert done.stdout.splitlines()[0].endswith(f"kept in {made}")

    def test_can_be_run_again_on_the_same_file(self, tmp_path: Path) -> None:
        """A second run on the same file adds tapes of its own."""
        runs = [demo(str(tmp_path / "demo.db")).returncode for _ in range(2)]
        assert runs == [0, 0]

    def test_prints_plain_ascii(self, tmp_path: Path) -> None:
        """The demo's output does not depend on the terminal's encoding."""
        done = demo(str(tmp_path / "demo.db"), PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stdout.isascii()) == (0, True)

    def test_fails_with_a_message(self, tmp_path: Path) -> None:
        """A store that cannot be opened gives one line on stderr and status 1."""
        folder = tmp_path / "missing"
        path = str(folder / "demo.db")
        done = demo(path)
        assert (done.returncode, done.stdout) == (1, "")
        problem = f"the folder {str(folder)!r} does not exist; create the folder first"
        assert done.stderr == f"FAILED: cannot open the store {path!r}: {problem}\n"

    def test_refuses_what_it_does_not_know(self) -> None:
        """An unknown option gives the usage and status 1."""
        done = demo("--help")
        assert (done.returncode, done.stderr) == (1, "usage: python -m tape.demo [PATH]\n")

    def test_stops_quietly_when_its_reader_does(self, tmp_path: Path) -> None:
        """A reader that closes the pipe early is no error."""
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "tape.demo", str(tmp_path / "demo.db")]
        done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (0, b"")

    def test_a_false_claim_ends_the_demo(
        self, store: tape.Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A step whose claim is false ends the demo with the claim as its message."""
        monkeypatch.setattr(tape.Tape, "merge", lambda self, child: None)
        with pytest.raises(SystemExit) as ended:
            story(store)
        assert ended.value.code == "FAILED: the parent shows 6 messages"

    def test_runs_on_every_backend(self, store: tape.Store, capsys: pytest.CaptureFixture[str]) -> None:
        """The demo tells the same story on SQLite and on PostgreSQL."""
        story(store)
        assert capsys.readouterr().out.count("\n   ") == 20


@pytest.mark.blank
class TestBesideAnApplication:
    @pytest.fixture
    def readme(self) -> Callable[..., bool]:
        """Return the include_object that docs/embedding.md tells applications to use."""
        text = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
        (code,) = [code for _, code in blocks(text, "python") if "def include_object" in code]
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        found: Callable[..., bool] = namespace["include_object"]
        return found

    def test_the_readme_keeps_an_applications_alembic_away(self, backend: Backend, readme: Callable[..., bool]) -> None:
        """With the page's include_object an application's autogenerate sees only the application's own tables."""
        backend.open().tape("chat").append(role="user", content="hello")
        metadata = sa.MetaData()
        sa.Table("orders", metadata, sa.Column("id", sa.Integer, primary_key=True))
        engine = backend.engine()
        with engine.begin() as connection:
            metadata.create_all(connection)
            bare = MigrationContext.configure(connection)
            kept = MigrationContext.configure(connection, opts={"include_object": readme})
            dropped = [change[1].name for change in compare_metadata(bare, metadata) if change[0] == "remove_table"]
            assert sorted(dropped) == sorted(table.name for table in backend.open()._db.tables.metadata.sorted_tables)
            assert compare_metadata(kept, metadata) == []
        engine.dispose()

    def test_the_applications_version_table_is_left_alone(self, backend: Backend) -> None:
        """A store keeps its revision in tape_version and makes no alembic_version."""
        backend.open()
        engine = backend.engine()
        with engine.connect() as connection:
            there = set(sa.inspect(connection).get_table_names())
        engine.dispose()
        assert ("tape_version" in there, "alembic_version" in there) == (True, False)
