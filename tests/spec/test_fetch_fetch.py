"""Fetch (KIP-595): the leader's four checks, the follower's handling of the reply, and the wait of parked fetches."""

from typing import Any

from msgspec.structs import replace

from consensus.core.drops import Drop
from consensus.core.effects import Apply, Persist, ReadEntries, Send
from consensus.core.entry_data import no_op_entry
from consensus.core.events import DeadlineReached
from consensus.core.messages import Fetch, FetchReply, RefusalReason
from consensus.core.model import ORIGIN, LogId, NoOp, ServerId
from consensus.core.options import lan
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import FIVE, FOUR, ONE, THREE, TWO, suffix


def leader(*terms: int, **options: Any) -> FetchBench:
    return FetchBench(*terms, **options).lead()


def test_new_leader_appends_leader_change_record() -> None:
    """The leader appends this control record immediately, so that the high watermark can advance."""
    bench = leader(1)
    (persist,) = (persist for persist in bench.all(Persist) if persist.entries)
    assert [entry.term for entry in persist.entries] == [2]
    assert persist.entries[0] == no_op_entry(2, NoOp(ONE, (ONE, TWO, THREE), (ONE, TWO)))


def test_fetch_with_smaller_epoch_fenced() -> None:
    """Step 2: a smaller leader epoch gets FENCED_LEADER_EPOCH."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1), term=1)
    assert (reply.error, reply.term, reply.leader) == (RefusalReason.STALE_TERM, 2, ONE)


def test_fetch_with_larger_epoch_deposes_leader() -> None:
    """Step 2: UNKNOWN_LEADER_EPOCH. As everywhere in Raft, a server that receives a higher term becomes a follower."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1), term=9)
    assert (reply.error, reply.term) == (RefusalReason.NEWER_TERM, 9)
    assert bench.about.leader is None


def test_fetch_to_non_leader_returns_known_leader() -> None:
    """The reply has an error code, and the id and epoch of the known leader."""
    bench = FetchBench(1)
    bench.follow(TWO, 3)
    (reply,) = bench.fetch(THREE, LogId(1, 1), term=3)
    assert (reply.error, reply.term, reply.leader) == (RefusalReason.NOT_LEADER, 3, TWO)


def test_mismatching_epoch_gets_diverging_epoch() -> None:
    """Step 3: an empty reply; DivergingEpoch is the largest epoch up to the epoch of the fetch, with its end."""
    bench = leader(1, 1, 2, 5)
    for position, expected in (
        (LogId(4, 3), LogId(3, 2)),  # our 4th entry has epoch 5, so a log of epoch 3 cannot contain it
        (LogId(9, 3), LogId(3, 2)),  # beyond the end
        (LogId(9, 2), LogId(3, 2)),
        (LogId(3, 3), LogId(3, 2)),
        (LogId(2, 4), LogId(2, 1)),
        (LogId(9, 6), LogId(5, 6)),
    ):
        (reply,) = bench.fetch(TWO, position)
        assert (reply.diverging, reply.entries, reply.error) == (expected, (), None)


def test_diverging_fetch_acknowledges_nothing() -> None:
    bench = leader(1, 1)
    bench.fetch(TWO, LogId(3, 1))
    assert bench.about.commit_index == 0


