"""KIP-595, Fetch: the leader's four checks, what the fetcher does with the answer, and how long an answer may wait."""

from dataclasses import replace
from typing import Any

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
    bench = FetchBench(*terms, **options)
    bench.lead()
    return bench


def test_a_new_leader_writes_a_leader_change_record_with_its_epoch() -> None:
    """After becoming leader it appends this control record at once, so that the high watermark can catch up."""
    bench = leader(1)
    (persist,) = (persist for persist in bench.all(Persist) if persist.entries)
    assert [entry.term for entry in persist.entries] == [2]
    assert persist.entries[0] == no_op_entry(2, NoOp(ONE, (ONE, TWO, THREE), (ONE, TWO)))


def test_a_fetch_with_a_smaller_epoch_is_fenced() -> None:
    """Step 2: the request's leader epoch is smaller: FENCED_LEADER_EPOCH."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1), term=1)
    assert (reply.error, reply.term, reply.leader) == (RefusalReason.STALE_TERM, 2, ONE)


def test_a_fetch_with_a_larger_epoch_is_refused_and_the_leader_gives_way() -> None:
    """Step 2: UNKNOWN_LEADER_EPOCH; and as in all of Raft a higher term makes a follower."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1), term=9)
    assert (reply.error, reply.term) == (RefusalReason.NEWER_TERM, 9)
    assert bench.about.leader is None


def test_a_server_that_does_not_lead_names_the_leader() -> None:
    """A non-leader returns an error code, and encodes the currently known leader id and epoch."""
    bench = FetchBench(1)
    bench.follow(TWO, 3)
    (reply,) = bench.fetch(THREE, LogId(1, 1), term=3)
    assert (reply.error, reply.term, reply.leader) == (RefusalReason.NOT_LEADER, 3, TWO)


def test_an_epoch_that_does_not_match_gets_the_largest_epoch_below_and_its_end() -> None:
    """Step 3: an empty response, with DivergingEpoch set to the largest epoch not beyond the fetcher's."""
    bench = leader(1, 1, 2, 5)
    for position, expected in (
        (LogId(4, 3), LogId(3, 2)),  # our 4th entry is of epoch 5, which a log of epoch 3 cannot hold
        (LogId(9, 3), LogId(3, 2)),  # beyond the end
        (LogId(9, 2), LogId(3, 2)),
        (LogId(3, 3), LogId(3, 2)),
        (LogId(2, 4), LogId(2, 1)),
        (LogId(9, 6), LogId(5, 6)),
    ):
        (reply,) = bench.fetch(TWO, position)
        assert (reply.diverging, reply.entries, reply.error) == (expected, (), None)


def test_a_diverging_fetch_acknowledges_nothing() -> None:
    bench = leader(1, 1)
    bench.fetch(TWO, LogId(3, 1))
    assert bench.about.commit_index == 0


def test_the_fetch_offset_acknowledges_everything_before_it() -> None:
    """Step 4: a voter's request may raise the high watermark to the largest offset that a majority holds."""
    bench = leader(1)
    (reply,) = bench.fetch(TWO, LogId(1, 1))
    assert [entry.term for entry in reply.entries] == [2]
    assert bench.about.commit_index == 0  # the entry at 1 is on two of three, but of an older epoch (figure 8)
    bench.fetch(TWO, LogId(2, 2))
    assert bench.about.commit_index == 2


def test_entries_of_older_epochs_do_not_commit_by_counting() -> None:
    """Match at 1 or 2 leaves the high watermark; match at the entry of the leader's own epoch, 3, moves it to 3."""
    bench = leader(1, 1)
    marks = []
    for position in (LogId(1, 1), LogId(2, 1), LogId(3, 2)):
        bench.fetch(TWO, position)
        marks.append(bench.about.commit_index)
    assert marks == [0, 0, 3]


