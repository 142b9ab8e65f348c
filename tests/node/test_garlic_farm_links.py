"""A server's outgoing links: order, loss, unresponsive peers, and negotiated extensions."""

import errno
from collections.abc import Callable
from math import inf
from random import Random

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from bridge.node.settings.choices import Timing
from bridge.node.settings.timing import profile_of
from consensus.core import messages as core
from consensus.core.effects import Role
from consensus.core.entry_data import configuration_entry
from consensus.core.events import AppendNotSent, Received
from consensus.core.features import NO_EXTENSIONS, Extensions
from consensus.core.model import Configuration as CoreConfiguration
from consensus.core.model import Entry, LogId, Server
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection, Lost
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.joining_peers import JoiningPeer
from consensus.protocols.garlic_farm.node.links import LinkOptions, PeerLinks
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Incident, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import encode_reply
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.upgrade_client import UpgradeClient
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, LogEntry
from tests.node.garlic_farm_stage import ALICE, BOB, CAROL, Host, Stage, expect_fault
from tests.node.recorded_receiver import RecordedReceiver
from tests.node.unexpected_errors import fail_first, tracebacks
from tests.spec.raft_bench import Bench

ALONE = Configuration(1, 0, (ClusterServer(ALICE, "tcp://a:1"),))


class Sender:
    """Alice's links, with the received replies."""

    def __init__(self, stage: Stage, dialer: Dialer | None = None, options: LinkOptions | None = None) -> None:
        self.receiver = RecordedReceiver()
        self.replies, self.kept_back = self.receiver.replies, self.receiver.kept_back
        self.extensions = self.receiver.extensions
        self.incidents: list[Incident] = []
        self.metrics = Metrics(self.incidents.append)
        self.links = PeerLinks(
            dialer or stage.dialer(ALICE), stage.resolve, metrics=self.metrics, random=Random(3), options=options
        )

    def correlations(self) -> list[int]:
        """Return the correlations of the received replies in order."""
        return [reply.correlation for _, reply in self.replies]


def vote(correlation: int, *, pre_vote: bool = False) -> core.RequestVote:
    return core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=correlation, pre_vote=pre_vote)


def append(correlation: int) -> core.AppendEntries:
    entries = (Entry.command(3, b"{}"),)
    return core.AppendEntries(
        term=3, leader=ALICE, previous=LogId(correlation, 3), entries=entries, commit=0, correlation=correlation
    )


@pytest.fixture
def stage(nursery: trio.Nursery) -> Stage:
    return Stage(nursery)


async def test_requests_arrive_in_order_with_matching_replies(stage: Stage) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(100, 140):
        sender.links.send(BOB, append(correlation))
    await wait_all_tasks_blocked()
    assert [
        request.previous.index for _, request in host.handler.requests if isinstance(request, core.AppendEntries)
    ] == [*range(100, 140)]
    assert sender.replies == [
        (BOB, core.AppendReply(term=3, success=True, next_index=correlation + 2, correlation=correlation))
        for correlation in range(100, 140)
    ]
    (view,) = sender.links.describe()
    assert (view.peer, view.connected, view.waiting, view.sent, view.dropped) == (BOB, True, 0, 40, 0)


async def test_handshake_determines_extensions_of_peer(stage: Stage) -> None:
    stage.add(Host(BOB))
    modern, plain = Sender(stage), Sender(stage, stage.dialer(ALICE, offered=()))
    for sender in (modern, plain):
        await stage.nursery.start(sender.links.run, sender.receiver)
        sender.links.send(BOB, vote(1, pre_vote=True))
        sender.links.send(BOB, vote(2))
    await wait_all_tasks_blocked()
    assert (modern.extensions, modern.correlations()) == (
        [(BOB, Extensions(pre_vote=True, transfer=True, configurations=True))],
        [1, 2],
    )
    assert (plain.extensions, plain.correlations()) == ([(BOB, NO_EXTENSIONS)], [2])
    assert plain.metrics.counts[ConnectionEvent.REQUESTS_DROPPED] == 1


OLDER_VOTE = 1000
"""Correlation of the vote in the queue before the other requests."""


def timeout_now(correlation: int) -> core.TimeoutNow:
    return core.TimeoutNow(term=3, leader=ALICE, correlation=correlation)


