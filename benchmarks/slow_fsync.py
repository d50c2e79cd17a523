"""Threads and tasks on a disk that takes 2 ms to sync, as a cloud volume does.

A shim that makes every fsync and fdatasync take at least 2 ms is compiled with the system's C compiler and preloaded
into a process of its own, in which the same races run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks import writers
from benchmarks.harness import Run
from benchmarks.report import Figure, Report

DELAY = 0.002
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int slow(const char *name, int fd) {
    struct timespec end, now;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += DELAY_NS;
    if (end.tv_nsec >= 1000000000L) { end.tv_sec += 1; end.tv_nsec -= 1000000000L; }
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, name);
    int result = real(fd);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, 0);
    return result;
}
int fsync(int fd) { return slow("fsync", fd); }
int fdatasync(int fd) { return slow("fdatasync", fd); }
"""


def compiled(folder: Path) -> Path | None:
    """Compile the shim; return None when there is no compiler, or no Linux to preload it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    source, library = folder / "slow_fsync.c", folder / "slow_fsync.so"
    source.write_text(SHIM)
    flags = ("-shared", "-fPIC", "-O1", f"-DDELAY_NS={int(DELAY * 1e9)}L")
    subprocess.run([compiler, *flags, "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def slow_fsync(run: Run) -> None:
    """Run both races in a process whose syncs are slow, and take its figures."""
    library = compiled(run.folder)
    if library is None:
        run.report.lack("an fsync of 2 ms: it needs Linux and a C compiler (cc)")
        return
    folder = run.folder / "slow"
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.slow_fsync", str(folder), "quick" if run.quick else "full"]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, env=environment, stdout=subprocess.PIPE, timeout=600
    )
    if done.returncode != 0:
        raise AssertionError("the races with a slow fsync failed")
    for figure in msgspec.json.decode(done.stdout.splitlines()[-1], type=list[Figure]):
        raw = figure.times["raw"]
        assert raw.median >= DELAY * 1e6, f"the shim is not in effect: a raw append took {raw.median:.0f} µs"
        figure.group = run.report.group
        figure.what = f"fsync of 2 ms: {figure.what}"
        run.report.add(figure)


def main() -> None:
    """Race inside the process with the shim; the figures are the last line of what is printed."""
    folder, size = sys.argv[1:]
    run = Run(size == "quick", Path(folder), None, False, Report())
    writers.threads(run, least=(10, 10), slow=True)
    writers.tasks(run, least=(60, 60), slow=True)
    print(msgspec.json.encode(run.report.figures).decode())


if __name__ == "__main__":
    main()
