import asyncio
import contextlib
import json
import sqlite3
import stat
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typer.testing import CliRunner

from callgate.access import key_store
from callgate.access.key_store import DamagedStore, FileKeys, KeyStore, NameTaken, stored_keys
from callgate.access.keys import NO_LOOK, KeyEntry, Keyring, KeySource, KeysUnknown, WatchedKeys, mint_key
from callgate.callers.allowance import Allowance
from callgate.callers.caller import ANONYMOUS
from callgate.commands import app
from callgate.conversation.errors import ChatError
from tests.chaos.scale import examples

SECRET, HASH = mint_key()
OTHER, OTHER_HASH = mint_key()
ALICE = KeyEntry("alice", HASH, ("demo",), ("clock",), approve=True, allowance=Allowance(requests_per_minute=5))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_store, "LOOK_SECONDS", 0.0)
    opened = KeyStore(tmp_path)
    yield opened
    opened.close()


def test_a_key_comes_back_as_it_was_made(store: KeyStore) -> None:
    store.add(ALICE)
    assert list(store.entries()) == [ALICE]


def test_a_key_made_elsewhere_is_let_in_and_a_revoked_one_is_not(store: KeyStore, tmp_path: Path) -> None:
    ring = Keyring([], source=store)
    assert ring.identify({}) is ANONYMOUS
    elsewhere = KeyStore(tmp_path)
    elsewhere.add(ALICE)
    assert ring.identify({"api-key": SECRET}).allowance == ALICE.allowance
    with pytest.raises(ChatError):
        ring.identify({})
    assert elsewhere.revoke("alice")
    with pytest.raises(ChatError):
        ring.identify({"api-key": SECRET})
    elsewhere.close()


def test_after_the_last_key_was_revoked_every_request_is_refused(store: KeyStore) -> None:
    store.add(ALICE)
    store.revoke("alice")
    ring = Keyring([], source=store)
    assert not ring.open
    with pytest.raises(ChatError):
        ring.identify({})


def test_a_name_gets_another_key_and_the_old_one_is_taken_for_a_while(store: KeyStore) -> None:
    store.add(msgspec.structs.replace(ALICE, expires_at=5e9))
    assert store.rotate("alice", OTHER_HASH, 4e9)
    [entry] = store.entries()
    assert entry == msgspec.structs.replace(ALICE, hash=OTHER_HASH, expires_at=5e9, old_hash=HASH, old_expires_at=4e9)
    ring = Keyring([], source=store)
    assert ring.identify({"api-key": SECRET}).name == ring.identify({"api-key": OTHER}).name == "alice"
    store.revoke("alice")
    for key in (SECRET, OTHER):
        with pytest.raises(ChatError):
            ring.identify({"api-key": key})
    assert not store.rotate("alice", HASH, 4e9)


def test_between_two_looks_the_same_object_is_given(store: KeyStore) -> None:
    store.add(ALICE)
    assert store.entries() is store.entries()


def test_a_name_of_the_config_stays_the_configs(store: KeyStore) -> None:
    store.add(KeyEntry("alice", OTHER_HASH))
    ring = Keyring([ALICE], source=store)
    assert ring.identify({"api-key": SECRET}).models == ("demo",)
    with pytest.raises(ChatError):
        ring.identify({"api-key": OTHER})


def test_a_name_is_not_used_twice_even_after_it_was_revoked(store: KeyStore) -> None:
    store.add(ALICE)
    store.revoke("alice")
    with pytest.raises(NameTaken):
        store.add(KeyEntry("alice", OTHER_HASH))
    with pytest.raises(NameTaken):
        store.add(KeyEntry("bob", HASH))
    assert not store.revoke("alice")
    assert not store.revoke("nobody")


def test_the_file_is_the_owners_alone_and_holds_no_key(store: KeyStore, tmp_path: Path) -> None:
    store.add(ALICE)
    file = tmp_path / key_store.FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert all(SECRET.encode() not in each.read_bytes() for each in tmp_path.iterdir())


def test_a_disk_that_fails_for_a_moment_refuses_no_key(store: KeyStore, tmp_path: Path) -> None:
    store.add(ALICE)
    ring = Keyring([], source=store)
    elsewhere = KeyStore(tmp_path)
    elsewhere._database.execute("ALTER TABLE keys RENAME TO elsewhere")
    assert ring.identify({"api-key": SECRET}).name == "alice"
    with pytest.raises(ChatError):
        ring.identify({"api-key": OTHER})
    elsewhere.close()