@pytest.mark.parametrize(
    ("request_of", "lifetime_s"),
    [
        (append, LinkOptions().unsent_lifetime_s),
        (timeout_now, LinkOptions().unsent_lifetime_s),
        (vote, LinkOptions().vote_lifetime_s),
    ],
)
async def test_peer_that_starts_later_does_not_get_old_requests(
    stage: Stage, autojump_clock: MockClock, request_of: Callable[[int], core.Request], lifetime_s: float
) -> None:
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(50):
        sender.links.send(BOB, vote(OLDER_VOTE))
        sender.links.send(BOB, request_of(correlation))
        await trio.sleep(0.1)
    assert sender.incidents[0].fault is Fault.UNREACHABLE
    assert "Connection refused" in sender.incidents[0].text
    host = stage.add(Host(BOB))
    for correlation in range(50, 100):
        sender.links.send(BOB, request_of(correlation))
        await trio.sleep(0.1)
    assert sender.correlations()[-1] == 99
    assert OLDER_VOTE in sender.correlations()
    assert min(sender.correlations()) > 50 - 10 * lifetime_s
    assert len(host.handler.requests) == len(sender.replies)


@pytest.mark.parametrize("timing", Timing)
async def test_vote_during_slow_dial_arrives(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, timing: Timing
) -> None:
    profile, dialer = profile_of(timing), stage.dialer(ALICE)
    round_s, dial = profile.raft.election_timeout_max_ms / 1000, dialer.dial

    async def slow_dial(address: PeerAddress, expected: int | None = None) -> Dialed:
        await trio.sleep(round_s - 0.1)
        return await dial(address, expected)

    monkeypatch.setattr(dialer, "dial", slow_dial)
    stage.add(Host(BOB))
    sender = Sender(stage, dialer, profile.links)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    await trio.sleep(round_s)
    assert sender.correlations() == [1]


async def test_unreachable_peer_has_bounded_queue_with_few_events(stage: Stage, autojump_clock: MockClock) -> None:
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(5000):
        sender.links.send(BOB, vote(correlation))
        if correlation % 50 == 0:
            await trio.sleep(0.5)
    (view,) = sender.links.describe()
    assert view.waiting <= LinkOptions().unsent_max
    assert view.dropped > 4000
    assert len(sender.incidents) <= 6
    assert sender.metrics.counts[Fault.UNREACHABLE] > 20