def test_fetch_offset_acknowledges_earlier_entries() -> None:
    """Step 4: a fetch of a voter can raise the high watermark to the largest offset stored on a majority."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1))
    assert [entry.term for entry in reply.entries] == [2]
    assert bench.about.commit_index == 0  # the entry at 1 is on two of three servers, but has an older epoch (figure 8)
    bench.fetch(TWO, LogId(2, 2))
    assert bench.about.commit_index == 2


def test_lower_fetch_offset_ends_acknowledgment() -> None:
    """The directory of a voter was replaced by an older copy, so its lost entries do not count for a majority."""
    bench = leader(1)
    for index in (2, 1):
        bench.fetch(TWO, LogId(index, index))
        assert {follower.match for follower in bench.about.followers} == {0, index}


def test_diverging_fetch_ends_acknowledgment() -> None:
    """Step 3: the voter has another log in its directory, so none of its earlier acknowledgments counts."""
    bench = leader(1)
    for position, match in ((LogId(2, 2), 2), (LogId(2, 1), 0), (LogId(1, 1), 1)):
        bench.fetch(TWO, position)
        assert {follower.match for follower in bench.about.followers} == {0, match}


def test_late_diverging_fetch_releases_parked_fetch() -> None:
    """A late older fetch ends the wait of the parked fetch. So the voter fetches again, and its entries count."""
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=2) == []
    parked = bench.correlation
    assert parked in {reply.correlation for reply in bench.fetch(TWO, LogId(3, 1))}
    bench.propose(b"x")
    bench.fetch(TWO, LogId(3, 2))
    assert bench.about.commit_index == 3


def test_entries_of_older_epochs_not_committed_by_counting() -> None:
    """A match at 1 or 2 does not move the high watermark. A match at 3, an entry of the leader's epoch, does."""
    bench = leader(1, 1)
    marks = []
    for position in (LogId(1, 1), LogId(2, 1), LogId(3, 2)):
        bench.fetch(TWO, position)
        marks.append(bench.about.commit_index)
    assert marks == [0, 0, 3]


def test_observer_fetch_acknowledges_nothing() -> None:
    """Step 4 applies only to voters."""
    bench = leader(1)
    bench.fetch(FOUR, LogId(2, 2))
    bench.fetch(FIVE, LogId(2, 2))
    assert bench.about.commit_index == 0
    assert {follower.server_id for follower in bench.about.followers} == {TWO, THREE, FOUR, FIVE}


def test_fetch_at_log_end_waits_for_append() -> None:
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=2) == []
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert [entry.data for entry in reply.entries] == [b"x"]


def test_fetch_at_log_end_waits_for_commit_index() -> None:
    """The reply is sent after `commit_notice_ms` unless new entries carry the commit index earlier."""
    bench = leader(1, voters=5)
    assert bench.fetch(TWO, LogId(2, 2)) == []
    bench.fetch(THREE, LogId(2, 2))
    assert bench.sent(FetchReply, TWO) == []
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.entries, reply.commit) == ((), 2)


def test_new_commit_index_sent_with_first_entries() -> None:
    bench = leader(1, voters=5)
    bench.fetch(TWO, LogId(2, 2))
    bench.fetch(THREE, LogId(2, 2))
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert ([entry.data for entry in reply.entries], reply.commit) == ([b"x"], 2)
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    assert bench.sent(FetchReply, TWO) == []


def test_later_commits_do_not_delay_commit_notice() -> None:
    bench = leader(1, voters=5)
    bench.fetch(TWO, LogId(2, 2))
    bench.fetch(THREE, LogId(2, 2))
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms - 1)
    bench.fetch(FOUR, LogId(2, 2), commit=2)
    bench.step(DeadlineReached(), after_ms=1)
    (reply,) = bench.sent(FetchReply, TWO)
    assert reply.commit == 2


def test_fetch_with_old_commit_index_answered_soon() -> None:
    """The reply with the commit index waits `commit_notice_ms`; without a wait time in the fetch it is immediate."""
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=0) == []
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    (late,) = bench.sent(FetchReply, TWO)
    (prompt,) = bench.fetch(TWO, LogId(2, 2), commit=0, max_wait_ms=0)
    assert late.commit == prompt.commit == 2


def test_fetch_wait_is_bounded_by_its_request() -> None:
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=2, max_wait_ms=70) == []
    bench.step(DeadlineReached(), after_ms=69)
    assert bench.sent(FetchReply, TWO) == []
    bench.step(DeadlineReached(), after_ms=1)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.entries, reply.error) == ((), None)


def test_second_fetch_releases_parked_fetch() -> None:
    """Each request gets one reply; the leader parks one fetch per replica."""
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    first = bench.correlation
    bench.fetch(TWO, LogId(2, 2), commit=2)
    assert [reply.correlation for reply in bench.sent(FetchReply, TWO)] == [first]


def test_parked_fetches_answered_when_leadership_ends() -> None:
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    parked = bench.correlation
    bench.fetch(THREE, LogId(2, 2), term=7)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.correlation, reply.error, reply.term) == (parked, RefusalReason.NOT_LEADER, 7)


