"""The commands that change something: writing to tapes, moving them, tending a store."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.backends import Backend
from support.damage import Tamperer, contents
from support.second_release import SECOND, second_release
from support.shell import Done, Shell, family, tape_command

import tape
from tape.db.schema.guards import guards
from tape.db.schema.tables import REVISION
from tape.transcripts import FORMATS

TRANSCRIPTS = Path(__file__).parent / "data" / "transcripts"


def guard_names(shell: Shell) -> list[str]:
    """Return the names of the triggers that keep entries immutable."""
    engine = shell.backend.open()._db.engine.dialect.name
    return re.findall(r"CREATE TRIGGER (\w+)", "\n".join(guards(engine, shell.backend.schema)))


class TestWriting:
    def test_append(self, fresh: Shell) -> None:
        """append writes a message and prints its receipt; a retry with its key writes nothing."""
        fresh.backend.open().create("c")
        done = fresh("append", "c", "Hello", "--key", "k1", "--actor", "ann", "--meta", '{"run": 7}', "--json").json
        assert (done["seq"], done["key"], done["duplicate"]) == (2, "k1", False)
        again = fresh("append", "c", "Hello", "--key", "k1")
        assert again.lines == [f"c:2 {done['message_id']} (already recorded)"]
        entry = fresh("show", "c", "2", "--json").json
        assert (entry["actor"], entry["meta"], entry["payload"]["message"]) == (
            "ann",
            {"run": 7},
            {"role": "user", "content": "Hello"},
        )

    def test_append_of_every_form(self, lite: Shell) -> None:
        """Text comes from the line or stdin; a whole message too; behind a message or from a new root."""
        lite.backend.open().create("c")
        lite("append", "c", "-", "--role", "assistant", "--id", "a", stdin="two\nlines\n")
        lite("append", "c", "--message", '{"role": "tool", "tool_call_id": "x", "content": [1]}', "--parent", "a")
        lite("append", "c", "--message", "-", "--root", "--id", "r", stdin='{"content": null}')
        found = {one["id"]: one for one in lite("tree", "c", "--json").json}
        assert found["a"]["message"] == {"role": "assistant", "content": "two\nlines", "id": "a"}
        assert (found["r"]["parent"], found["r"]["message"]) == (None, {"content": None, "id": "r"})
        assert [one["message"].get("tool_call_id") for one in found.values() if one["parent"] == "a"] == ["x"]

    def test_append_creates_only_when_asked(self, lite: Shell) -> None:
        """A mistyped id is not a new tape, unless --create says so."""
        assert lite("append", "nwe", "Hello").code == 3
        assert lite("ls", "--json").json["tapes"] == []
        assert lite("append", "new", "Hello", "--create", "--json").json["seq"] == 2

    def test_append_creates_a_store_when_asked(self, tmp_path: Path) -> None:
        """--create makes the store as well; a refused message leaves no file."""
        file = tmp_path / "new.db"
        assert tape_command("-s", str(file), "append", "c", "Hello").code == 3
        bad = tape_command("-s", str(file), "append", "c", "--message", '{"id": ""}', "--create")
        assert (bad.code, list(tmp_path.iterdir())) == (2, [])
        assert tape_command("-s", str(file), "append", "c", "Hello", "--create").code == 0
        assert [path.name for path in tmp_path.iterdir()] == ["new.db"]
        assert tape_command("-s", str(file), "verify").out == "2 entries of 1 tape: no problems\n"

    def test_append_creates_no_store_beside_a_log_that_was_left(self, tmp_path: Path) -> None:
        """What was acknowledged is never lost to the log of a store that is gone: nothing is created over it."""
        with tape.open(tmp_path / "live.db") as live:
            live.create("lost")
            shutil.copy(tmp_path / "live.db-wal", tmp_path / "gone.db-wal")
        done = tape_command("-s", str(tmp_path / "gone.db"), "append", "c", "Hello", "--create")
        assert (done.code, done.out, "was not closed" in done.err) == (1, "", True)
        assert not (tmp_path / "gone.db").exists()
        (tmp_path / "gone.db-wal").write_bytes(b"")
        assert tape_command("-s", str(tmp_path / "gone.db"), "append", "c", "Hello", "--create").code == 1
        (tmp_path / "gone.db-wal").unlink()
        assert tape_command("-s", str(tmp_path / "gone.db"), "append", "c", "Hello", "--create").code == 0
        assert (
            tape_command("-s", str(tmp_path / "gone.db"), "cat", "c", "--json").json[0]["message"]["content"] == "Hello"
        )

    def test_retract(self, lite: Shell) -> None:
        """retract takes messages out, with a reason."""
        lite.backend.open().create("c", messages=[{"id": "a", "content": "x"}, {"id": "b", "content": "y"}])
        assert lite("retract", "c", "a", "b", "--reason", "wrong", "--json").json["seq"] == 4
        assert lite("cat", "c", "--json").json == []
        assert lite("log", "c", "--oneline", "-n", "1").lines[0].endswith(" retract a, b (wrong)")

    def test_handoff(self, lite: Shell) -> None:
        """handoff sets a checkpoint with its contract."""
        lite.backend.open().create("c")
        options = [
            "--summary",
            "Done",
            "--phase",
            "p",
            "--next",
            "one",
            "--next",
            "two",
            "--to",
            "bob",
            "--state",
            "[1]",
        ]
        assert lite("handoff", "c", "h", *options).lines == ["c:2"]
        (found,) = lite("anchors", "c", "--json").json
        assert [found[name] for name in ("summary", "phase", "next_steps", "owner", "state")] == [
            "Done",
            "p",
            ["one", "two"],
            "bob",
            [1],
        ]

    def test_fork_merge_and_discard(self, fresh: Shell) -> None:
        """fork prints the new id, merge what it took, discard its receipt."""
        fresh.backend.open().create("c", messages=[{"id": "a", "role": "user", "content": "x"}])
        assert fresh("fork", "c", "--id", "f", "--name", "try", "--at", "2").lines == ["f"]
        made = fresh("fork", "c", "--id", "g", "--at", "a", "--json").json
        assert (made["id"], made["parent"], made["forked_at"]) == ("g", "c", 3)
        fresh("append", "f", "y", "--role", "assistant")
        assert fresh("merge", "c", "f").lines[0].endswith(" 1 message")
        assert fresh("merge", "c", "try").lines[0].endswith(" already up to date")
        fresh("append", "f", "z", "--role", "assistant")
        receipt = fresh(
            "merge", "c", "f", "--strategy", "squash", "--summary", "S", "--fields", '{"role": "user"}', "--json"
        )
        assert (receipt.json["strategy"], len(receipt.json["message_ids"])) == ("squash", 1)
        assert fresh("cat", "c", "--last", "1", "--json").json[0]["message"] == {"role": "user", "content": "S"}
        assert fresh("discard", "g", "--reason", "no", "--json").json["tape"] == "g"
        assert fresh("info", "g", "--json").json["status"] == "discarded"

    def test_refusals_say_what_to_do(self, fresh: Shell) -> None:
        """A conflict, a moved head and a closed tape are one line each, and nothing is written."""
        store = fresh.backend.open()
        chat = store.create("c", messages=[{"id": "a", "role": "user", "content": "x"}])
        helper = chat.fork("f")
        chat.revise("a", content="ours")
        helper.revise("a", content="theirs")
        store.create("done").complete()
        chat.append(role="user", content="k", key="k")
        before = contents(fresh.backend)
        for command, line in (
            (
                ["merge", "c", "f"],
                (
                    "both 'c' and its child 'f' changed message 'a'; "
                    "choose a side with --on-conflict ours or --on-conflict theirs\n"
                ),
            ),
            (
                ["append", "c", "x", "--expected-head", "1"],
                "tape 'c' is at seq 5, not at the expected seq 1; read the tape again, then decide whether to retry\n",
            ),
            (["append", "done", "x"], "tape 'done' is completed"),
            (
                ["append", "c", "other", "--key", "k"],
                "key 'k' of tape 'c' was already used for other content (seq 5); use a new --key for new content\n",
            ),
        ):
            done = fresh(*command)
            assert (done.code, done.out) == (1, "")
            assert done.err.startswith(f"tape: {line}")
            assert done.err.count("\n") == 1
        assert contents(fresh.backend) == before
        assert fresh("merge", "c", "f", "--on-conflict", "theirs").code == 0


class TestMoving:
    def test_export_and_import(self, shell: Shell, tmp_path: Path) -> None:
        """A tape goes out to a file and comes in elsewhere, with a new store; twice changes nothing."""
        file = tmp_path / "chat.jsonl"
        assert shell("export", "chat", str(file), "--family", "--json").json["entries"] == 22
        other = ["-s", str(tmp_path / "other.db")]
        assert tape_command(*other, "import", str(file)).lines == ["imported 22 entries of 4 tapes"]
        assert tape_command(*other, "import", str(file), "--json").json["entries"] == 0
        assert tape_command(*other, "verify").code == 0
        assert tape_command(*other, "log", "chat", "--graph").out == shell("log", "chat", "--graph").out
        assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []

    def test_export_through_pipes(self, shell: Shell, tmp_path: Path) -> None:
        """- is stdout and stdin."""
        sent = shell("export", "hotels", "-")
        assert (sent.code, sent.err) == (0, "")
        assert [json.loads(line) for line in sent.lines]
        done = tape_command("-s", str(tmp_path / "o.db"), "import", "-", stdin=sent.out)
        assert done.lines == ["imported 5 entries of 2 tapes"]

    def test_an_export_of_a_purged_tape_needs_reuse(self, lite: Shell) -> None:
        """The error names the option of the command, and with it the import succeeds."""
        lite.backend.open().create("c")
        sent = lite("export", "c", "-").out
        assert lite("purge", "c", "--yes").code == 0
        refused = lite("import", "-", stdin=sent)
        hint = "nothing was imported; add --reuse to use the id again"
        assert (refused.code, refused.err) == (4, f"tape: line 1: tape 'c' was purged; {hint}\n")
        assert lite("import", "-", "--reuse", stdin=sent).lines == ["imported 1 entry of 1 tape"]

    def test_an_existing_file_is_kept(self, shell: Shell, tmp_path: Path) -> None:
        """export and backup overwrite a file only with --force."""
        file = tmp_path / "there"
        file.write_text("mine")
        for command in (["export", "chat", str(file)], ["backup", str(file)]):
            done = shell(*command)
            assert (done.code, done.err) == (1, f"tape: {str(file)!r} already exists; add --force to overwrite it\n")
        assert file.read_text() == "mine"
        assert shell("export", "chat", str(file), "--force").lines == ["exported 13 entries of 1 tape"]

    def test_broken_files_are_refused(self, shell: Shell, tmp_path: Path) -> None:
        """A file that is cut, changed, empty or something else imports nothing, creates nothing, and is one line."""
        whole = shell("export", "chat", "-").out
        broken = {
            "cut": (whole[:-200], "tape: line "),
            "changed": (whole.replace("By train", "By plane", 1), "tape: line "),
            "empty": ("", "is empty; name an export or a transcript"),
            "other": ("hello\n", "is neither an export nor a transcript in a known format; "),
            "bytes": ("\ufffd\x00", "is neither an export nor a transcript in a known format; "),
        }
        before = shell.state()
        for name, (text, told) in broken.items():
            (tmp_path / name).write_text(text)
            for done in (
                shell("import", str(tmp_path / name)),
                tape_command("-s", str(tmp_path / "new.db"), "import", str(tmp_path / name)),
            ):
                assert (done.code, done.out, done.err.count("\n")) == (4, "", 1), name
                assert told in done.err
        assert shell.state() == before
        assert not (tmp_path / "new.db").exists()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(broken)

    def test_a_store_that_appears_meanwhile_is_not_overwritten(
        self, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two that create the same file: the second is told to try again, and the first one's stays."""
        (tmp_path / "x.jsonl").write_text(shell("export", "chat", "-").out)
        target = tmp_path / "new.db"
        real = os.link

        def late(source: Any, to: Any) -> None:
            Path(to).write_text("first")
            real(source, to)

        monkeypatch.setattr(os, "link", late)
        done = tape_command("-s", str(target), "import", str(tmp_path / "x.jsonl"))
        assert (done.code, "run the same command again" in done.err, target.read_text()) == (1, True, "first")

    def test_backup(self, shell: Shell, tmp_path: Path) -> None:
        """backup copies an SQLite store; on PostgreSQL it says what to use."""
        file = tmp_path / "copy.db"
        done = shell("backup", str(file), "--json")
        if shell.backend.postgres:
            assert (done.code, "pg_dump" in done.err) == (6, True)
            return
        assert done.json == {"file": str(file), "bytes": file.stat().st_size}
        assert tape_command("-s", str(file), "log", "chat", "--graph").out == shell("log", "chat", "--graph").out

    def test_the_help_names_every_format(self) -> None:
        """The help of import names every format there is an importer for, and no other."""
        shown = " ".join(tape_command("import", "--help").out.replace("│", " ").split())
        assert f"The transcript format: {', '.join(FORMATS)} [default: detected]." in shown

    @pytest.mark.parametrize("file", sorted(TRANSCRIPTS.iterdir()), ids=lambda file: file.name)
    def test_a_transcript_becomes_a_tape_in_one_command(self, tmp_path: Path, file: Path) -> None:
        """Whatever wrote it, a second import adds nothing, and the tapes are sound."""
        source = next(name for name in FORMATS if file.name.startswith(name))
        store = str(tmp_path / "new.db")
        first = tape_command("-s", store, "import", "--from", source, str(file), "--json").json
        assert sum(one["added"] for one in first) > 1
        again = tape_command("-s", store, "import", "--from", source, str(file), "--json").json
        assert [(one["tape"], one["added"]) for one in again] == [(one["tape"], 0) for one in first]
        assert [one["known"] for one in again] == [one["added"] + one["known"] for one in first]
        assert tape_command("-s", store, "verify").code == 0

    def test_a_transcript_that_is_refused_leaves_no_store(self, tmp_path: Path) -> None:
        """A broken file, a file of another kind, an unknown format and a missing file are one line each."""
        file, store = tmp_path / "broken.jsonl", tmp_path / "new.db"
        file.write_text((TRANSCRIPTS / "claude-code.jsonl").read_text() + '{"type": "user", "uuid":\n')

        def take(*arguments: str) -> Done:
            return tape_command("-s", str(store), "import", *arguments)

        lines = file.read_text().count("\n")
        broken = take("--from", "claude-code", str(file), "--strict")
        assert (broken.code, len(broken.err.splitlines())) == (4, 1)
        assert f"line {lines}" in broken.err
        assert take("--from", "codex", str(TRANSCRIPTS / "anthropic.json")).code == 4
        unknown = take("--from", "word", str(file))
        assert (unknown.code, unknown.err) == (
            2,
            f"tape: --from: invalid value 'word'; choose one of: {', '.join(FORMATS)}\n",
        )
        nowhere = take("--from", "codex", "nowhere")
        assert (nowhere.code, nowhere.err) == (3, "tape: cannot read 'nowhere': No such file or directory\n")
        assert take("--tape", "t", "--reuse", str(file)).code == 2
        assert not store.exists()

    def test_a_transcript_is_read_from_stdin_and_pipes(self, tmp_path: Path) -> None:
        """Stdin and a pipe are imported into the named tape; a device, and stdin without --tape, are refused."""
        whole, store = (TRANSCRIPTS / "openai-messages.jsonl").read_bytes(), tmp_path / "new.db"

        def take(*arguments: str, stdin: bytes = b"") -> Done:
            return tape_command("-s", str(store), "import", "--from", "openai", *arguments, stdin=stdin)

        nameless = take("-", stdin=whole)
        assert (nameless.code, nameless.err) == (
            2,
            "tape: stdin does not give the tape a name; name the tape with --tape\n",
        )
        assert take("-", "--tape", "t", "--reuse", stdin=whole).code == 2
        assert take("/dev/null").code == 2
        assert not store.exists()
        first = take("-", "--tape", "t", "--json", stdin=whole).json
        os.mkfifo(tmp_path / "pipe")
        thread = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(whole))
        thread.start()
        again = take(str(tmp_path / "pipe"), "--tape", "t", "--json").json
        thread.join()
        assert [(one["tape"], one["added"]) for one in first + again] == [("t", first[0]["added"]), ("t", 0)]

    def test_a_refused_transcript_names_the_next_step(self, tmp_path: Path) -> None:
        """The hint names the format that was tried and the option that chooses another."""
        store, file = str(tmp_path / "new.db"), tmp_path / "talk.json"
        file.write_text("{")
        done = tape_command("-s", store, "import", "--from", "openai", str(file))
        hint = "nothing was imported; check that the format of the file is openai, or choose another --from"
        assert (done.code, done.err.endswith(f"; {hint}\n")) == (4, True), done.err