async def test_unresponsive_peer_is_disconnected_then_dialed_again(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    host.handler.delay_s = lambda _: 1e6
    sender.links.send(BOB, vote(1))
    await trio.sleep(1.9)
    assert sender.incidents == []
    await trio.sleep(0.5)
    assert [incident.fault for incident in sender.incidents] == [Fault.SILENT]
    host.handler.delay_s = lambda _: 0
    sender.links.send(BOB, vote(2))
    await trio.sleep(0.5)
    assert sender.correlations() == [2]


@pytest.mark.parametrize("call", ["peer_connected", "deliver_reply"])
async def test_unexpected_error_of_link_ends_only_its_connection(
    stage: Stage,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    stage.add(Host(BOB))
    sender = Sender(stage)
    fail_first(monkeypatch, sender.receiver, call)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    await trio.sleep(2)
    sender.links.send(BOB, vote(2))
    await trio.sleep(2)
    assert sender.correlations()[-1] == 2
    assert sender.metrics.counts[ConnectionEvent.LINKS_FAILED] == tracebacks(caplog) == 1


async def test_unexpected_error_of_dial_is_failed_handshake(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.add(Host(BOB))
    fail_first(monkeypatch, UpgradeClient, "receive")
    error = await expect_fault(stage.dialer(ALICE), stage.resolve(BOB))
    assert (error.fault, tracebacks(caplog)) == (Fault.REFUSED_UPGRADE, 1)


async def test_unexpected_error_of_reply_resolves_other_requests(caplog: pytest.LogCaptureFixture) -> None:
    """An error in one reply function must not lose the calls of the others when the connection ends."""
    results: list[wire.Reply | Lost] = []

    def fail(_: wire.Reply | Lost) -> None:
        raise LookupError("unexpected")

    near, far = memory_stream_pair()
    connection = ClientConnection(near, reply_timeout_s=1)
    connection.post(b"1", fail)
    connection.post(b"2", results.append)
    await far.aclose()
    await connection.run()
    assert (results, tracebacks(caplog)) == ([Lost.UNANSWERED], 1)


async def test_connection_with_steady_replies_stays_open(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = lambda _: 1.5
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(100):
        sender.links.send(BOB, vote(correlation))
        await trio.sleep(0.1)
    await trio.sleep(2)
    assert sender.correlations() == [*range(100)]
    assert sender.incidents == []
    assert stage.connections == 2


async def test_broken_connection_is_reopened_for_next_request(stage: Stage, autojump_clock: MockClock) -> None:
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    await trio.sleep(0.1)
    assert stage.connections == 2
    await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(0.1)
    sender.links.send(BOB, vote(2))
    await trio.sleep(0.1)
    assert sender.correlations() == [1, 2]
    assert stage.connections == 3


async def test_removed_peer_loses_its_link(stage: Stage) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    await wait_all_tasks_blocked()
    assert len(host.server.places._established) == 1
    sender.links.forget(BOB)
    await wait_all_tasks_blocked()
    assert len(host.server.places._established) == 0
    assert sender.links.describe() == ()


async def test_unsent_pack_blocks_next_pack(stage: Stage) -> None:
    # Given a new server without extensions
    stage.add(Host(BOB))
    sender = Sender(stage, stage.dialer(ALICE, offered=()))
    await stage.nursery.start(sender.links.run, sender.receiver)
    newcomer = JoiningPeer(
        None, lambda _: wire.JoinClusterRequest(source=ALICE, destination=BOB, term=3, entries=(LogEntry(3, ALONE),))
    )
    assert sender.links.invite(BOB, newcomer)
    await wait_all_tasks_blocked()
    newcomer.accepted = True
    newcomer.on_join_reply(wire.JoinClusterResponse(source=BOB, destination=ALICE, term=3, next_index=1, accepted=True))
    # When the server cannot read the entry of a first append, and a second append follows without a pause
    servers = (Server(ALICE, "tcp://a:1"),), (Server(BOB, "tcp://b:1"),)
    unreadable = (configuration_entry(3, CoreConfiguration(*servers)),)
    sender.links.send(
        BOB, core.AppendEntries(term=3, leader=ALICE, previous=LogId(0, 0), entries=unreadable, commit=1, correlation=1)
    )
    sender.links.send(BOB, append(1))
    await wait_all_tasks_blocked()
    # Then the link does not send the second append: the server would store it at the position of the first
    assert sender.kept_back == [(BOB, 1, 1)]
    assert sender.replies == []
    assert newcomer.packs == 0


def fail_to_encode(_has_configurations: bool) -> wire.JoinClusterRequest:  # noqa: FBT001 - the signature of an invitation
    raise GarlicFarmError(Fault.TOO_LARGE, "the configuration is too large")


async def test_failed_invitation_closes_its_connection(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)

    assert sender.links.invite(BOB, JoiningPeer(None, fail_to_encode))
    await trio.sleep(5)
    assert {incident.fault for incident in sender.incidents} == {Fault.TOO_LARGE}
    sender.links.forget(BOB)
    await wait_all_tasks_blocked()
    assert len(host.server.places._established) == 0


async def test_failed_invitation_on_open_connection_is_reported(stage: Stage) -> None:
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect((BOB,))
    await wait_all_tasks_blocked()
    assert sender.links.invite(BOB, JoiningPeer(None, fail_to_encode))
    assert [incident.fault for incident in sender.incidents] == [Fault.TOO_LARGE]


async def test_leader_without_joined_peer_steps_down(stage: Stage, autojump_clock: MockClock) -> None:
    # Given a leader of two servers. The other server refuses to join, so the link does not send appends
    stage.add(Host(BOB))
    leader, sender = Bench(1, 1, voters=2), Sender(stage, stage.dialer(ALICE, offered=()))
    await stage.nursery.start(sender.links.run, sender.receiver)
    joining_peer = JoiningPeer(
        None, lambda _: wire.JoinClusterRequest(source=ALICE, destination=BOB, term=3, entries=(LogEntry(3, ALONE),))
    )
    assert sender.links.invite(BOB, joining_peer)
    await wait_all_tasks_blocked()
    leader.lead()
    appends, steps = leader.appends(BOB), 0
    # When time passes
    while leader.is_(Role.LEADER) and steps < 100:
        for request in appends:
            sender.links.send(BOB, request)
        await wait_all_tasks_blocked()
        for reply in sender.replies:
            leader.step(Received(*reply))
        for kept_back in sender.kept_back:
            leader.step(AppendNotSent(*kept_back))
        sender.replies, sender.kept_back, steps = [], [], steps + 1
        leader.expire()
        appends = leader.appends(BOB)
    # Then no message of the core was sent, and the leader has resigned because it did not get a reply
    assert joining_peer.accepted is False
    (view,) = sender.links.describe()
    assert (view.connected, view.sent) == (True, 1)
    assert not leader.is_(Role.LEADER)


def heartbeat(correlation: int) -> core.AppendEntries:
    return core.AppendEntries(term=3, leader=ALICE, previous=LogId(2, 3), entries=(), commit=0, correlation=correlation)


def slow_disk(request: core.Request) -> float:
    """Return the delay of a reply in seconds: a slow disk delays only appends."""
    return 1.6 if isinstance(request, core.AppendEntries) and request.entries else 0.0


async def heartbeats_during(sender: Sender, seconds: int) -> list[float]:
    """Send an append, then a heartbeat each 0.1 s; return the times of the replies to heartbeats."""
    sender.links.send(BOB, append(1))
    reply_times_s = []
    for tenth in range(10 * seconds):
        await trio.sleep(0.1)
        sender.links.send(BOB, heartbeat(100 + tenth))
        await wait_all_tasks_blocked()
        if sender.replies and sender.correlations()[-1] >= 100:
            reply_times_s.append(trio.current_time())
            sender.replies.clear()
    return reply_times_s


async def test_heartbeat_does_not_wait_for_append_on_disk(stage: Stage, autojump_clock: MockClock) -> None:
    # Given a follower whose disk takes 1.6 s
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    # When a leader sends an append, followed by heartbeats
    began_s = trio.current_time()
    reply_times_s = await heartbeats_during(sender, 1)
    # Then the follower replies to heartbeats before the append, so the quorum is kept
    assert len(reply_times_s) >= 8
    assert max(after - before for before, after in zip([began_s, *reply_times_s], reply_times_s, strict=False)) <= 0.31
    # The append is answered when it is durable, on the original connection
    await trio.sleep(1)
    assert 1 in sender.correlations()
    assert sender.metrics.counts[ConnectionEvent.LINKS_ESTABLISHED] == 1
    assert sender.metrics.counts[ConnectionEvent.HEARTBEAT_CONNECTIONS] == 1


async def test_peer_with_slow_disk_stays_connected_by_heartbeats(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = lambda request: 4 * slow_disk(request)
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 6)
    await trio.sleep(1)
    assert 1 in sender.correlations()
    assert sender.metrics.counts[ConnectionEvent.LINKS_ESTABLISHED] == 1
    assert sender.incidents == []


async def test_heartbeat_does_not_overtake_earlier_append(stage: Stage, autojump_clock: MockClock) -> None:
    # Given a connection with an unanswered request, and a second connection for heartbeats
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 1)
    assert sender.metrics.counts[ConnectionEvent.HEARTBEAT_CONNECTIONS] == 1
    # When a round of reads sends a heartbeat directly after an append
    sender.links.send(BOB, append(2))
    sender.links.send(BOB, heartbeat(200))
    await wait_all_tasks_blocked()
    # Then the heartbeat follows the append on the same connection, and its reply follows the reply to the append
    assert 200 not in sender.correlations()
    await trio.sleep(3)
    assert [each for each in sender.correlations() if each in {2, 200}] == [2, 200]


async def test_server_without_extensions_has_one_connection(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage, stage.dialer(ALICE, offered=()))
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 1)
    assert len(host.server.places._established) == 1


async def test_links_do_not_wait_for_each_other(stage: Stage) -> None:
    stage.add(Host(CAROL))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    sender.links.send(CAROL, vote(2))
    await wait_all_tasks_blocked()
    assert sender.replies == [(CAROL, core.VoteReply(term=3, granted=True, correlation=2))]


async def run_quietly(connection: ClientConnection, failures: list[GarlicFarmError]) -> None:
    try:
        await connection.run()
    except GarlicFarmError as error:
        failures.append(error)


async def connection_against(
    nursery: trio.Nursery, failures: list[GarlicFarmError], *, window: int = 256
) -> tuple[ClientConnection, trio.abc.Stream]:
    ours, theirs = memory_stream_pair()
    connection = ClientConnection(ours, reply_timeout_s=2.0, window=window, queue_max=3)
    nursery.start_soon(run_quietly, connection, failures)
    await wait_all_tasks_blocked()
    return connection, theirs


REPLY = encode_reply(wire.RequestVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True))


async def test_unexpected_reply_ends_connection(stage: Stage) -> None:
    answers: list[wire.Reply | Lost] = []
    failures: list[GarlicFarmError] = []
    connection, theirs = await connection_against(stage.nursery, failures)
    assert connection.post(b"request", answers.append)
    await wait_all_tasks_blocked()
    await theirs.send_all(REPLY * 2)
    await wait_all_tasks_blocked()
    assert [failure.fault for failure in failures] == [Fault.OUT_OF_TURN]
    assert answers == [wire.RequestVoteResponse(source=BOB, destination=ALICE, term=3, next_index=0, accepted=True)]
    assert not connection.open
    assert not connection.post(b"request", answers.append)


async def test_requests_and_replies_do_not_make_cancel_scopes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[wire.Reply | Lost] = []
    connection, theirs = await connection_against(stage.nursery, [])
    with monkeypatch.context() as patched:
        patched.setattr(trio, "CancelScope", lambda **_: pytest.fail("a message made a cancel scope"))
        for _ in range(10):
            assert connection.post(b"request", answers.append)
            await wait_all_tasks_blocked()
            await theirs.send_all(REPLY)
            await wait_all_tasks_blocked()
    assert len(answers) == 10


async def test_heartbeats_do_not_make_cancel_scopes(
    stage: Stage, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[wire.Reply | Lost] = []
    connection, theirs = await connection_against(stage.nursery, [])
    with monkeypatch.context() as patched:
        patched.setattr(trio, "CancelScope", lambda **_: pytest.fail("a heartbeat made a cancel scope"))
        for _ in range(20):
            assert connection.post(b"request", answers.append)
            await wait_all_tasks_blocked()
            await theirs.send_all(REPLY)
            mock_clock.jump(0.4)
            await wait_all_tasks_blocked()
    assert connection.open
    assert len(answers) == 20


async def test_unsent_requests_are_distinguished_from_unanswered_ones(stage: Stage) -> None:
    answers: list[tuple[int, wire.Reply | Lost]] = []
    connection, theirs = await connection_against(stage.nursery, [], window=2)

    def post(number: int) -> bool:
        return connection.post(b"request", lambda answer: answers.append((number, answer)))

    assert all([post(0), post(1)])
    await wait_all_tasks_blocked()
    assert all([post(2), post(3), post(4)])
    assert not connection.post(b"one too many", lambda _: None)
    await theirs.aclose()
    await wait_all_tasks_blocked()
    unanswered, unsent = Lost.UNANSWERED, Lost.UNSENT
    assert answers == [(0, unanswered), (1, unanswered), (2, unsent), (3, unsent), (4, unsent)]


async def test_late_calls_end_and_later_replies_keep_order(stage: Stage, mock_clock: MockClock) -> None:
    answers: list[tuple[float, wire.Reply | Lost]] = []
    connection, theirs = await connection_against(stage.nursery, [], window=3)

    def post(after_s: float) -> bool:
        return connection.post(
            b"request", lambda answer: answers.append((after_s, answer)), trio.current_time() + after_s
        )

    assert all(map(post, (1.5, 0.5, 1.0)))
    await wait_all_tasks_blocked()
    assert all(map(post, (0.5, inf)))
    mock_clock.jump(0.7)
    await wait_all_tasks_blocked()
    assert answers == [(0.5, Lost.LATE), (0.5, Lost.LATE)]
    for replies in (3, 2):
        await theirs.send_all(REPLY * replies)
        await wait_all_tasks_blocked()
    mock_clock.jump(10)
    await wait_all_tasks_blocked()
    assert [after_s for after_s, _ in answers[2:]] == [1.5, 1.0, inf]
    assert Lost.LATE not in [answer for _, answer in answers[2:]]
    assert connection.open


async def test_canceled_connection_reports_unanswered_requests() -> None:
    answers: list[wire.Reply | Lost] = []
    async with trio.open_nursery() as nursery:
        connection, _theirs = await connection_against(nursery, [])
        assert connection.post(b"request", answers.append)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert answers == [Lost.UNANSWERED]


async def test_reply_from_another_server_ends_connection(stage: Stage, autojump_clock: MockClock) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    host.handler.delay_s = lambda _: 1e6
    sender.links.send(BOB, vote(1))
    await trio.sleep(0.1)
    await stage.theirs[-1].send_all(
        encode_reply(wire.RequestVoteResponse(source=CAROL, destination=ALICE, term=3, next_index=0, accepted=True))
    )
    await trio.sleep(0.1)
    assert sender.replies == []
    assert [incident.fault for incident in sender.incidents] == [Fault.OUT_OF_TURN]
    assert "server 3 replies on the connection to server 2" in sender.incidents[0].text


async def test_large_request_extends_reply_timeout(stage: Stage, autojump_clock: MockClock) -> None:
    failures: list[GarlicFarmError] = []
    connection, theirs = await connection_against(stage.nursery, failures)
    started = trio.current_time()
    assert connection.post(bytes(10_000_000), lambda _: None)
    await trio.sleep(11)
    assert connection.open
    await trio.sleep(2)
    assert [failure.fault for failure in failures] == [Fault.SILENT]
    assert trio.current_time() - started == pytest.approx(13)
    await trio.aclose_forcefully(theirs)


async def test_repeated_incident_is_counted_but_rarely_reported(autojump_clock: MockClock) -> None:
    reported: list[Incident] = []
    metrics = Metrics(reported.append)
    for _ in range(100):
        metrics.incident(Fault.SILENT, "10.0.0.1", "no word")
        metrics.incident(Fault.SILENT, "10.0.0.2", "no word")
        await trio.sleep(0.25)
    assert metrics.counts[Fault.SILENT] == 200
    assert len(reported) == 6


async def test_full_table_replaces_unused_link_for_new_server(stage: Stage, autojump_clock: MockClock) -> None:
    """A server that left must not block a new server."""
    stage.add(Host(CAROL))
    sender = Sender(stage, options=LinkOptions(peers_max=1))
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    sender.links.send(CAROL, vote(2))
    assert sender.metrics.counts[ConnectionEvent.REQUESTS_WITHOUT_LINK] == 1
    await trio.sleep(3)
    sender.links.send(CAROL, vote(3))
    await trio.sleep(1)
    assert sender.correlations() == [3]
    assert [view.peer for view in sender.links.describe()] == [CAROL]


async def test_kept_link_connects_before_first_request(stage: Stage) -> None:
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect({BOB})
    await wait_all_tasks_blocked()
    assert [(view.peer, view.connected) for view in sender.links.describe()] == [(BOB, True)]
    assert [peer for peer, _ in sender.extensions] == [BOB]


async def test_kept_link_reconnects_until_it_is_released(stage: Stage, autojump_clock: MockClock) -> None:
    # Given a kept link
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect({BOB})
    await wait_all_tasks_blocked()
    # When its connection breaks, then it is opened again
    await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(5)
    assert [view.connected for view in sender.links.describe()] == [True]
    # When the server is no longer a member and the connection breaks, then it is not dialed again, and not listed
    sender.links.connect(())
    assert [view.connected for view in sender.links.describe()] == [True]
    connections = stage.connections
    await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(5)
    assert (sender.links.describe(), stage.connections) == ((), connections)


@pytest.mark.parametrize(
    ("meets_peer", "refusal", "ended"),
    [
        (True, errno.ECONNREFUSED, True),
        (True, errno.EHOSTUNREACH, False),
        (True, None, False),
        (False, errno.ECONNREFUSED, False),
    ],
)
async def test_refusal_after_a_connection_reports_end_of_peer(
    stage: Stage, autojump_clock: MockClock, *, meets_peer: bool, refusal: int | None, ended: bool
) -> None:
    host, sender = Host(BOB), Sender(stage)
    if meets_peer:
        stage.add(host)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect({BOB})
    await trio.sleep(10)
    assert sender.receiver.ended == []
    if refusal is not None:
        stage.hosts.pop(BOB, None)
        stage.refusal = refusal
    if meets_peer:
        await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(0.1)
    assert bool(sender.receiver.ended) is ended
    reported = LinkOptions().ended_s / LinkOptions().backoff_first_s
    await trio.sleep(100)
    assert len(sender.receiver.ended) < reported
    assert len(sender.receiver.extensions) == meets_peer + (refusal is None)
