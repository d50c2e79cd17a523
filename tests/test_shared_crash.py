"""The power goes, or the process is killed, while many write at once: nothing acknowledged is lost, nothing is halved.

Writers of one store may share a transaction and its sync. Whatever was acknowledged must be there after a crash, and of
every call all or nothing, also when the crash comes in the middle of somebody else's commit.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import crowd, disk, programs
from support.backends import Backend, MakeBackend
from support.processes import PATIENCE, Crew, Worker
from support.sizes import heavy, size

import tape

SEED = 7
SYNC = 500
"""Microseconds that a sync of the simulated disk takes."""


class History(NamedTuple):
    """What a program did to the files of its store, and what it said in between."""

    kind: str
    folder: Path
    records: list[disk.Record]
    told: list[tuple[int, dict[str, Any]]]
    """What was said, each with the number of records before it."""

    def before(self, point: int) -> list[dict[str, Any]]:
        """Return what was said before the power went."""
        return [answer for at, answer in self.told if at < point]


@pytest.fixture(scope="module")
def logger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return disk.built_logger(tmp_path_factory.mktemp("logger"))


def written(logger: Path, where: Path, kind: str, durability: str) -> History:
    """Let many writers write a new store on a disk whose every change is logged."""
    folder, log = where / "disk", where / "log"
    folder.mkdir()
    store, marks = str(folder / "store.db"), str(folder / disk.MARKS)
    command = [sys.executable, "-m", "support.crowd", kind, store, durability, str(SEED), marks]
    disk.run_logged(logger, folder, log, command, sync=SYNC)
    records = disk.read_log(log)
    told = [(at, json.loads(line)) for at, line in disk.marks(records)]
    return History(kind, folder, records, told)


def faults_of(image: Path, history: History, point: int) -> list[str]:
    """Open what a power cut left; return all that is wrong with it."""
    try:
        with tape.open(image / "store.db", durability="normal") as store:
            found = crowd.faults_of(store, crowd.plans_of(history.kind, SEED), history.before(point))
            chat = store.tape(crowd.TAPES[0])
            head = chat.info().head
            if chat.append(role="user", content="goes on").seq != max(head, 1) + 1 or not chat.verify().ok:
                found.append("does not go on")
            return found
    except tape.TapeError as error:
        return [f"does not open: {error!r}"]


def points(history: History, count: int) -> list[int]:
    """Return moments for the power to go: anywhere, just after an acknowledgement, and inside a checkpoint."""
    pick = random.Random(SEED)
    anywhere = list(range(1, len(history.records) + 1))
    acknowledged = [at + 1 for at, _ in history.told]
    checkpoints = [at for at in disk.touching(history.records, "store.db") if at > acknowledged[0]]
    return [pick.choice(pick.choice([anywhere, acknowledged, checkpoints])) for _ in range(count)]


@pytest.fixture(scope="module", params=["threads", "tasks"])
def history(request: pytest.FixtureRequest, logger: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    """Sixteen threads, or two hundred tasks, on a durable store."""
    return written(logger, tmp_path_factory.mktemp(request.param), request.param, "full")


class TestPowerLoss:
    """The power goes: of what was not synced some is there, some is not, and some is torn."""

    def test_the_log_leaves_nothing_out(self, history: History, tmp_path: Path) -> None:
        """With all that was logged the files come out byte for byte, and everybody's work is in the log."""
        whole = disk.Disk(history.folder)
        for record in history.records:
            whole.do(record)
        whole.write(tmp_path / "whole", None)
        left = {file.name: file.read_bytes() for file in history.folder.iterdir() if file.name != disk.MARKS}
        assert {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()} == left
        steps = sum(map(len, crowd.plans_of(history.kind, SEED)))
        assert len(history.told) == steps
        assert 20 < sum("refused" in answer for _, answer in history.told) < steps / 2
        assert faults_of(tmp_path / "whole", history, len(history.records)) == []

    def test_commits_are_shared(self, history: History) -> None:
        """There are far fewer syncs of the log than acknowledged calls, so the images fall into shared commits."""
        wal = disk.touching(history.records, "store.db-wal")
        syncs = sum(history.records[at].what == disk.SYNCED for at in wal)
        print("acknowledged", len(history.told), "syncs", syncs)
        assert syncs < len(history.told) / 2

    @heavy
    def test_e1_nothing_acknowledged_is_lost(self, history: History, tmp_path: Path) -> None:
        """Whatever a power cut leaves opens and verifies, has all that was acknowledged, and no half of anything."""
        count = size(10, 50)
        print("seed", SEED, "images", count, "records", len(history.records))
        wrong, acknowledged = {}, set()
        for point, image in disk.images(history.records, history.folder, tmp_path, points(history, count), seed=SEED):
            if found := faults_of(image, history, point):
                wrong[point] = found[:5]
            acknowledged.add(len(history.before(point)))
        assert wrong == {}
        # Many tasks are acknowledged at once, so that points in between see the same.
        assert len(acknowledged) > count // 3