class TestMaintaining:
    def test_verify(self, fresh: Shell) -> None:
        """verify prints how many entries it checked."""
        fresh.backend.open().create("c", messages=[{"role": "user", "content": "x"}])
        assert fresh("verify").lines == ["2 entries of 1 tape: no problems"]
        found = fresh("verify", "c", "--json").json
        assert found == {"ok": True, "tapes": 1, "entries": 2, "problems": [], "erased": []}

    def test_verify_against_a_receipt(self, lite: Shell) -> None:
        """A receipt that does not match the store is damage; a mistyped hash is a usage error."""
        receipt = lite.backend.open().create("c").append(role="user", content="x")
        assert lite("verify", "c", "--seq", "2", "--hash", receipt.hash).code == 0
        assert lite("verify", "c", "--seq", "2", "--hash", "0" * 64).code == 4
        assert lite("verify", "c", "--seq", "9", "--hash", receipt.hash).code == 4
        assert lite("verify", "--seq", "2", "--hash", receipt.hash).code == 2
        for mistyped in (receipt.hash[:-1], receipt.hash + "0", "g" * 64, ""):
            done = lite("verify", "c", "--seq", "2", "--hash", mistyped)
            assert (done.code, done.out, f"--hash: {mistyped!r} is not a hash" in done.err) == (2, "", True)

    def test_rebuild_repairs_a_damaged_view(self, fresh: Shell) -> None:
        """verify exits with 4 and names the command that repairs the view; afterwards it reports no problems."""
        fresh.backend.open().create("c", messages=[{"role": "user", "content": "x"}])
        raw = fresh.backend.raw()
        raw.execute("DELETE FROM tape_live")
        raw.close()
        done = fresh("verify")
        assert done.code == 4
        assert done.err.startswith("the entries are intact; repair the rest with: tape rebuild --store ")
        assert done.out.splitlines()[0] == "c:2 a row of tape_live is missing"
        problems = json.loads(fresh("verify", "--json").out)["problems"]
        assert problems == [{"tape": "c", "seq": 2, "what": "a row of tape_live is missing", "mend": "rebuild"}]
        assert fresh("rebuild", "c", "--json").json == {"rebuilt": 1}
        assert fresh("verify").code == 0
        assert fresh("rebuild").lines == ["rebuilt 1 tape"]

    def test_damage_to_entries_is_told(self, fresh: Shell) -> None:
        """A changed entry is damage that only a backup mends."""
        fresh.backend.open().create("c", messages=[{"role": "user", "content": "x"}])
        tamperer = Tamperer(fresh.backend)
        tamperer.run("UPDATE tape_entries SET actor = 'someone' WHERE seq = 2")
        tamperer.close()
        done = fresh("verify")
        assert (done.code, "restore" in done.err) == (4, True)
        assert json.loads(fresh("verify", "--json").out)["problems"][0]["mend"] == "restore"

    def test_purge_asks_for_confirmation(self, fresh: Shell) -> None:
        """Without a terminal, purge needs --yes and a full id; with --forks it purges the forks, too."""
        family(fresh.backend.open())
        before = contents(fresh.backend)
        assert (
            fresh("purge", "spare").err
            == "tape: a purge cannot be undone, and there is no terminal to confirm it on; add --yes\n"
        )
        users = "'hotels', 'trains', 'spare'"
        for words in (["purge", "chat"], ["purge", "chat", "--yes"]):
            used = fresh(*words)
            hint = "purge those tapes first, or add --forks"
            assert (used.code, used.err) == (1, f"tape: tape 'chat' is used by {users}; {hint}\n")
        assert fresh("purge", "Lisbon", "--yes").code == 3
        assert contents(fresh.backend) == before
        assert sorted(fresh("purge", "chat", "--forks", "--yes", "--json").json["tapes"]) == [
            "chat",
            "hotels",
            "spare",
            "trains",
        ]
        assert fresh("ls", "--json").json["tapes"] == []

    def test_a_hidden_tape_is_not_mistaken_for_another(self, fresh: Shell) -> None:
        """No tape with the same id prefix takes its place, and purging it needs confirmation, too."""
        store = fresh.backend.open()
        store.create("plan", messages=[{"role": "user", "content": "x"}]).fork("plan-2")
        assert fresh("hide", "plan", "--reason", "tidied", "--key", "k", "--json").json["seq"] == 4
        assert fresh("hide", "plan-2", "--expected-view", "2").code == 1
        before = contents(fresh.backend)
        for words in (["cat", "plan"], ["discard", "plan"], ["append", "plan", "x"], ["hide", "plan"]):
            done = fresh(*words)
            assert (done.code, "is hidden (tidied)" in done.err) == (3, True), words
        assert (
            fresh("purge", "plan", "--forks").err
            == "tape: a purge cannot be undone, and there is no terminal to confirm it on; add --yes\n"
        )
        assert contents(fresh.backend) == before
        assert [one["hidden_reason"] for one in fresh("ls", "--hidden", "--json").json["tapes"]] == ["tidied"]
        assert fresh("unhide", "plan", "--json").json["seq"] == 5
        shown = fresh("log", "plan").out
        assert "hidden (tidied)" in shown
        assert "shown again" in shown

    def test_retain_tells_first(self, fresh: Shell) -> None:
        """retain lists what would go, and purges only with --apply."""
        fresh.backend.open(clock=lambda: 1_600_000_000_000_000).create("old")
        fresh.backend.open().create("new")
        done = fresh("retain", "--older-than", "30d")
        assert (done.out, done.err) == ("old\n", "would purge 1 tape, 1 entry\n")
        assert fresh("retain", "--older-than", "30d", "--apply").code == 2
        assert fresh("retain", "--older-than", "30d", "--apply", "--yes", "--json").json == {
            "dry_run": False,
            "tapes": ["old"],
            "entries": 1,
            "kept": {},
        }
        assert [one["id"] for one in fresh("ls", "--json").json["tapes"]] == ["new"]

    def test_migrate_restores_missing_guards(self, fresh: Shell) -> None:
        """--check names the missing guards and exits with 5; migrate restores them, and --check then exits with 0."""
        assert fresh("migrate", "--check", "--json").json["guards"] == []
        raw = fresh.backend.raw()
        names = guard_names(fresh)[1:2]
        for name in names:
            raw.execute(f"DROP TRIGGER {name}" + (" ON tape_entries" if fresh.backend.postgres else ""))
        raw.close()
        done = fresh("migrate", "--check")
        assert (done.code, done.out.splitlines()[-1]) == (5, f"missing guards: {', '.join(names)}")
        found = fresh("migrate", "--check", "--json")
        assert (found.code, json.loads(found.out)["guards"], json.loads(found.out)["done"]) == (5, names, False)
        assert fresh("migrate").lines[-1] == f"restored guards: {', '.join(names)}"
        assert fresh("migrate", "--check").code == 0

    @pytest.mark.blank
    def test_migrate(self, backend: Backend) -> None:
        """migrate creates a store only with --create, and reports a schema that is up to date."""
        shell = Shell(backend)
        assert shell("migrate").code == 3
        assert shell("migrate", "--create", "--check").code == 5
        assert shell("ls").code == 3
        assert shell("migrate", "--create", "--json").json["found"] is None
        assert shell("migrate").lines == [f"schema {REVISION} is up to date"]
        assert shell("ls", "--json").json["tapes"] == []

    def test_migrate_puts_guards_back(self, backend: Backend) -> None:
        """Triggers that were dropped or switched off are put back, and hold."""
        backend.open().create("c")
        shell = Shell(backend)
        tamperer = Tamperer(backend, guarded=True)
        tamperer.unguard()
        tamperer.close()
        assert len(shell("migrate", "--json").json["guards"]) == (2 if backend.postgres else 3)
        assert shell("migrate", "--json").json["guards"] == []
        tamperer = Tamperer(backend, guarded=True)
        with pytest.raises(Exception, match="immutable"):
            tamperer.run("UPDATE tape_entries SET actor = 'x'")
        tamperer.close()


