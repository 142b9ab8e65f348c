"""Fetches over a slow link: the requested size, and the follower's behavior while a large reply arrives."""

from msgspec.structs import replace

from consensus.core.effects import Role
from consensus.core.events import AnswerArriving, DeadlineReached
from consensus.core.messages import Fetch, FetchReply
from consensus.core.model import Entry, LogId
from consensus.core.options import lan
from consensus.core.replication.fetch_schedule import FIRST_FETCH_BYTES, LEAST_FETCH_BYTES
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO

LARGE = replace(lan(), max_bytes_per_append=9 * 2**20)
WAIT_MS = LARGE.heartbeat_ms + LARGE.retry_ms


def receive_bytes(bench: FetchBench, fetch: Fetch, for_ms: int) -> list[Fetch]:
    """Receive bytes of the reply for `for_ms`, and return the fetches sent in that time."""
    sent = []
    for _ in range(for_ms // 100):
        bench.step(AnswerArriving(TWO, fetch.correlation), after_ms=100)
        sent += bench.sent(Fetch)
        bench.step(DeadlineReached())
        sent += bench.sent(Fetch)
    return sent


def test_overdue_replies_halve_fetch_size() -> None:
    bench = FetchBench(1, options=LARGE)
    sizes = [bench.follow().max_bytes]
    while bench.is_(Role.FOLLOWER) and len(sizes) < 10:
        bench.begin(TWO, 1)
        bench.step(DeadlineReached(), after_ms=WAIT_MS)
        sizes += [fetch.max_bytes for fetch in bench.sent(Fetch)]
    assert sizes[:3] == [FIRST_FETCH_BYTES, FIRST_FETCH_BYTES // 2, FIRST_FETCH_BYTES // 4]
    assert sizes[-1] == LEAST_FETCH_BYTES


def test_quick_full_replies_double_fetch_size() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(10):
        bench.reply(fetch, [Entry.command(1, bytes(fetch.max_bytes))])
        fetch = bench.fetches[TWO]
    assert fetch.max_bytes == LARGE.max_bytes_per_append


def test_small_replies_do_not_change_fetch_size() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(10):
        bench.reply(fetch, [Entry.command(1, b"small")])
        fetch = bench.fetches[TWO]
    assert fetch.max_bytes == FIRST_FETCH_BYTES


def test_arriving_reply_not_requested_again() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    sent = receive_bytes(bench, fetch, 60_000)
    assert all(each.is_keep_alive for each in sent)
    assert bench.about.leader == TWO
    bench.reply(fetch, [Entry.command(1, bytes(9_000_000))])
    assert bench.about.last == LogId(2, 1)


def test_keep_alives_sent_while_reply_arrives() -> None:
    bench = FetchBench(1, options=LARGE)
    sent = receive_bytes(bench, bench.follow(), 3_000)
    assert 6 <= len(sent) <= 10


def test_stalled_reply_requested_again() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    receive_bytes(bench, fetch, 1_000)
    bench.step(DeadlineReached(), after_ms=WAIT_MS)
    (again,) = bench.sent(Fetch, TWO)
    assert not again.is_keep_alive


def test_first_contact_keeps_arriving_reply() -> None:
    """The reply to a keep-alive, or an announcement, can arrive before the large reply."""
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    (keep_alive,) = receive_bytes(bench, fetch, 400)
    bench.reply(keep_alive)
    bench.begin(TWO, 1)
    bench.reply(fetch, [Entry.command(1, bytes(9_000_000))])
    assert bench.about.last == LogId(2, 1)


def test_bytes_of_other_server_not_leader_contact() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(30):
        bench.step(AnswerArriving(THREE, fetch.correlation), after_ms=100)
        bench.step(DeadlineReached())
    assert bench.about.leader is None


def test_keep_alive_reply_is_empty() -> None:
    bench = FetchBench(1).lead()
    parked = bench.fetch(TWO, LogId(2, 2), commit=2)
    keep_alive = Fetch(
        term=bench.about.term,
        replica=TWO,
        position=LogId(1, 1),
        commit=0,
        max_wait_ms=0,
        max_bytes=0,
        correlation=99,
        cluster_id=None,
        is_keep_alive=True,
    )
    bench.receive(TWO, keep_alive)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (parked, reply.entries, reply.error) == ([], (), None)
    # The parked fetch stays parked.
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert [entry.data for entry in reply.entries] == [b"x"]


def test_keep_alives_keep_leader_of_large_record() -> None:
    """The only follower needs a minute to receive the record, and sends only keep-alives until then."""
    bench = FetchBench(1, voters=2, options=LARGE).lead()
    bench.fetch(TWO, bench.about.last)
    held = bench.about.last
    bench.propose(bytes(8_000_000))
    for number in range(180):
        keep_alive = Fetch(
            term=bench.about.term,
            replica=TWO,
            position=held,
            commit=0,
            max_wait_ms=0,
            max_bytes=0,
            correlation=1_000 + number,
            cluster_id=None,
            is_keep_alive=True,
        )
        bench.receive(TWO, keep_alive, after_ms=333)
        bench.step(DeadlineReached())
    assert bench.is_(Role.LEADER)
