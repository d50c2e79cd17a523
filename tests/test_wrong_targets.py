"""A wrong file, folder or port is answered with its name and the next step."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path

import pytest
from support.shell import tape_command

import tape


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    """A store with one tape."""
    file = tmp_path / "agent.db"
    with tape.open(file) as store:
        store.tape("chat").append(role="user", content="Hi")
    return file


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The database of another application."""
    file = tmp_path / "other.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE users (id INTEGER)")
    connection.close()
    return file


def refused(*arguments: str | Path, code: int) -> str:
    """Run a command that must fail with one line on stderr, and return that line."""
    done = tape_command(*map(str, arguments))
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done
    return done.err


def test_a_database_without_tapes_is_named_as_such(other: Path) -> None:
    """A SQLite file of another application exists, and is not a store."""
    message = refused("--store", other, "ls", code=3)
    assert f"{str(other)!r} is not a store: it is a SQLite database with 1 table of another program" in message
    assert "--store" in message


def test_a_damaged_store_is_not_called_something_else(agent: Path) -> None:
    """A store whose pages are damaged is called damaged, and the answer is a backup."""
    raw = agent.read_bytes()
    agent.write_bytes(raw[:100] + b"\xff" * 3_900 + raw[4_000:])
    message = refused("--store", agent, "ls", code=4)
    assert f"{str(agent)!r} is a damaged SQLite database" in message
    assert "restore the store from a backup" in message


def test_a_damaged_page_found_later_names_the_store(agent: Path) -> None:
    """Damage that only a query meets is reported with the command that examines the store."""
    with tape.open(agent) as store:
        store.tape("chat").extend([{"role": "user", "content": "x" * 500}] * 200)
    connection = sqlite3.connect(agent)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tape_tapes'").fetchone()
    connection.close()
    raw = agent.read_bytes()
    agent.write_bytes(raw[: (root - 1) * 4096] + b"\xff" * 4096 + raw[root * 4096 :])
    message = refused("--store", agent, "ls", code=4)
    assert "restore" in message
    assert f"tape doctor --store {agent}" in message


@pytest.mark.parametrize(
    "command",
    [["backup", "{target}"], ["export", "chat", "{target}"], ["report", "chat", "--output", "{target}"]],
    ids=lambda command: command[0],
)
def test_a_target_that_cannot_be_written_is_named(command: list[str], agent: Path, tmp_path: Path) -> None:
    """The file to write is at fault, not the store."""
    target = tmp_path / ("x" * 255)
    message = refused("--store", agent, *(word.format(target=target) for word in command), code=1)
    assert f"cannot write {str(target)!r}" in message
    assert "choose another file" in message
    assert "doctor" not in message
    assert sorted(file.name for file in tmp_path.iterdir()) == ["agent.db", "agent.db-writer"]


@pytest.mark.parametrize(
    ("content", "problem", "hint"),
    [
        (b'{"foo": 1}\n', "is neither an export nor a transcript in a known format", "--from"),
        (b"", "is empty", "name an export or a transcript"),
    ],
)
def test_a_file_of_another_format_is_not_called_a_damaged_export(
    content: bytes, problem: str, hint: str, agent: Path, tmp_path: Path
) -> None:
    """The answer names the file, and does not speak of fields or lines of an export."""
    file = tmp_path / "j.jsonl"
    file.write_bytes(content)
    message = refused("--store", agent, "import", file, code=4)
    assert f"{str(file)!r} {problem}; " in message
    assert hint in message


def test_a_database_given_to_import_is_recognised(agent: Path, tmp_path: Path) -> None:
    """A store is opened, not imported; the library says so, too."""
    copy = tmp_path / "copy.db"
    assert tape_command("--store", str(agent), "backup", str(copy)).code == 0
    message = refused("--store", agent, "import", copy, code=4)
    assert f"{str(copy)!r} is a SQLite database, not an export or a transcript" in message
    assert "open it with --store" in message
    with tape.open(agent) as store, pytest.raises(tape.ImportFailed, match=r"SQLite database, .* tape\.open"):
        store.import_(copy)


def test_a_missing_tape_or_store_names_create(agent: Path, tmp_path: Path) -> None:
    """To append is what creates a tape, so the option is named."""
    assert "create it with --create" in refused("--store", agent, "append", "new", "Hi", code=3)
    assert "create one with --create" in refused("--store", tmp_path / "new.db", "append", "new", "Hi", code=3)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("command", [["serve"], ["open", "chat", "--no-browser"]], ids=lambda command: command[0])
def test_a_busy_port_is_named(command: list[str], agent: Path) -> None:
    """The answer is the port and the option that picks another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("--store", agent, *command, "--port", str(port), code=6)
    assert f"port {port} on 127.0.0.1 is in use" in message
    assert "--port" in message


def test_a_missing_file_is_named(agent: Path, tmp_path: Path) -> None:
    """A file to import that does not exist is named with the reason."""
    file = tmp_path / "no.jsonl"
    assert f"cannot read {str(file)!r}: No such file or directory" in refused("--store", agent, "import", file, code=3)


def test_a_store_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """The library names the path and what is wrong with its folder."""
    file = tmp_path / "no" / "new.db"
    with pytest.raises(tape.StoreFailed) as failed:
        tape.open(file)
    assert repr(str(file)) in str(failed.value)
    assert "create the folder first" in str(failed.value)
    folder = tmp_path / "file"
    folder.touch()
    with pytest.raises(tape.StoreFailed) as failed:
        tape.open(folder / "new.db")
    assert f"{str(folder)!r} is not a folder" in str(failed.value)