def test_an_observers_fetch_acknowledges_nothing() -> None:
    """Step 4: only if the request is a voter's and not an observer's."""
    bench = leader(1)
    bench.fetch(FOUR, LogId(2, 2))
    bench.fetch(FIVE, LogId(2, 2))
    assert bench.about.commit_index == 0
    assert {follower.server_id for follower in bench.about.followers} == {TWO, THREE, FOUR, FIVE}


def test_a_fetch_at_the_end_waits_for_the_next_append() -> None:
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=2) == []
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert [entry.data for entry in reply.entries] == [b"x"]


def test_a_fetch_at_the_end_waits_for_a_new_commit_index() -> None:
    """It leaves when no entries have come that could carry it."""
    bench = leader(1, voters=5)
    assert bench.fetch(TWO, LogId(2, 2)) == []
    bench.fetch(THREE, LogId(2, 2))
    assert bench.sent(FetchReply, TWO) == []
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.entries, reply.commit) == ((), 2)


def test_a_new_commit_index_travels_with_the_entries_that_come_first() -> None:
    bench = leader(1, voters=5)
    bench.fetch(TWO, LogId(2, 2))
    bench.fetch(THREE, LogId(2, 2))
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert ([entry.data for entry in reply.entries], reply.commit) == ([b"x"], 2)
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    assert bench.sent(FetchReply, TWO) == []


def test_commits_that_follow_one_another_do_not_put_the_first_off() -> None:
    bench = leader(1, voters=5)
    bench.fetch(TWO, LogId(2, 2))
    bench.fetch(THREE, LogId(2, 2))
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms - 1)
    bench.fetch(FOUR, LogId(2, 2), commit=2)
    bench.step(DeadlineReached(), after_ms=1)
    (reply,) = bench.sent(FetchReply, TWO)
    assert reply.commit == 2


def test_a_fetch_that_does_not_know_the_commit_index_is_answered_soon() -> None:
    """And at once, if it does not wait."""
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=0) == []
    bench.step(DeadlineReached(), after_ms=lan().commit_notice_ms)
    (late,) = bench.sent(FetchReply, TWO)
    (prompt,) = bench.fetch(TWO, LogId(2, 2), commit=0, max_wait_ms=0)
    assert late.commit == prompt.commit == 2


def test_a_fetch_waits_no_longer_than_it_asked_for() -> None:
    bench = leader(1)
    assert bench.fetch(TWO, LogId(2, 2), commit=2, max_wait_ms=70) == []
    bench.step(DeadlineReached(), after_ms=69)
    assert bench.sent(FetchReply, TWO) == []
    bench.step(DeadlineReached(), after_ms=1)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.entries, reply.error) == ((), None)


def test_a_second_fetch_gets_the_older_one_answered_too() -> None:
    """Every request is answered once; a replica parks one fetch."""
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    first = bench.correlation
    bench.fetch(TWO, LogId(2, 2), commit=2)
    assert [reply.correlation for reply in bench.sent(FetchReply, TWO)] == [first]


def test_parked_fetches_are_answered_when_leadership_ends() -> None:
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2), commit=2)
    parked = bench.correlation
    bench.fetch(THREE, LogId(2, 2), term=7)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (reply.correlation, reply.error, reply.term) == (parked, RefusalReason.NOT_LEADER, 7)


def test_the_observers_that_are_remembered_are_bounded_and_the_rest_is_served_without_waiting() -> None:
    bench = leader(1)
    for number in range(300):
        bench.fetch(type(ONE)(1_000 + number), LogId(2, 2), commit=2)
    assert len(bench.sent(FetchReply)) == 1
    assert len(bench.about.followers) == 2 + 256


def test_a_follower_fetches_from_the_end_of_its_log_and_takes_what_comes() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    assert (asked.position, asked.term, asked.replica) == (LogId(1, 1), 2, ONE)
    bench.reply(asked, suffix(2, 2, 2), commit=2)
    assert bench.terms == [1, 2, 2]
    assert [len(effect.entries) for effect in bench.all(Apply)] == [2]
    assert bench.asked[TWO].position == LogId(3, 2)


