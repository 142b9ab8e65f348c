"""`recover` on a log with a fatal entry: it names the entry and the remedy, cuts the log, and resets numbers."""

import errno
import json
import os
import tempfile
import time
from pathlib import Path

import pytest
import trio
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.recover import recover
from bridge.core.farm.state_machine import Farm, result_of_first_term
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.records import Clock, Foreign, KeyReplacement, Level, ProvenRecord, Publication, Report
from bridge.core.membership.eviction import LAST_ERA, Rekeying
from bridge.core.state.farm_state import MasterState
from bridge.core.state.reqids import AHEAD_S, Reqids, ReqidStatus, Update
from bridge.node.control.orders.era_sealing import is_era_left
from bridge.node.events.event_log import clock_ms
from bridge.node.offline.state_reading import FarmOnDisk, read_directory
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.node.security import key_files
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.node.settings.places import Places
from bridge.wire.keys.backup import encode_backup
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.log.snapshot import FarmSnapshot, decode_farm_at_once, encode_farm
from consensus.core.effects import Persist
from consensus.core.model import MAX_NUMBER, Entry, HardState, LogId
from consensus.sessions import parse_request_id
from consensus.storage.directory import open_directory
from consensus.storage.planner import StorageOptions
from consensus.storage.verification import StorageVerdict, verify_storage
from gossip.node.state_files import KEYS_FILE, keep_keys, known_keyring
from tests.authored import signed
from tests.node.test_state_reading import BASE_MS, ENTRIES, FIRST, FOUNDING, A, compacted_directory, node_directory

