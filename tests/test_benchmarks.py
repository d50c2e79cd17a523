"""The benchmarks run, write what they say, notice a lost append, and README shows a run that was kept."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from support.sizes import full

import tape
from benchmarks import __main__ as suite
from benchmarks import scale
from benchmarks.against import installed
from benchmarks.harness import Round, Run, Times, each, race
from benchmarks.page import README, excerpt, page, rewrite_readme
from benchmarks.peers import Kind
from benchmarks.plot import svg
from benchmarks.raw import RawSqlite
from benchmarks.report import RESULTS, Figure, Report
from benchmarks.writers import Ledger

ROOT = Path(__file__).resolve().parent.parent
ALONE = ("append", "threads", "async", "slow-fsync", "processes", "read", "growth", "disk")
"""The groups that need neither PostgreSQL nor other stores."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which a quick run left its results."""
    folder = tmp_path_factory.mktemp("benchmarks")
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        *ALONE,
        "--quick",
        "--no-postgres",
        "--no-peers",
        "--out",
        str(folder),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def report(written: Path) -> Report:
    """Return what the quick run found."""
    return msgspec.json.decode((written / "run.json").read_bytes(), type=Report)


@full
class TestQuickRun:
    def test_every_group_has_figures(self, report: Report) -> None:
        """Each group gave figures, with the times of its contenders; what could not run is named."""
        lacking = {"slow-fsync"} if shutil.which("cc") is None else set()
        assert {figure.group for figure in report.figures} == set(ALONE) - lacking
        assert len(report.missing) == len(lacking)
        for figure in report.figures:
            assert figure.value > 0, figure.what
            assert all(0 < one.median <= one.p99 <= one.p999 for one in figure.times.values()), figure.what
            assert all(one.operations > 0 and one.per_second > 0 for one in figure.times.values()), figure.what

    def test_the_conditions_are_told(self, report: Report) -> None:
        """Machine, versions and durability stand beside the figures, and that the run was a quick one."""
        assert "cores" in report.conditions["machine"]
        assert report.conditions["SQLite"].startswith(f"{sqlite3.sqlite_version}, WAL, synchronous")
        assert f"tape-store {tape.__version__}" in report.conditions["libraries"]
        assert "quick" in report.conditions["date"]
        assert report.conditions["PostgreSQL"] == "left out"

    def test_the_page_has_a_row_for_every_figure(self, written: Path, report: Report) -> None:
        """The Markdown shows each figure with its bar and its verdict."""
        text = (written / "run.md").read_text("utf-8")
        for one in report.figures:
            assert f"| {one.what} | {one.value:.2f} | {one.bar} | {one.verdict} |" in text

    def test_the_plot_shows_the_curve(self, written: Path, report: Report) -> None:
        """The SVG is well-formed and has one line of as many points as were measured."""
        (series,) = report.series
        assert [n for n, _ in series.points] == [10, 100, 1_000, 10_000]
        drawn = ElementTree.parse(written / "run.svg").getroot()
        (line,) = drawn.iter("{http://www.w3.org/2000/svg}polyline")
        assert len(line.attrib["points"].split()) == len(series.points)
        assert series.name in {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}


