"""Replacement of a signing key while its node runs, and the alarm about keys."""

import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.api.alarms import SIGNING_KEY
from bridge.core.log.records import Report
from bridge.node.security.key_files import KeyAccessError, save_signing_key
from bridge.node.security.signing_keys import PublishingKey
from bridge.wire.i2p.destination_keys import SigningKey, new_master_key
from bridge.wire.i2p.meta_lease_set import decode, verify
from tests.node.farm_stage import MASTER, NOW_S, Stage

pytestmark = pytest.mark.usefixtures("machine_clock")

DAY_S = 86_400
PERIOD_S = 10


def put(path: Path, content: SigningKey | str | None) -> None:
    """Replace the file like an operator: with a new key, invalid text, or nothing."""
    aside = path.with_name("new.key")
    match content:
        case None:
            path.unlink()
        case str():
            path.write_text(content)
        case _:
            save_signing_key(aside, content)
            aside.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a key file with three days left."""
    path = tmp_path / "signing.key"
    save_signing_key(path, MASTER.sign_transient(NOW_S, 3 * DAY_S))
    return path


async def test_renewed_key_signs_next_structure_and_clears_alarm(
    path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage(key=PublishingKey.load(path), period_ms=PERIOD_S * 1000)
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(3 * PERIOD_S)
    assert stage.alarm(SIGNING_KEY.kind) is not None
    renewed = MASTER.sign_transient(NOW_S, 30 * DAY_S)
    put(path, renewed)
    await trio.sleep(2 * PERIOD_S)
    assert stage.alarm(SIGNING_KEY.kind) is None
    assert stage.events("signing-key-renewed") == 1
    await trio.sleep(360)
    structures = [decode(each) for each in stage.router.published]
    assert all(verify(each).holds for each in structures)
    ends = [None if each.offline is None else each.offline.expires_s for each in structures]
    assert ends == [NOW_S + 3 * DAY_S, NOW_S + 30 * DAY_S]
    last = [record for _, record in stage.records(Report) if isinstance(record, Report)][-1]
    assert last.masters[0].can_sign_until_s == NOW_S + 30 * DAY_S


UNUSABLE: tuple[tuple[str | SigningKey | None, str], ...] = (
    ("rubbish", "cannot be used"),
    (new_master_key(demo=True).sign_transient(NOW_S, 30 * DAY_S), "a key of another master"),
    (MASTER.sign_transient(NOW_S - 2 * DAY_S, DAY_S), "has ended already"),
    (None, "does not exist"),
)
"""Contents of a key file, each with a part of its alarm; None means that the file is missing."""


async def test_unusable_file_keeps_current_key_with_alarm(
    path: Path, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    good = MASTER.sign_transient(NOW_S, 20 * DAY_S)
    put(path, good)
    stage = Stage(key=PublishingKey.load(path), period_ms=PERIOD_S * 1000)
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(PERIOD_S / 2)
    assert stage.alarm(SIGNING_KEY.kind) is None
    for content, expected in UNUSABLE:
        put(path, content)
        await trio.sleep(2 * PERIOD_S)
        text = stage.alarm(SIGNING_KEY.kind) or ""
        assert expected in text
        assert "continues with its present key" in text
    await trio.sleep(360 - 2 * len(UNUSABLE) * PERIOD_S)
    assert len(stage.router.published) == 2
    assert all(verify(decode(each)).holds for each in stage.router.published)
    put(path, good)
    await trio.sleep(2 * PERIOD_S)
    assert stage.alarm(SIGNING_KEY.kind) is None


def test_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.node.security.key_files.time_ns", lambda: path.stat().st_ctime_ns + 3 * 10**9)
    key = PublishingKey.load(path)
    monkeypatch.setattr("bridge.node.security.signing_keys.load_signing_key", lambda _: pytest.fail("it was read"))
    assert not key.renew(NOW_S)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    monkeypatch.undo()
    assert not key.renew(NOW_S)
    assert key.fault is None


def test_key_refused_under_wrong_clock_is_accepted_later(path: Path) -> None:
    key = PublishingKey.load(path)
    put(path, MASTER.sign_transient(NOW_S, 30 * DAY_S))
    assert not key.renew(NOW_S + 5_000 * DAY_S)
    assert key.fault is not None
    assert key.renew(NOW_S)
    assert key.fault is None


def test_key_after_failed_read_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.node.security.key_files.time_ns", lambda: path.stat().st_ctime_ns + 3 * 10**9)
    key = PublishingKey.load(path)
    put(path, MASTER.sign_transient(NOW_S, 30 * DAY_S))

    def fail(_path: Path) -> SigningKey:
        raise KeyAccessError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("bridge.node.security.signing_keys.load_signing_key", fail)
        assert not key.renew(NOW_S)
    assert key.fault == "too many open files"
    assert key.renew(NOW_S)
    assert key.fault is None