def test_a_file_emptied_while_it_is_read_refuses_no_key_and_accepts_no_other(store: KeyStore, tmp_path: Path) -> None:
    store.add(ALICE)
    ring = Keyring([], source=store)
    (tmp_path / key_store.FILE).write_bytes(b"")
    assert not ring.open
    assert ring.identify({"api-key": SECRET}).name == "alice"
    with pytest.raises(ChatError):
        ring.identify({})


def test_a_file_that_was_replaced_is_read_and_one_that_is_gone_knows_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store, "LOOK_SECONDS", 0.0)
    file = tmp_path / key_store.FILE
    with contextlib.closing(KeyStore(tmp_path)) as commands:
        commands.add(ALICE)
    with contextlib.closing(FileKeys(tmp_path)) as keys:
        ring = Keyring([], source=keys)
        assert ring.identify({"api-key": SECRET}).name == "alice"
        gone = file.rename(tmp_path / "moved.sqlite3")
        for headers in ({"api-key": SECRET}, {}):
            with pytest.raises(ChatError) as refusal:
                ring.identify(headers)
            assert (refusal.value.code, ring.open, file.exists()) == ("keys_unavailable", False, False)
        file.write_bytes(b"no keys" * 1000)
        with pytest.raises(ChatError):
            ring.identify({"api-key": SECRET})
        file.unlink()
        with contextlib.closing(KeyStore(tmp_path)):
            for headers in ({"api-key": SECRET}, {}):
                with pytest.raises(ChatError):
                    ring.identify(headers)
            assert not ring.open
        for other in tmp_path.glob(f"{key_store.FILE}-*"):
            other.unlink()
        gone.replace(file)
        assert ring.identify({"api-key": SECRET}).name == "alice"
        with contextlib.closing(KeyStore(tmp_path)) as commands:
            commands.revoke("alice")
        with pytest.raises(ChatError):
            ring.identify({"api-key": SECRET})


