"""S10: what retention takes of families in which some tapes wait to be purged."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta

import pytest
from support.backends import Backend
from support.processes import scaled
from test_list import Clock
from test_purge_when_free import check_sound, hidden, shown

import tape

pytestmark = pytest.mark.alike


class TestMarked:
    """A tape that waits for its forks goes with them."""

    def test_s10_retention_foresees_what_goes_along(self, backend: Backend) -> None:
        """A dry run names a young marked tape whose forks are all old; one with a young fork stays, and is not."""
        clock = Clock()
        store = backend.open(clock=clock)
        for name in ("free", "used"):
            chat = store.create(name)
            chat.fork(f"{name}/1")
            chat.fork(f"{name}/2")
        clock.go(10)
        store.get("used/2").event("seen")
        for name in ("free", "used"):
            store.purge(name, when_free=True)
        reports = [store.retain(older_than=timedelta(days=5), dry_run=dry_run) for dry_run in (True, False)]
        for report in reports:
            assert (report.tapes, report.kept) == (["free", "free/1", "free/2", "used/1"], {})
        assert reports[0].entries == reports[1].entries == 1 + 1 + 4 + 1
        assert (shown(store), hidden(store)) == (["used/2"], ["used"])

    def test_s10_a_marked_fork_keeps_nothing(self, backend: Backend) -> None:
        """To mark a tape writes to it. That makes neither it nor its parents young."""
        clock = Clock()
        store = backend.open(clock=clock)
        store.create("root").fork("mid").fork("leaf")
        clock.go(10)
        store.purge("mid", when_free=True)
        for dry_run in (True, False):
            report = store.retain(older_than=timedelta(days=5), dry_run=dry_run)
            assert (report.tapes, report.kept) == (["root", "mid", "leaf"], {})
        check_sound(store, backend)

    def test_s10_marked_parents_go_with_all_that_they_link_to(self, backend: Backend) -> None:
        """None of the forks can go by itself: their parent links to each, and waits for all of them."""
        clock = Clock()
        store = backend.open(clock=clock)
        top = store.create("top")
        chat = top.fork("a")
        for name in ("a/1", "a/2"):
            chat.merge(chat.fork(name), strategy="link")
        clock.go(10)
        top.event("seen")
        assert list(store.purge("a", when_free=True).kept) == ["a"]
        for dry_run in (True, False):
            report = store.retain(older_than=timedelta(days=5), dry_run=dry_run)
            assert (report.tapes, report.kept) == (["a", "a/1", "a/2"], {})
        assert shown(store) == ["top"]
        check_sound(store, backend)

    def test_s10_one_run_takes_all_that_may_go(self) -> None:
        """Of random families: a dry run says what the run does, every reason holds, and a second finds nothing."""
        for seed in range(scaled(120)):
            rng, clock = random.Random(seed), Clock()
            with tape.open(":memory:", clock=clock) as store:
                names, resting = ["0"], {"0": set[str]()}
                store.create("0")
                for n in range(1, rng.randint(2, 9)):
                    parent, name = rng.choice(names), str(n)
                    fork = store.get(parent).fork(name)
                    resting[parent].add(name)
                    resting[name] = set()
                    if rng.random() < 0.4:
                        store.get(parent).merge(fork, strategy="link")
                        resting[name].add(parent)
                    names.append(name)
                clock.go(10)
                young = {name for name in names if rng.random() < 0.35}
                for name in young:
                    store.get(name).event("seen")
                for name in rng.sample(names, len(names)):
                    if rng.random() < 0.35:
                        with contextlib.suppress(tape.TapeNotFound):
                            store.purge(name, when_free=True)
                there, marked = {*shown(store), *hidden(store)}, set(hidden(store))
                foreseen = store.retain(older_than=timedelta(days=5))
                done = store.retain(older_than=timedelta(days=5), dry_run=False)
                assert (foreseen.tapes, foreseen.entries, foreseen.kept) == (done.tapes, done.entries, done.kept), seed
                going = {name for name in there if name in marked or name not in young}
                while held := {name for name in going if (resting[name] & there) - going}:
                    going -= held
                # A marked tape whose last fork went before is not there any more.
                assert going <= set(done.tapes) | marked, f"seed {seed}"
                assert set(done.tapes) <= going, f"seed {seed}"
                for name, why in done.kept.items():
                    assert why.split("'")[1] in there - set(done.tapes), f"seed {seed}: {name}, {why}"
                assert store.retain(older_than=timedelta(days=5)).tapes == [], f"seed {seed}"
                assert store.verify().problems == []
