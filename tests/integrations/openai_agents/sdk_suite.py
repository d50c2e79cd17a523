"""The SDK's own tests of sessions, on tapes: ``python -m tests.integrations.openai_agents.sdk_suite``.

They are fetched with the source of the installed release, and nothing of them is kept. What looks into SQLite (tables,
connections, triggers of its own) is left out by name, and the rest has to pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent.parent

SESSIONS = (
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/extensions/memory/test_async_sqlite_session.py",
    "tests/extensions/memory/test_encrypt_session.py",
    "tests/test_hitl_session_scenario.py",
)
SUFFIX = "tests/memory/test_compaction_suffix.py"
OF_SQLITE = (
    # Connections, file locks and start-up of theirs.
    "connection", "close", "_file_lock_", "initialization", "wal_", "rollback", "rolls_back", "releases_write_lock",
    # Rows that are broken or dated by SQL.
    "corrupt", "same_timestamp",
    # A commit that is held up inside the driver.
    "post_commit", "test_cancelled_add_items",
    # Transactions of theirs into which encryption reaches.
    "encrypted_pop", "restores_original_tokens",
    # A trigger on their table, and a method of theirs that is replaced.
    "test_suffix_transaction_rolls_back", "test_cancelled_suffix_transaction", "test_failed_encrypted_suffix",
)  # fmt: skip
"""What names of tests hold that are about SQLite, not about sessions."""


def fetched(folder: Path) -> Path:
    """Fetch the source of the installed release and what its tests need; returns where it is."""
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    release = f"openai-agents=={version('openai-agents')}"
    source = [*pip, "download", "--no-deps", "--no-binary", "openai-agents", "--no-build-isolation", release]
    subprocess.run([*source, "-d", str(folder)], check=True, timeout=300)
    # Not into the environment: our own tests do without it.
    plugin = [*pip, "install", "--no-deps", "--target", str(folder / "plugins"), "pytest-asyncio"]
    subprocess.run(plugin, check=True, timeout=300)
    (archive,) = folder.glob("openai_agents-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def passed(source: Path, files: tuple[str, ...], store: str | None = None, *, seconds: float = 900) -> tuple[int, str]:
    """Run tests of the SDK on tapes; returns how many passed, and what was printed if not all did."""
    search = [str(TESTS.parent), str(TESTS), str(source.parent / "plugins"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, search))}
    if store is not None:
        env["TAPE_SDK_STORE"] = store
    chosen = " and ".join(f"not {name}" for name in (*OF_SQLITE, "async-sqlite"))
    plugins = ["-p", "integrations.openai_agents.retarget", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-k", chosen, *files],
        cwd=source,
        env=env,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    told = re.search(r"(\d+) passed", done.stdout)
    return int(told[1]) if told else 0, "" if done.returncode == 0 else done.stdout[-4_000:] + done.stderr[-2_000:]


def main() -> int:
    """Fetch and run; the status is 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.integrations.openai_agents.sdk_suite", description=__doc__)
    parser.add_argument("source", nargs="?", type=Path, help="the source of the SDK, unpacked, in place of fetching it")
    parser.add_argument("--store", help="the URL of a PostgreSQL for the sessions, in place of files")
    given = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="tape-sdk-") as made:
        source = (given.source or fetched(Path(made))).resolve()
        for what, files in (("sessions", SESSIONS), ("compaction of a suffix", (SUFFIX,))):
            count, trouble = passed(source, files, given.store)
            failed |= bool(trouble)
            print(f"{what}: {count} passed{', and some FAILED' if trouble else ''}\n{trouble}".rstrip(), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