class TestControls:
    """The same with a disk or a store that promises less must show it, or the images would prove nothing."""

    def test_a_store_that_does_not_wait_loses_the_newest(self, logger: Path, tmp_path: Path) -> None:
        """With ``durability="normal"`` the newest acknowledged entries are lost; nothing is torn or out of order."""
        history = written(logger, tmp_path, "threads", "normal")
        # Just after acknowledgements, all along: after a checkpoint there is little that could be lost.
        moments = [at + 1 for at, _ in history.told[:: len(history.told) // 16]]
        made = disk.images(history.records, history.folder, tmp_path, moments, seed=SEED)
        found = [fault for point, image in made for fault in faults_of(image, history, point)]
        print("seed", SEED, "faults", len(found))
        assert len([fault for fault in found if fault.startswith("lost")]) > 20
        assert [fault for fault in found if not fault.startswith("lost")] == []

    @pytest.mark.parametrize("history", ["threads"], indirect=True)
    def test_a_disk_that_does_not_sync_is_found_out(self, history: History, tmp_path: Path) -> None:
        """On a disk that only says that it has synced, acknowledged entries are lost although the store waited."""
        first = history.told[0][0]
        # Early ones lose the newest entries, later ones more: what a checkpoint has half moved, too.
        moments = [at + 1 for at, _ in history.told[:8]] + [at + 1 for at, _ in history.told[100::100]]
        made = disk.images(history.records, history.folder, tmp_path, moments, seed=SEED, deaf_from=first)
        wrong = [faults_of(image, history, point) for point, image in made]
        assert sum(bool(found) for found in wrong) >= 4
        assert any(fault.startswith("lost") for found in wrong for fault in found)


class Named:
    """Where a worker finds the database, under a name by which the server knows its connections."""

    def __init__(self, backend: Backend) -> None:
        self.options = backend.options
        self.name = f"crowd {backend.schema}"
        url = backend.url.update_query_dict({"application_name": self.name}) if backend.postgres else backend.url
        self.address = url.render_as_string(hide_password=False)


def is_gone(backend: Backend, name: str) -> None:
    """Wait until the server has noticed that a client is dead; what it was at by then is done or undone."""
    deadline = time.monotonic() + PATIENCE
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    with backend.raw() as server:
        while server.execute(asked, [name]).fetchone() != (0,):
            assert time.monotonic() < deadline, "the server still has the connections of a dead process"
            threading.Event().wait(0.005)


class TestKill:
    """The process is killed (-9) while sixteen of its threads, or two hundred of its tasks, write."""

    def killed(self, nest: Worker, kind: str, seed: int, count: int) -> list[dict[str, Any]]:
        """Let many write and kill them after so many acknowledgements; returns all that was told until then."""
        nest.tell({"crowd": kind, "seed": seed})
        told: list[dict[str, Any]] = []
        pid = 0
        while True:
            fact = nest.next()
            if "status" in fact:
                assert os.WTERMSIG(fact["status"]) == signal.SIGKILL
                return told
            if "pid" in fact:
                pid = fact["pid"]
            else:
                told.append(fact)
            if pid and count >= 0 and len(told) >= count:
                os.kill(pid, signal.SIGKILL)
                count = -1

    @heavy
    @pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
    def test_e1_killed_while_many_write(
        self, make_backend: MakeBackend, crew: Crew, tmp_path: Path, engine: str
    ) -> None:
        """Acknowledged is a subset of stored, everything is there once, nothing by halves, and the next go on."""
        pick = random.Random(SEED)
        print("seed", SEED)
        for number in range(size(1, 4 if engine == "postgresql" else 10)):
            with make_backend(engine, tmp_path) as backend:
                self.five_kills(backend, crew, pick, SEED + 5 * number)

    def five_kills(self, backend: Backend, crew: Crew, pick: random.Random, first: int) -> None:
        where = Named(backend)
        nest = crew.start(where, programs.nest, name="t", options=backend.options)
        told: list[dict[str, Any]] = []
        plans: list[list[crowd.Step]] = []
        for seed in range(first, first + size(3, 5)):
            kind = pick.choice(["threads", "tasks"])
            plans += crowd.plans_of(kind, seed)
            told += self.killed(nest, kind, seed, pick.randint(0, 150))
            if backend.postgres:
                is_gone(backend, where.name)
            with backend.open() as store:
                assert crowd.faults_of(store, plans, told) == [], f"seed {seed}"
        nest.tell("enough")
        nest.finish()