def test_observers_beyond_limit_served_without_parking() -> None:
    bench = leader(1)
    for number in range(300):
        bench.fetch(type(ONE)(1_000 + number), LogId(2, 2), commit=2)
    assert len(bench.sent(FetchReply)) == 1
    assert len(bench.about.followers) == 2 + 256


def test_follower_fetches_from_its_log_end() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    assert (fetch.position, fetch.term, fetch.replica) == (LogId(1, 1), 2, ONE)
    bench.reply(fetch, suffix(2, 2, 2), commit=2)
    assert bench.terms == [1, 2, 2]
    assert [len(effect.entries) for effect in bench.all(Apply)] == [2]
    assert bench.fetches[TWO].position == LogId(3, 2)


def test_fetch_position_is_durable() -> None:
    """The fetch offset is the acknowledgment, so appends must be synced before it is sent."""
    bench = FetchBench(1, fast=False, term=2)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, suffix(2, 2))
    assert bench.sent(Fetch) == []
    bench.persisted(9)
    (fetch,) = bench.sent(Fetch)
    assert fetch.position == LogId(2, 2)


def test_follower_with_slow_disk_fetches_from_durable_end() -> None:
    bench = FetchBench(1, fast=False, term=2)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, suffix(2, 2))
    bench.step(DeadlineReached(), after_ms=500)
    (fetch,) = bench.sent(Fetch)
    assert fetch.position == LogId(1, 1)
    bench.reply(fetch, suffix(2, 2))
    assert bench.terms == [1, 2]
    assert (Drop.FETCH_REPLY_FOR_OTHER_POSITION, 1) in bench.about.dropped


def test_diverging_epoch_truncates_log() -> None:
    """The follower cuts all entries after the end offset, and all entries of epochs after the diverging one."""
    for own, diverging, left in (
        ((1, 1, 2, 2), LogId(3, 1), [1, 1]),
        ((1, 1, 1, 1), LogId(2, 1), [1, 1]),
        ((1, 3, 3), LogId(3, 2), [1]),
        ((3, 3), LogId(1, 2), []),
    ):
        bench = FetchBench(*own)
        fetch = bench.follow(TWO, 5)
        bench.reply(fetch, diverging=diverging)
        assert bench.terms == left
        assert bench.fetches[TWO].position == LogId(len(left), left[-1] if left else 0)


def test_late_divergence_does_not_cut_new_entries() -> None:
    """The requested position is no longer the end of the log, so the reply is not about this log."""
    bench = FetchBench(1, 2, 2)
    first = bench.follow(TWO, 5)
    bench.step(DeadlineReached(), after_ms=600)  # without a reply it fetches again
    second = bench.fetches[TWO]
    assert second.correlation != first.correlation
    bench.reply(second, diverging=LogId(1, 1))
    bench.reply(bench.fetches[TWO], suffix(2, 5, 5), commit=3)
    assert bench.terms == [1, 5, 5]
    bench.reply(first, diverging=LogId(1, 1))
    assert bench.terms == [1, 5, 5]
    assert (Drop.FETCH_REPLY_FOR_OTHER_POSITION, 1) in bench.about.dropped


def test_unrequested_reply_dropped() -> None:
    bench = FetchBench(1, 1)
    fetch = bench.follow(TWO, 2)
    unsent = Fetch(
        term=2,
        replica=ONE,
        position=fetch.position,
        commit=0,
        max_wait_ms=100,
        max_bytes=1_000,
        correlation=fetch.correlation + 77,
    )
    bench.reply(unsent, diverging=ORIGIN)
    bench.reply(fetch, diverging=ORIGIN, sender=THREE, leader=THREE)
    assert bench.terms == [1, 1]
    assert (Drop.STALE_FETCH_REPLY, 2) in bench.about.dropped


def test_divergence_below_commit_index_dropped() -> None:
    bench = FetchBench(1, 1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, commit=2)
    bench.step(DeadlineReached(), after_ms=100)
    bench.reply(bench.fetches[TWO], diverging=ORIGIN)
    assert bench.terms == [1, 1]
    assert (Drop.FETCH_REPLY_AGAINST_COMMIT, 1) in bench.about.dropped