class Clock:
    """The monotonic clock, which stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = staticmethod(time.time)


class AskedEachTime:
    """A source that is asked each time."""

    look = NO_LOOK

    def __init__(self, source: KeySource) -> None:
        self._source = source
        self.entries = source.entries

    @property
    def in_use(self) -> bool:
        return self._source.in_use


MOVES = [
    "wait",
    "wait",
    "a little",
    "look",
    "add",
    "revoke",
    "add here",
    "revoke here",
    "close",
    "take away",
    "bring back",
]


@example(["add", "wait", "revoke", "a little", "wait"])
@example(["add here", "revoke here"])
@example(["take away", "add here"])
@example(["add", "wait", "take away", "wait", "bring back", "wait", "wait"])
@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.sampled_from(MOVES), max_size=14))
def test_a_change_is_noticed_as_soon_as_by_who_asks_each_time(moves: list[str]) -> None:
    clock = Clock()
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
        contextlib.closing(FileKeys(Path(folder))) as keys,
        capture_logs(),
    ):
        patch.setattr(key_store, "time", clock)
        patch.setattr("callgate.access.keys.time", clock)
        watched = WatchedKeys(keys, lambda widened, hashed: None)
        ring = Keyring([], source=watched)
        plain = Keyring([], source=AskedEachTime(watched))
        for number, move in enumerate(moves):
            _move(move, number, keys, Path(folder), clock)
            before = ring.last_generation(), plain.last_generation()
            after = ring.generation(), plain.generation()
            assert after[0] - before[0] == after[1] - before[1]
            assert ring._seen is plain._seen
            assert ring.may_be_open == plain.may_be_open


def _move(move: str, number: int, keys: FileKeys, folder: Path, clock: Clock) -> None:
    entry = KeyEntry(f"key{number}", mint_key()[1])
    file = folder / key_store.FILE
    away = folder / "away.sqlite3"
    match move:
        case "wait":
            clock.now += key_store.LOOK_SECONDS
        case "a little":
            clock.now += key_store.LOOK_SECONDS / 3
        case "look":
            keys.look_away()
        case "add" | "revoke" if file.exists():
            with contextlib.closing(KeyStore(folder)) as commands:
                if move == "add":
                    commands.add(entry)
                elif stored := [key for key in commands.all() if key.revoked_at is None]:
                    commands.revoke(stored[0].entry.name)
        case "add here":
            with contextlib.suppress(KeysUnknown):
                asyncio.run(keys.add(entry))
        case "revoke here":
            with contextlib.suppress(KeysUnknown, IndexError):
                asyncio.run(keys.revoke(keys.entries()[0].name))
        case "close" if keys._store is not None:
            keys._leave(keys._store)
        case "take away" if file.exists():
            file.rename(away)
        case "bring back" if away.exists() and not file.exists():
            away.rename(file)
        case _:
            pass


def test_within_a_look_the_keys_are_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_store, "LOOK_SECONDS", 1_000.0)
    with contextlib.closing(FileKeys(tmp_path)) as keys:
        ring = Keyring([], source=keys)
        first = ring.generation()
        asyncio.run(keys.add(ALICE))
        second = ring.generation()
        with monkeypatch.context() as patch:
            patch.setattr(FileKeys, "entries", None)
            assert ring.generation() == second != first
        asyncio.run(keys.revoke("alice"))
        assert ring.generation() != second
        with pytest.raises(ChatError):
            ring.identify({"api-key": SECRET})


def test_a_new_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    KeyStore(tmp_path).close()
    assert [each.name for each in tmp_path.iterdir()] == [key_store.FILE]
    assert stored_keys(tmp_path) == 0


def test_counting_makes_no_file(tmp_path: Path) -> None:
    assert stored_keys(tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


def test_names_are_values_to_the_database(store: KeyStore) -> None:
    hostile = "x'; DROP TABLE keys; --"
    store.add(KeyEntry(hostile, HASH))
    assert [key.entry.name for key in store.all()] == [hostile]
    assert not store.revoke("' OR 1=1 --")


@pytest.mark.parametrize(
    "damage", ["no database", "empty", "no table", "cut", "models", "allowance", "hash", "another table"]
)
def test_a_damaged_file_is_one_clear_error_and_admits_no_one(tmp_path: Path, damage: str) -> None:
    file = damaged(tmp_path, damage)
    with pytest.raises(DamagedStore, match="No key in it is accepted") as failed:
        KeyStore(tmp_path)
    assert str(file) in str(failed.value)
    assert file.exists()


@pytest.mark.parametrize("damage", ["no database", "empty", "cut", "models"])
@pytest.mark.parametrize("command", [["keys", "list"], ["check"]])
def test_commands_that_need_it_end_with_one_line_about_it(tmp_path: Path, damage: str, command: list[str]) -> None:
    file = damaged(tmp_path / "data", damage)
    config = tmp_path / "config.yaml"
    model = {"model_name": "demo", "litellm_params": {"model": "demo/demo"}}
    config.write_text(json.dumps({"model_list": [model], "data_dir": str(tmp_path / "data")}))
    ended = CliRunner().invoke(app, [*command, "--config", str(config)])
    assert ended.exit_code == 2
    [line] = ended.output.splitlines()
    assert line.startswith(f"callgate: data_dir: {file} cannot be read (")


def damaged(folder: Path, damage: str) -> Path:
    file = folder / key_store.FILE
    if damage == "no database":
        folder.mkdir(exist_ok=True)
        file.write_bytes(b"not a database, but long enough to be taken for one" * 50)
        return file
    if damage == "empty":
        folder.mkdir(exist_ok=True)
        file.write_bytes(b"")
        return file
    if damage == "no table":
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE others (name TEXT)")
        return file
    if damage == "another table":
        with contextlib.closing(sqlite3.connect(file)) as database:
            database.execute("CREATE TABLE keys (name TEXT)")
        return file
    store = KeyStore(folder)
    store.add(ALICE)
    store.close()
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:5000])
        return file
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute(f"UPDATE keys SET {damage} = '7'")
        database.commit()
    return file


def test_a_file_of_an_earlier_version_gets_the_columns_that_it_lacks(tmp_path: Path) -> None:
    opened = KeyStore(tmp_path)
    opened.add(ALICE)
    for name in ("see", "expires_at", "old_hash", "old_expires_at", "events", "usage", "offer"):
        opened._database.execute(f"ALTER TABLE keys DROP COLUMN {name}")
    opened.close()
    again = KeyStore(tmp_path)
    assert list(again.entries()) == [ALICE]
    again.close()


def test_an_outage_of_the_file_is_logged_once_without_a_traceback_and_when_it_is_over(tmp_path: Path) -> None:
    class Away:
        def execute(self, _: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

    with contextlib.closing(KeyStore(tmp_path)) as store, capture_logs() as lines:
        database = store._database
        store._database = Away()  # type: ignore[assignment]
        for _ in range(9):
            store._look(0.0)
        store._database = database
        store._look(0.0)
    facts = [(line["event"], line["failures"], "exc_info" in line) for line in lines]
    assert facts == [("key_store_unreadable", 1, False), ("key_store_readable_again", 9, False)]
