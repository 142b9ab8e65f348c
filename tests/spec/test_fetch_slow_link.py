"""A fetch over a slow link: how much is asked for, and what happens while a large answer arrives."""

from dataclasses import replace

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


def arriving(bench: FetchBench, fetch: Fetch, for_ms: int) -> list[Fetch]:
    """Bytes of the answer arrive for a while; returns the fetches that were sent meanwhile."""
    sent = []
    for _ in range(for_ms // 100):
        bench.step(AnswerArriving(TWO, fetch.correlation), after_ms=100)
        sent += bench.sent(Fetch)
        bench.step(DeadlineReached())
        sent += bench.sent(Fetch)
    return sent


def test_overdue_answers_halve_the_size_of_a_fetch() -> None:
    bench = FetchBench(1, options=LARGE)
    sizes = [bench.follow().max_bytes]
    while bench.is_(Role.FOLLOWER) and len(sizes) < 10:
        bench.begin(TWO, 1)
        bench.step(DeadlineReached(), after_ms=WAIT_MS)
        sizes += [fetch.max_bytes for fetch in bench.sent(Fetch)]
    assert sizes[:3] == [FIRST_FETCH_BYTES, FIRST_FETCH_BYTES // 2, FIRST_FETCH_BYTES // 4]
    assert sizes[-1] == LEAST_FETCH_BYTES


def test_full_answers_that_come_soon_double_the_size() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(10):
        bench.reply(fetch, [Entry.command(1, bytes(fetch.max_bytes))])
        fetch = bench.asked[TWO]
    assert fetch.max_bytes == LARGE.max_bytes_per_append


def test_small_answers_leave_the_size_as_it_is() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(10):
        bench.reply(fetch, [Entry.command(1, b"small")])
        fetch = bench.asked[TWO]
    assert fetch.max_bytes == FIRST_FETCH_BYTES


def test_arriving_answer_is_neither_asked_for_again_nor_called_silence() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    sent = arriving(bench, fetch, 60_000)
    assert all(each.is_sign_of_life for each in sent)
    assert bench.about.leader == TWO
    bench.reply(fetch, [Entry.command(1, bytes(9_000_000))])
    assert bench.about.last == LogId(2, 1)


def test_signs_of_life_leave_while_an_answer_arrives() -> None:
    bench = FetchBench(1, options=LARGE)
    sent = arriving(bench, bench.follow(), 3_000)
    assert 6 <= len(sent) <= 10


def test_answer_that_stops_arriving_is_asked_for_again() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    arriving(bench, fetch, 1_000)
    bench.step(DeadlineReached(), after_ms=WAIT_MS)
    (again,) = bench.sent(Fetch, TWO)
    assert not again.is_sign_of_life


def test_first_contact_of_the_leader_keeps_its_arriving_answer() -> None:
    """The answer to a sign of life, or an announcement, comes before the large one does."""
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    (sign,) = arriving(bench, fetch, 400)
    bench.reply(sign)
    bench.begin(TWO, 1)
    bench.reply(fetch, [Entry.command(1, bytes(9_000_000))])
    assert bench.about.last == LogId(2, 1)


def test_bytes_of_another_server_are_no_contact_of_the_leader() -> None:
    bench = FetchBench(1, options=LARGE)
    fetch = bench.follow()
    for _ in range(30):
        bench.step(AnswerArriving(THREE, fetch.correlation), after_ms=100)
        bench.step(DeadlineReached())
    assert bench.about.leader is None


def test_leader_answers_a_sign_of_life_without_entries() -> None:
    bench = FetchBench(1)
    bench.lead()
    parked = bench.fetch(TWO, LogId(2, 2), commit=2)
    sign = Fetch(
        term=bench.about.term,
        replica=TWO,
        position=LogId(1, 1),
        commit=0,
        max_wait_ms=0,
        max_bytes=0,
        correlation=99,
        cluster_id=None,
        is_sign_of_life=True,
    )
    bench.receive(TWO, sign)
    (reply,) = bench.sent(FetchReply, TWO)
    assert (parked, reply.entries, reply.error) == ([], (), None)
    # The fetch that waits goes on waiting.
    bench.propose(b"x")
    (reply,) = bench.sent(FetchReply, TWO)
    assert [entry.data for entry in reply.entries] == [b"x"]


def test_signs_of_life_keep_a_leader_whose_record_takes_a_minute() -> None:
    """Its only follower receives it, and says so by nothing else."""
    bench = FetchBench(1, voters=2, options=LARGE)
    bench.lead()
    bench.fetch(TWO, bench.about.last)
    held = bench.about.last
    bench.propose(bytes(8_000_000))
    for number in range(180):
        sign = Fetch(
            term=bench.about.term,
            replica=TWO,
            position=held,
            commit=0,
            max_wait_ms=0,
            max_bytes=0,
            correlation=1_000 + number,
            cluster_id=None,
            is_sign_of_life=True,
        )
        bench.receive(TWO, sign, after_ms=333)
        bench.step(DeadlineReached())
    assert bench.is_(Role.LEADER)