YEAR_2106_MS = (2**32 - 2) * 1000
LAST = Publication("master", 1, YEAR_2106_MS // 1000, "content")
LAST_TERM = MAX_NUMBER - 1
SERVICE_USER = 65_534


def own(record: Level | Clock | Publication | Report | KeyReplacement) -> bytes:
    """Return an entry signed by server 1, so that the farm accepts it."""
    return signed(record, FIRST, FOUNDING.cluster_id)


LEVELS = tuple(own(Level(number, "9.9.9")) for number in range(2, SUPPORTED_LEVEL + 2))
"""The levels from 2 to the first unsupported one."""


def bad_directory(path: Path, *entries: bytes, term: int = 2) -> Path:
    """Write the directory of a stopped node with entries 1 to 5 of ENTRIES, followed by `entries`."""
    node_directory(path)
    directory, recovery = open_directory(path / RAFT_DIRECTORY, A, 2, StorageOptions(segment_bytes=64 * 1024))
    more = tuple(Entry.command(term, data) for data in entries)
    directory.perform_all(
        recovery.storage.plan(
            [Persist(number=1, hard_state=HardState(term, 1), truncate_from=None, first=len(ENTRIES) + 1, entries=more)]
        )
    )
    recovery.storage.done()
    directory.close()
    return path


def called(directory: Path, *arguments: str, answer: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(recover, ["--from", str(directory), *arguments], input=answer)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def made(directory: Path) -> FarmOnDisk:
    assert verify_storage(directory / RAFT_DIRECTORY).verdict is StorageVerdict.SOUND
    return trio.run(read_directory, directory)


def test_unsupported_level_names_entry_to_cut_before(tmp_path: Path) -> None:
    directory = bad_directory(tmp_path / "node", *LEVELS, b'{"any":1}', own(Clock(BASE_MS + 9_000, 1)))
    entry = len(ENTRIES) + len(LEVELS)
    code, output = called(directory, "--yes")
    assert code == 1
    assert f"Entry {entry} has that level" in output
    assert f"--cut-after {entry - 1}" in output
    code, output = called(directory, "--cut-after", str(entry - 1), "--dry-run")
    assert code == 0
    assert f"kept up to entry {entry - 1} of term 2" in output
    assert f"Dropped: 3 entries, {entry} to {entry + 2}: 1 clock, 1 foreign, 1 level." in output
    assert trio.run(lambda: read_directory(directory, entry - 1)).founding == FOUNDING, "a dry run changes nothing"
    code, output = called(directory, "--cut-after", str(entry - 1), "--yes")
    assert code == 0, output
    assert "Dropped: 3 entries" in output
    after = made(directory)
    assert after.cluster_id != FOUNDING.cluster_id
    assert after.last == LogId(entry - 1, 2)
    assert (after.farm.level, after.farm.log_time_ms) == (SUPPORTED_LEVEL, BASE_MS + 6_000)


def test_skipped_level_does_not_prevent_recovery(tmp_path: Path) -> None:
    directory = bad_directory(tmp_path / "node", own(Level(65535, "9.9.9")))
    assert called(directory, "--yes")[0] == 0
    assert made(directory).farm.level == 1


def test_last_term_is_reported_with_reset_option(tmp_path: Path) -> None:
    directory = bad_directory(tmp_path / "node", b'{"any":1}', term=LAST_TERM)
    code, output = called(directory, "--yes")
    assert code == 1
    assert f"ends at entry 6 of term {LAST_TERM}" in output
    assert "--reset term" in output
    code, output = called(directory, "--reset", "term", "--yes")
    assert code == 0, output
    after = made(directory)
    assert after.last == LogId(6, 1)
    opened, recovery = open_directory(directory / RAFT_DIRECTORY, A, 9, StorageOptions(segment_bytes=64 * 1024))
    opened.close()
    assert recovery.hard_state.term == 1


def test_eras_are_reset_in_state_keyring_and_key_file(tmp_path: Path) -> None:
    last = own(KeyReplacement(LAST_ERA, ()))
    levels = (own(Level(2, "0.1.0")), last)
    directory = bad_directory(tmp_path / "node", *levels)
    key = replace(new_farm_key(3), era=LAST_ERA)
    key_file = tmp_path / "farm.key"
    save_farm_key(key_file, key)
    keep_keys(directory, key.key_ring)
    code, output = called(directory, "--dry-run")
    assert (code, "add `--reset era`" in output) == (0, True)
    code, output = called(directory, "--reset", "era", "--yes")
    assert code == 1
    assert "--reset era needs --farm-key FILE" in output
    code, output = called(directory, "--reset", "era", "--farm-key", str(key_file), "--yes")
    assert code == 0, output
    assert made(directory).farm.rekeying == Rekeying()
    ring, filed = known_keyring(directory, key.label), load_farm_key(key_file)
    assert ring is not None
    assert (ring.era, ring.primary, filed.era) == (0, key.gossip_keys[0], 0)
    ring = filed.key_ring.merge(ring)
    assert ring.era == 0, "the node starts with era 0"
    assert is_era_left(made(directory).farm, ring), "`keys replace` works again"


def test_key_file_gets_present_keys_of_state_directory(tmp_path: Path) -> None:
    directory, key, key_file = bad_directory(tmp_path / "node"), new_farm_key(3), tmp_path / "farm.key"
    save_farm_key(key_file, key)
    present = key.key_ring.install(bytes(32)).use(bytes(32))
    keep_keys(directory, present)
    code, output = called(directory, "--farm-key", str(key_file), "--yes")
    assert code == 0, output
    filed, founding = load_farm_key(key_file), made(directory).founding
    assert founding is not None
    assert (filed.key_ring.primary, filed.cluster_id) == (present.primary, founding.cluster_id)


def test_root_recovers_for_service_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as below:
        root, key = Path(below), new_farm_key(3)
        root.chmod(0o755)
        places = Places(root, bad_directory(root / "state"), is_service=True)
        save_farm_key(places.farm_key, key)
        keep_keys(places.state_dir, key.key_ring)
        for each in (places.farm_key, places.state_dir, *places.state_dir.rglob("*")):
            if os.geteuid() == 0:
                os.chown(each, SERVICE_USER, SERVICE_USER)
        owner = places.state_dir.stat().st_uid
        monkeypatch.setattr("bridge.cli.recover.node_places", lambda: places)
        code, output = called(places.state_dir, "--farm-key", str(places.farm_key), "--yes")
        assert code == 0, output
        assert {each.stat().st_uid for each in (places.farm_key, *places.state_dir.rglob("*"))} == {owner}


def test_damaged_stored_keys_are_refused_before_any_change(tmp_path: Path) -> None:
    directory, key, key_file = bad_directory(tmp_path / "node"), new_farm_key(3), tmp_path / "farm.key"
    save_farm_key(key_file, key)
    keep_keys(directory, key.key_ring)
    (directory / KEYS_FILE).write_bytes((directory / KEYS_FILE).read_bytes()[:-1])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for option in ("--dry-run", "--yes"):
        code, output = called(directory, "--farm-key", str(key_file), option)
        assert (code, str(directory / KEYS_FILE) in output) == (1, True), output
        assert "Servers left out" not in output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_unwritable_key_file_is_reported_before_any_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    directory, key_file = bad_directory(tmp_path / "node"), tmp_path / "farm.key"
    save_farm_key(key_file, new_farm_key(3))
    monkeypatch.setattr(key_files, "replace_file", fail)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, output = called(directory, "--farm-key", str(key_file), answer="y\n")
    assert (code, f"{key_file} cannot be written" in output) == (1, True), output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_declined_recovery_does_not_write_key_file(tmp_path: Path) -> None:
    directory, key_file = bad_directory(tmp_path / "node"), tmp_path / "farm.key"
    save_farm_key(key_file, new_farm_key(3))
    with key_file.open("a") as file:
        file.write("# an operator's comment\n")
    before = key_file.stat().st_ino, key_file.read_bytes()
    code, output = called(directory, "--farm-key", str(key_file), answer="n\n")
    assert (code, "nothing was done" in output) == (1, True), output
    assert (key_file.stat().st_ino, key_file.read_bytes()) == before


def test_reset_term_applies_to_request_results() -> None:
    farm = Farm(BASE_MS)
    farm.apply(1, 2**31, ProvenRecord(Foreign("any", "client-0-1")))
    farm.sessions.change_results(result_of_first_term)
    request = parse_request_id("client-0-1")
    assert request is not None
    result = farm.sessions.result_of(request)
    assert result is not None
    assert (int.from_bytes(result[:8]), int.from_bytes(result[8:])) == (1, 1)


def test_question_names_entries_to_cut(tmp_path: Path) -> None:
    directory = bad_directory(tmp_path / "node", b'{"any":1}', b'{"any":2}')
    acknowledged = "lose all entries that only they acknowledged"
    code, output = called(directory, "--cut-after", "5", answer="n\n")
    assert (code, f"{acknowledged} and the survivor's entries 6 to 7?" in output) == (1, True), output
    code, output = called(directory, "--cut-after", "6", answer="n\n")
    assert (code, f"{acknowledged} and the survivor's entry 7?" in output) == (1, True), output


def test_last_term_can_be_cut_off(tmp_path: Path) -> None:
    directory = bad_directory(tmp_path / "node", b'{"any":1}', term=LAST_TERM)
    assert called(directory, "--cut-after", "5", "--yes")[0] == 0
    assert made(directory).last == LogId(5, 2)


def test_log_time_in_far_future_can_be_reset(tmp_path: Path) -> None:
    backup = backup_of_2106(tmp_path)
    code, output = called(backup, "--state-dir", str(tmp_path / "new"), "--dry-run")
    assert code == 0, output
    assert "Log time is 2106-" in output
    assert "add `--reset time`" in output
    assert called(backup, "--state-dir", str(tmp_path / "new"), "--reset", "time", "--yes")[0] == 0
    after = made(tmp_path / "new")
    assert abs(after.farm.log_time_ms - clock_ms()) < 60_000
    assert after.founding is not None
    assert abs(after.founding.log_time_base_ms - clock_ms()) < 60_000
    assert [each.publication.published_s for each in after.farm.masters.values() if each.publication] == [
        LAST.published_s
    ]


def test_reset_log_time_does_not_reapply_old_updates(tmp_path: Path) -> None:
    backup = backup_of_2106(tmp_path)
    assert called(backup, "--state-dir", str(tmp_path / "new"), "--reset", "time", "--yes")[0] == 0
    after = made(tmp_path / "new")
    reqids = Reqids.load(decode_farm_at_once([after.image]).reqids)
    log_time_ms = after.farm.log_time_ms
    for second in (log_time_ms // 1000, log_time_ms // 1000 + AHEAD_S):
        update = Update(second.to_bytes(4) + bytes(8), proven=True)
        assert reqids.judge(update, log_time_ms) is ReqidStatus.EXPIRED
    later_ms = log_time_ms + 60_000
    later = (later_ms // 1000 + AHEAD_S).to_bytes(4) + bytes(8)
    assert reqids.judge(Update(later, proven=True), later_ms) is ReqidStatus.NEW


def test_reset_publication_second_reports_router_delay(tmp_path: Path) -> None:
    backup = backup_of_2106(tmp_path)
    code, output = called(backup, "--state-dir", str(tmp_path / "new"), "--dry-run")
    assert "The last publication has the time 2106-" in output
    assert "add `--reset second`" in output
    resets = ("--reset", "time", "--reset", "second")
    code, output = called(backup, "--state-dir", str(tmp_path / "new"), *resets, "--dry-run")
    assert code == 0, output
    assert "Routers that have a structure with a later time refuse the new structures until 20" in output
    code, output = called(backup, "--state-dir", str(tmp_path / "new"), *resets, "--yes", "--json")
    assert code == 0, output
    assert time.time() < json.loads(output)["routersRefuseUntil"] < time.time() + 66_000
    assert [master.publication for master in made(tmp_path / "new").farm.masters.values()] == [None]


def backup_of_2106(directory: Path) -> Path:
    """Write a backup of a farm whose log time, request ids and last publication are in 2106."""
    read = trio.run(read_directory, node_directory(directory / "node"))
    farm = Farm(0)
    state = replace(read.farm, log_time_ms=YEAR_2106_MS, masters={"master": MasterState(publication=LAST)})
    reqids = Reqids()
    reqids.expire_until(YEAR_2106_MS // 1000)
    image = b"".join(encode_farm(FarmSnapshot(state, read.period_ms, farm.sessions.dump(), reqids=reqids.dump())))
    path = directory / "farm.backup"
    path.write_bytes(encode_backup(replace(read, image=image).backup))
    return path


def test_backup_cannot_be_cut(tmp_path: Path) -> None:
    code, output = called(backup_of_2106(tmp_path), "--state-dir", str(tmp_path / "new"), "--cut-after", "3", "--yes")
    assert (code, "a backup contains the state at the end of the log" in output) == (1, True)


@pytest.mark.parametrize(
    ("cut", "problem"), [("99", "the log ends at entry 5"), ("2", "the snapshot replaces all entries up to entry 3")]
)
def test_cut_outside_log_is_refused_with_its_end(tmp_path: Path, cut: str, problem: str) -> None:
    directory = trio.run(compacted_directory, tmp_path / "node", 3)
    code, output = called(directory, "--cut-after", cut, "--yes")
    assert code == 1
    assert problem in output
    assert trio.run(read_directory, directory).founding == FOUNDING