def test_fenced_follower_follows_named_leader() -> None:
    """FENCED_LEADER_EPOCH with a leader id: the server follows that leader, and fetches from it."""
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, error=RefusalReason.STALE_TERM, term=4, leader=THREE)
    assert (bench.about.term, bench.about.leader) == (4, THREE)
    assert bench.sent(Fetch, THREE)


def test_fenced_follower_without_leader_tries_voters() -> None:
    """Without a leader id the fetch is retried at a random remaining voter."""
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch, error=RefusalReason.STALE_TERM, term=4, leader=None)
    bench.step(DeadlineReached(), after_ms=100)
    assert [send.recipient for send in bench.all(Send) if isinstance(send.message, Fetch)] != []


def test_empty_reply_delays_next_fetch() -> None:
    bench = FetchBench(1)
    fetch = bench.follow(TWO, 2)
    bench.reply(fetch)
    assert bench.sent(Fetch) == []
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.sent(Fetch, TWO)


def test_append_to_fetching_server_refused() -> None:
    bench = FetchBench(1)
    reply = bench.append(5, LogId(1, 1))
    assert (reply.success, bench.about.term) == (False, 1)


def test_fetch_reply_within_requested_bytes() -> None:
    bench = leader(1)
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    found = []
    for max_bytes in (1_000_000, 2_500, 1_000, 1, 0):
        (reply,) = bench.fetch(TWO, LogId(2, 2), max_bytes=max_bytes)
        found.append(len(reply.entries))
    assert found == [3, 2, 1, 1, 1]


def test_fetch_reply_within_leader_limit() -> None:
    bench = leader(1, options=replace(lan(), max_bytes_per_append=2_500))
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    (reply,) = bench.fetch(TWO, LogId(2, 2))
    assert len(reply.entries) == 2


def test_fetch_reads_within_requested_bytes() -> None:
    bench = leader(1, options=replace(lan(), tail_entries=1))
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    bench.fetch(THREE, LogId(5, 2))
    assert bench.fetch(TWO, LogId(2, 2), max_bytes=1_500) == []
    (read,) = bench.all(ReadEntries)
    assert (read.first, read.last, read.limit_bytes) == (3, 5, 1_500)


def test_fetch_requests_own_append_limit() -> None:
    bench = FetchBench(1, options=replace(lan(), max_bytes_per_append=4_321))
    assert bench.follow(TWO, 3).max_bytes == 4_321


def test_replica_caught_up_with_log_end_of_previous_fetch() -> None:
    """KIP-595, DescribeQuorum: LastCaughtUpTimestamp.

    Under load a replica never holds the whole log, because the log grows. It was caught up at its previous fetch if it
    now holds all entries that the log had then.
    """

    def caught_up(replica: ServerId) -> int | None:
        return {each.server_id: each.caught_up_ms for each in bench.about.followers}[replica]

    bench = leader(1)
    assert caught_up(TWO) is None
    for replica in (TWO, FOUR):  # a voter and an observer
        bench.fetch(replica, LogId(1, 1))
        assert caught_up(replica) is None  # the entry of the new epoch is missing
    bench.propose(b"x")
    bench.now += 100
    for replica in (TWO, FOUR):
        bench.fetch(replica, LogId(2, 2))
        assert caught_up(replica) == 100  # it has all entries from before its previous fetch
        bench.fetch(replica, LogId(2, 2))
        assert caught_up(replica) == 100
        bench.fetch(replica, LogId(3, 2))
        assert caught_up(replica) == 0
    bench.step(DeadlineReached(), after_ms=70)
    assert (caught_up(TWO), caught_up(FOUR), caught_up(THREE)) == (70, 70, None)


def test_replica_ages_count_up_to_description() -> None:
    """An age ends at the time of the description, not at the last step: it includes the time since that step."""
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2))
    ages = {at: bench.raft.describe(bench.now + at).followers[0] for at in (-5, 0, 30)}
    assert {at: (each.server_id, each.contact_ms, each.caught_up_ms) for at, each in ages.items()} == {
        -5: (TWO, 0, 0),
        0: (TWO, 0, 0),
        30: (TWO, 30, 30),
    }