class TestOldAndNewSchemas:
    @pytest.fixture
    def old(self, tmp_path: Path) -> Iterator[Path]:
        """A store of this release, and the command of a later one."""
        with tape.open(tmp_path / "old.db") as store:
            store.create("c")
        with second_release():
            yield tmp_path / "old.db"

    def test_an_older_store_is_upgraded_only_by_migrate(self, old: Path) -> None:
        """No other command upgrades a store: a program of the older release may be using it."""
        before = old.read_bytes()
        for command in (["ls"], ["append", "x", "y", "--create"], ["verify"]):
            done = tape_command("-s", str(old), *command)
            assert (done.code, "take a backup, then run: tape migrate --store " in done.err) == (5, True)
        check = tape_command("-s", str(old), "migrate", "--check", "--json")
        assert (check.code, json.loads(check.out)["found"]) == (5, REVISION)
        assert old.read_bytes() == before
        assert tape_command("-s", str(old), "migrate").lines == [f"schema {REVISION}, upgraded to {SECOND}"]
        assert tape_command("-s", str(old), "verify").code == 0

    def test_a_newer_store_is_refused(self, backend: Backend) -> None:
        """A store of a newer release is left untouched."""
        backend.open().create("c")
        raw = backend.raw()
        raw.execute("UPDATE tape_version SET version_num = '9999'")
        raw.close()
        shell, before = Shell(backend), contents(backend)
        for command in (["ls"], ["migrate"], ["append", "c", "x"], ["import", str(TRANSCRIPTS / "codex-old.jsonl")]):
            done = shell(*command)
            assert (done.code, done.out, done.err.count("\n")) == (5, "", 1)
            assert "upgrade tape-store" in done.err
        assert contents(backend) == before