class TestSoundness:
    def test_a_lost_append_is_noticed(self, tmp_path: Path) -> None:
        """A receipt that the store does not hold fails the run, and so does a message without a receipt."""
        ledger = Ledger(tmp_path / "chat.db")
        with tape.open(ledger.url) as store:
            for _ in range(3):
                ledger.note(store.tape("chat").append(role="user", content="hello"))
        ledger.check()
        name, seq, message_id = ledger.receipts[-1]
        for receipts in (
            [*ledger.receipts, (name, seq + 1, "lost")],
            [*ledger.receipts, ledger.receipts[-1]],
            [*ledger.receipts[:-1], (name, seq, f"{message_id}x")],
        ):
            with pytest.raises(AssertionError, match="holds 3 messages"):
                Ledger(ledger.url, receipts=receipts).check()

    def test_a_damaged_store_is_noticed(self, tmp_path: Path) -> None:
        """What verify finds fails the run."""
        ledger = Ledger(tmp_path / "chat.db")
        with tape.open(ledger.url) as store:
            ledger.note(store.tape("chat").append(role="user", content="hello"))
        with sqlite3.connect(tmp_path / "chat.db") as connection:
            connection.execute("UPDATE tape_heads SET messages = messages + 1")
        connection.close()
        with pytest.raises(AssertionError, match="verify finds"):
            ledger.check()

    def test_a_group_that_fails_fails_the_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other groups still run, and the report says what is not to be trusted."""

        def lose(run: Run) -> None:
            raise AssertionError("lost one")

        ran: list[Run] = []
        monkeypatch.setitem(suite.GROUPS, "append", lose)
        monkeypatch.setitem(suite.GROUPS, "disk", ran.append)
        report = Report()
        run = Run(True, tmp_path, None, False, report)
        assert suite.measure(report, run, ["append", "disk"], tmp_path) is False
        assert ran == [run]
        assert report.missing == ["the rest of append, which FAILED: lost one"]

    def test_only_a_whole_run_is_kept(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """--save refuses part of a run, and an unknown group is named."""
        for arguments, told in ((["--save", "--quick"], "a whole run"), (["nothing"], "no group 'nothing'")):
            monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
            with pytest.raises(SystemExit) as ended:
                suite.main()
            assert ended.value.code == 2
            assert told in capsys.readouterr().err

    def test_a_store_that_is_not_installed_is_named(self, tmp_path: Path) -> None:
        """A missing package is told, with how to get it."""
        report = Report()
        kind = Kind("Nobody's store", "nobodys-store-at-all", lambda place: pytest.fail("opened"))
        assert installed(Run(True, tmp_path, None, True, report), kind) is False
        assert report.missing == ["Nobody's store: pip install 'tape-store[bench]'"]


class TestMeasuring:
    def test_ratios_point_the_right_way(self) -> None:
        """Half the time is twice the speed, and twice the time is a growth of two."""
        times = Times({"raw": [Round(1.0, 0.3, [0.1] * 10)] * 3, "tape": [Round(0.5, 0.1, [0.05] * 10)] * 3})
        assert times.speed("tape", "raw") == pytest.approx(2)
        assert times.cpu_speed("tape", "raw") == pytest.approx(3)
        assert times.growth("raw", "tape") == pytest.approx(2)
        assert times.measured("tape").per_second == pytest.approx(20)

    def test_quantiles_are_of_all_rounds(self) -> None:
        """One slow operation in a hundred is the p99, and not the median."""
        one = Times({"tape": [Round(1, 1, [1e-6] * 50), Round(1, 1, [1e-6] * 49 + [1.0])]}).measured("tape")
        assert [one.median, one.p99] == pytest.approx([1, 1e6])
        assert one.operations == 100

    def test_contenders_take_turns(self) -> None:
        """Who begins alternates, and the first round is not counted."""
        turns: list[str] = []
        times = race(2, {name: each(lambda name=name: turns.append(name), 1) for name in "ab"})  # type: ignore[misc]
        assert turns == ["b", "a", "a", "b", "b", "a"]
        assert [len(rounds) for rounds in times.rounds.values()] == [2, 2]

    def test_a_bar_is_met_or_not(self) -> None:
        """A figure is judged as it is shown: with two digits."""
        verdicts = [
            Figure("g", "w", value, least, most).verdict
            for value, least, most in ((0.946, 0.95, None), (0.944, 0.95, None), (1.2, None, 1.2), (1.21, None, 1.2))
        ]
        assert verdicts == ["PASS", "FAIL", "PASS", "FAIL"]
        assert Figure("g", "w", 5.0).verdict == "–"

    def test_raw_writes_the_same_rows(self, tmp_path: Path) -> None:
        """Raw fills the same columns as the store with as many bytes, in tables without triggers."""
        message = {"role": "user", "content": "x" * 100}
        with tape.open(tmp_path / "tape.db") as store:
            store.tape("chat").extend([message] * 2)
            store.tape("chat").append(message)
        RawSqlite.prepare(tmp_path / "raw.db")
        raw = RawSqlite(tmp_path / "raw.db")
        raw.extend([message] * 2)
        raw.append(message)
        raw.close()
        found = []
        for file in ("tape.db", "raw.db"):
            with sqlite3.connect(tmp_path / file) as connection:
                connection.row_factory = sqlite3.Row
                rows = connection.execute("SELECT * FROM tape_entries WHERE kind = 'append'").fetchall()
                filled = [{name for name in row.keys() if row[name] is not None} for row in rows]  # noqa: SIM118
                sizes = [(len(row["payload"]), len(row["key"]), len(row["hash"])) for row in rows]
                live = connection.execute("SELECT ordinal FROM tape_live").fetchall()
                triggers = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'trigger'").fetchone()
                found.append((filled, sizes, [row["ordinal"] for row in live], triggers[0]))
            connection.close()
        assert found[0][:3] == found[1][:3]
        assert found[0][3] > 0
        assert found[1][3] == 0


class TestKeptRun:
    @pytest.fixture
    def kept(self) -> Report:
        return msgspec.json.decode((RESULTS / "latest.json").read_bytes(), type=Report)

    def test_readme_shows_the_kept_run(self, kept: Report) -> None:
        """README's tables, the page and the plot are what the kept results give, to the letter."""
        assert excerpt(kept) in README.read_text("utf-8")
        assert (RESULTS / "latest.md").read_text("utf-8") == page(kept, "latest.svg")
        assert (RESULTS / "latest.svg").read_text("utf-8") == svg(kept.series, kept.conditions)

    def test_it_is_a_whole_run(self, kept: Report) -> None:
        """Every group is in it, or said to be missing, with every store, and none of it is from a quick run."""
        missing = {"startup"} if "start-up" in " ".join(kept.missing) else set()
        assert {figure.group for figure in kept.figures} | missing == set(suite.GROUPS)
        assert "quick" not in kept.conditions["date"]
        assert set(kept.jobs) == {"SQLite", "PostgreSQL"}

    def test_the_readme_is_rewritten_between_its_markers(self, kept: Report, tmp_path: Path) -> None:
        """Only what stands between the markers changes; a page without them is refused."""
        copy = tmp_path / "README.md"
        copy.write_text(README.read_text("utf-8"), "utf-8")
        kept.conditions["date"] = "2000-01-01"
        rewrite_readme(kept, copy)
        before, after = (text.read_text("utf-8").split("<!-- benchmarks:") for text in (README, copy))
        assert (before[0], before[2]) == (after[0], after[2])
        assert before[1] != after[1]
        copy.write_text("no markers", "utf-8")
        with pytest.raises(ValueError, match="no place for the table"):
            rewrite_readme(kept, copy)


class TestScale:
    """The run on many tapes, in small."""

    def test_it_measures_every_operation_and_keeps_plans(self, tmp_path: Path) -> None:
        """Both stores are filled, each operation has a ratio, and no plan reads all entries from end to end."""
        cases = [scale.Case(str(tmp_path / f"{tapes}.db"), {}, tapes, 5 * tapes) for tapes in (3, 6)]
        try:
            figures = scale.measure(cases[0], cases[1], rounds=1)
            assert figures.keys() == cases[0].operations().keys()
            assert cases[1].store.stats().tapes == 6
            text = scale.plans(cases[1])
            assert "-- feed_page" in text
            assert "SCAN tape_entries" not in text
        finally:
            for case in cases:
                case.store.close()