def test_a_fetch_names_only_what_is_durable() -> None:
    """All log appends must be synced before returning: the fetch offset is the acknowledgement."""
    bench = FetchBench(1, fast=False, term=2)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, suffix(2, 2))
    assert bench.sent(Fetch) == []
    bench.persisted(9)
    (fetch,) = bench.sent(Fetch)
    assert fetch.position == LogId(2, 2)


def test_while_its_disk_writes_a_follower_shows_that_it_lives_by_a_fetch_from_the_durable_end() -> None:
    bench = FetchBench(1, fast=False, term=2)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, suffix(2, 2))
    bench.step(DeadlineReached(), after_ms=500)
    (fetch,) = bench.sent(Fetch)
    assert fetch.position == LogId(1, 1)
    bench.reply(fetch, suffix(2, 2))
    assert bench.terms == [1, 2]
    assert (Drop.FETCH_REPLY_FOR_OTHER_POSITION, 1) in bench.about.dropped


def test_a_diverging_epoch_cuts_what_lies_beyond_it_and_every_later_epoch() -> None:
    """Truncate all offsets at or beyond the end offset, and all whose epoch is larger than the diverging one."""
    for own, told, left in (
        ((1, 1, 2, 2), LogId(3, 1), [1, 1]),
        ((1, 1, 1, 1), LogId(2, 1), [1, 1]),
        ((1, 3, 3), LogId(3, 2), [1]),
        ((3, 3), LogId(1, 2), []),
    ):
        bench = FetchBench(*own)
        asked = bench.follow(TWO, 5)
        bench.reply(asked, diverging=told)
        assert bench.terms == left
        assert bench.asked[TWO].position == LogId(len(left), left[-1] if left else 0)


def test_a_late_divergence_cuts_nothing_that_came_since() -> None:
    """The asked position is no longer the log's end, so the answer says nothing about this log."""
    bench = FetchBench(1, 2, 2)
    first = bench.follow(TWO, 5)
    bench.step(DeadlineReached(), after_ms=600)  # no answer: it asks again
    second = bench.asked[TWO]
    assert second.correlation != first.correlation
    bench.reply(second, diverging=LogId(1, 1))
    bench.reply(bench.asked[TWO], suffix(2, 5, 5), commit=3)
    assert bench.terms == [1, 5, 5]
    bench.reply(first, diverging=LogId(1, 1))
    assert bench.terms == [1, 5, 5]
    assert (Drop.FETCH_REPLY_FOR_OTHER_POSITION, 1) in bench.about.dropped


def test_an_answer_that_was_never_asked_for_says_nothing() -> None:
    bench = FetchBench(1, 1)
    asked = bench.follow(TWO, 2)
    stranger = Fetch(
        term=2,
        replica=ONE,
        position=asked.position,
        commit=0,
        max_wait_ms=100,
        max_bytes=1_000,
        correlation=asked.correlation + 77,
    )
    bench.reply(stranger, diverging=ORIGIN)
    bench.reply(asked, diverging=ORIGIN, sender=THREE, leader=THREE)
    assert bench.terms == [1, 1]
    assert (Drop.STALE_FETCH_REPLY, 2) in bench.about.dropped


def test_a_divergence_below_the_commit_index_is_not_believed() -> None:
    bench = FetchBench(1, 1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, commit=2)
    bench.step(DeadlineReached(), after_ms=100)
    bench.reply(bench.asked[TWO], diverging=ORIGIN)
    assert bench.terms == [1, 1]
    assert (Drop.FETCH_REPLY_AGAINST_COMMIT, 1) in bench.about.dropped


def test_a_fenced_follower_follows_the_leader_that_the_answer_names() -> None:
    """FENCED_LEADER_EPOCH with a leader id: become a follower of that leader, and fetch from it."""
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, error=RefusalReason.STALE_TERM, term=4, leader=THREE)
    assert (bench.about.term, bench.about.leader) == (4, THREE)
    assert bench.sent(Fetch, THREE)


