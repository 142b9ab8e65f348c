"""The benchmark of proofs measures what it says: proven handshakes are proven, replayed reports have effect."""

from pathlib import Path

import pytest

from benchmarks import identity_cost, identity_replay
from benchmarks.child import ChildError
from benchmarks.identity_throughput import measure
from bridge.core.log.records import Report
from bridge.wire.log.entries import decode


def test_a_measured_handshake_is_proven_on_both_sides_or_on_neither() -> None:
    """Each raises if it is not what its name says."""
    for proving in (True, False):
        identity_cost.handshake(proving=proving)()


def test_a_measured_report_is_one() -> None:
    assert isinstance(decode(identity_cost.report(2)), Report)


async def test_every_replayed_report_has_its_effect_in_both_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_replay, "CHUNK", 6)
    found = await identity_replay.replay(60)
    assert found["count"] == 60
    assert len(found["signed_us"]) == 10
    assert len(found["believed_us"]) == 2


async def test_a_directory_without_a_checkout_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=r"\(--base\) is no checkout of this project"):
        await measure(tmp_path / "farms", tmp_path, 1, 1.0)
