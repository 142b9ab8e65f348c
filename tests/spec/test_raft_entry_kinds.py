"""Protocol-specific records and command heads: replicated like commands, and opaque to the core."""

import pytest

from consensus.core.effects import Apply, Persist
from consensus.core.entry_data import (
    EntryDataError,
    configuration_entry,
    configuration_head,
    configuration_in,
    decode_configuration,
)
from consensus.core.events import ChangeConfiguration, Proposed
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Features
from consensus.core.model import ORIGIN, Entry, EntryKind, LogId
from tests.effort import each_case
from tests.spec.fetch_bench import FetchBench
from tests.spec.membership_bench import Group, joint, plain
from tests.spec.raft_bench import TWO, Bench

RECORD = b"\x00\x05 KRaftVersion"
REQUEST_ID = b"123456789012"


def test_control_record_replicated_and_applied() -> None:
    bench = FetchBench(1).lead()
    bench.step(Proposed(proposal_id=1, commands=(RECORD,), control=True))
    (reply,) = bench.fetch(TWO, LogId(2, 2))
    assert reply.entries == (Entry(2, EntryKind.CONTROL, RECORD),)
    bench.fetch(TWO, LogId(3, 2))
    applied = [entry for apply in bench.all(Apply) for entry in apply.entries]
    assert applied[-1] == Entry(2, EntryKind.CONTROL, RECORD)


def test_follower_stores_control_record_unchanged() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    record = Entry(2, EntryKind.CONTROL, RECORD)
    bench.reply(fetch, (record,))
    assert [entry for persist in bench.all(Persist) for entry in persist.entries] == [record]


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
def test_log_without_control_records_refuses_them(features: Features) -> None:
    follower = Bench(1, features=features)
    refused = follower.append(2, LogId(1, 1), (Entry(2, EntryKind.CONTROL, RECORD),))
    assert (refused.success, follower.about.last) == (False, LogId(1, 1))
    leader = Bench(1, features=features).lead()
    with pytest.raises(ValueError, match="does not support control records"):
        leader.step(Proposed(proposal_id=1, commands=(RECORD,), control=True))


def test_command_keeps_request_id_in_log() -> None:
    bench = Bench(1, features=ZMQ_RAFT).lead()
    (append,) = bench.appends(TWO)
    bench.matched(TWO, append)
    bench.step(Proposed(proposal_id=1, commands=(REQUEST_ID + b"x",)))
    (append,) = bench.appends(TWO)
    assert [entry.data for entry in append.entries] == [REQUEST_ID + b"x"]


def test_command_without_head_refused() -> None:
    """Other implementations crash on an entry without a head, so the log must not contain one."""
    follower = Bench(features=ZMQ_RAFT)
    assert not follower.append(2, ORIGIN, (Entry.command(2, REQUEST_ID[:-1]),)).success
    assert not follower.append(2, ORIGIN, (Entry.command(2, REQUEST_ID),)).success
    assert follower.append(2, ORIGIN, (Entry.command(2, REQUEST_ID + b"x"),)).success
    leader = Bench(1, features=ZMQ_RAFT).lead()
    with pytest.raises(ValueError, match="needs more than its 12 head bytes"):
        leader.step(Proposed(proposal_id=1, commands=(REQUEST_ID + b"x", REQUEST_ID)))


def test_configuration_keeps_its_head() -> None:
    entry = configuration_entry(1, plain(1, 2, 3), REQUEST_ID)
    assert configuration_head(entry.data) == REQUEST_ID
    assert configuration_in(entry) == plain(1, 2, 3)
    assert configuration_head(configuration_entry(1, plain(1, 2, 3)).data) == b""


@each_case("kept", [*range(3 + len(REQUEST_ID)), -1])
def test_configuration_cut_within_head_refused(kept: int) -> None:
    with pytest.raises(EntryDataError):
        decode_configuration(configuration_entry(1, plain(1, 2, 3), REQUEST_ID).data[:kept])


def test_configuration_head_limited_to_255_bytes() -> None:
    entry = configuration_entry(1, plain(1, 2, 3), REQUEST_ID)
    twice = entry.data[: 3 + len(REQUEST_ID)] + entry.data
    for data in (twice, bytes((255, 254, 0)) + configuration_entry(1, plain(1)).data):
        with pytest.raises(EntryDataError, match="head"):
            decode_configuration(data)
    with pytest.raises(EntryDataError, match="at most 255"):
        configuration_entry(1, plain(1, 2, 3), bytes(256))


def test_first_configuration_of_change_has_requested_head() -> None:
    """ØMQ Raft finds the request of a change by the id in C_old,new; the leader appends C_new without a head."""
    bench = Group().become_leader()
    bench.step(ChangeConfiguration(1, plain(3, 4, 5), REQUEST_ID))
    bench.bring_up(4, 5)
    bench.store(2, 3, 4, 5)
    assert [(configuration_in(entry), configuration_head(entry.data)) for entry in bench.appended[-2:]] == [
        (joint((1, 2, 3), (3, 4, 5)), REQUEST_ID),
        (plain(3, 4, 5), b""),
    ]