def test_a_fenced_follower_without_a_leader_tries_the_voters() -> None:
    """Otherwise retry the fetch at random against one of the remaining voters."""
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked, error=RefusalReason.STALE_TERM, term=4, leader=None)
    bench.step(DeadlineReached(), after_ms=100)
    assert [send.recipient for send in bench.all(Send) if isinstance(send.message, Fetch)] != []


def test_an_answer_that_brings_nothing_is_not_followed_by_the_next_fetch_at_once() -> None:
    bench = FetchBench(1)
    asked = bench.follow(TWO, 2)
    bench.reply(asked)
    assert bench.sent(Fetch) == []
    bench.step(DeadlineReached(), after_ms=100)
    assert bench.sent(Fetch, TWO)


def test_a_server_that_pushes_does_not_speak_to_one_that_pulls() -> None:
    bench = FetchBench(1)
    reply = bench.append(5, LogId(1, 1))
    assert (reply.success, bench.about.term) == (False, 1)


def test_a_fetch_gets_no_more_bytes_than_it_asked_for_and_at_least_one_entry() -> None:
    bench = leader(1)
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    found = []
    for max_bytes in (1_000_000, 2_500, 1_000, 1, 0):
        (reply,) = bench.fetch(TWO, LogId(2, 2), max_bytes=max_bytes)
        found.append(len(reply.entries))
    assert found == [3, 2, 1, 1, 1]


def test_a_fetch_gets_no_more_bytes_than_the_leader_gives() -> None:
    """A follower that asks for more than the leader's own bound gets that."""
    bench = leader(1, options=replace(lan(), max_bytes_per_append=2_500))
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    (reply,) = bench.fetch(TWO, LogId(2, 2))
    assert len(reply.entries) == 2


def test_what_is_read_back_for_a_fetch_is_bounded_likewise() -> None:
    bench = leader(1, options=replace(lan(), tail_entries=1))
    bench.propose(bytes(1_000), bytes(1_000), bytes(1_000))
    bench.fetch(THREE, LogId(5, 2))
    assert bench.fetch(TWO, LogId(2, 2), max_bytes=1_500) == []
    (read,) = bench.all(ReadEntries)
    assert (read.first, read.last, read.limit_bytes) == (3, 5, 1_500)


def test_a_follower_asks_for_as_many_bytes_as_it_takes_at_once() -> None:
    bench = FetchBench(1, options=replace(lan(), max_bytes_per_append=4_321))
    assert bench.follow(TWO, 3).max_bytes == 4_321


def test_a_replica_has_caught_up_when_it_holds_all_that_the_leader_had_when_it_fetched_before() -> None:
    """KIP-595, DescribeQuorum: LastCaughtUpTimestamp. A replica under load is never at the end, for that moves on."""

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
        assert caught_up(replica) == 100  # it lacks the new entry, and holds what there was when it fetched before
        bench.fetch(replica, LogId(2, 2))
        assert caught_up(replica) == 100
        bench.fetch(replica, LogId(3, 2))
        assert caught_up(replica) == 0
    bench.step(DeadlineReached(), after_ms=70)
    assert (caught_up(TWO), caught_up(FOUR), caught_up(THREE)) == (70, 70, None)


def test_how_long_ago_a_replica_fetched_counts_to_the_moment_that_is_described() -> None:
    """Not to the last step: what it was at a later step would then be longer ago than it is now."""
    bench = leader(1)
    bench.fetch(TWO, LogId(2, 2))
    ages = {at: bench.raft.describe(bench.now + at).followers[0] for at in (-5, 0, 30)}
    assert {at: (each.server_id, each.contact_ms, each.caught_up_ms) for at, each in ages.items()} == {
        -5: (TWO, 0, 0),
        0: (TWO, 0, 0),
        30: (TWO, 30, 30),
    }
