"""Records and heads of commands that belong to the protocol: replicated like commands, and opaque to the core."""

import pytest

from consensus.core.effects import Apply, Persist
from consensus.core.events import Proposed
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Features
from consensus.core.model import ORIGIN, Entry, EntryKind, LogId
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import TWO, Bench

RECORD = b"\x00\x05 KRaftVersion"
REQUEST_ID = b"123456789012"


def test_a_control_record_is_replicated_and_handed_over_like_a_command() -> None:
    bench = FetchBench(1)
    bench.lead()
    bench.step(Proposed(1, (RECORD,), control=True))
    (reply,) = bench.fetch(TWO, LogId(2, 2))
    assert reply.entries == (Entry(2, EntryKind.CONTROL, RECORD),)
    bench.fetch(TWO, LogId(3, 2))
    applied = [entry for apply in bench.all(Apply) for entry in apply.entries]
    assert applied[-1] == Entry(2, EntryKind.CONTROL, RECORD)


def test_a_follower_stores_a_control_record_as_it_came() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    record = Entry(2, EntryKind.CONTROL, RECORD)
    bench.reply(asked, (record,))
    assert [entry for persist in bench.all(Persist) for entry in persist.entries] == [record]


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
def test_a_log_without_control_records_takes_none(features: Features) -> None:
    follower = Bench(1, features=features)
    refused = follower.append(2, LogId(1, 1), (Entry(2, EntryKind.CONTROL, RECORD),))
    assert (refused.success, follower.about.last) == (False, LogId(1, 1))
    leader = Bench(1, features=features)
    leader.lead()
    with pytest.raises(ValueError, match="no control records"):
        leader.step(Proposed(1, (RECORD,), control=True))


def test_a_command_carries_its_request_id_through_the_log() -> None:
    bench = Bench(1, features=ZMQ_RAFT)
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    bench.step(Proposed(1, (REQUEST_ID + b"x",)))
    (append,) = bench.appends(TWO)
    assert [entry.data for entry in append.entries] == [REQUEST_ID + b"x"]


def test_a_command_that_lacks_its_head_is_neither_proposed_nor_taken() -> None:
    """Other implementations die of an entry without it, so none may enter the log."""
    follower = Bench(features=ZMQ_RAFT)
    assert not follower.append(2, ORIGIN, (Entry.command(2, REQUEST_ID[:-1]),)).success
    assert follower.append(2, ORIGIN, (Entry.command(2, REQUEST_ID),)).success
    leader = Bench(1, features=ZMQ_RAFT)
    leader.lead()
    with pytest.raises(ValueError, match="begins with 12 bytes"):
        leader.step(Proposed(1, (REQUEST_ID, b"")))
