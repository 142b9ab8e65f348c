"""A server's outgoing links: order, loss, dead peers, and what the handshake agreed on."""

from collections.abc import AsyncIterator
from random import Random

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from consensus.core import messages as core
from consensus.core.effects import Role
from consensus.core.entry_data import configuration_entry
from consensus.core.events import AppendNotSent, Received
from consensus.core.features import NO_EXTENSIONS, Extensions
from consensus.core.model import Configuration as CoreConfiguration
from consensus.core.model import Entry, LogId, Server
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection, Lost
from consensus.protocols.garlic_farm.node.dialer import Dialer
from consensus.protocols.garlic_farm.node.joining_peers import JoiningPeer
from consensus.protocols.garlic_farm.node.links import LinkOptions, PeerLinks
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Incident, Metrics
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import encode_reply
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, LogEntry
from tests.node.garlic_farm_stage import ALICE, BOB, CAROL, Host, Stage
from tests.node.recorded_receiver import RecordedReceiver
from tests.spec.raft_bench import Bench

ALONE = Configuration(1, 0, (ClusterServer(ALICE, "tcp://a:1"),))


class Sender:
    """Alice's links, and what came back on them."""

    def __init__(self, stage: Stage, dialer: Dialer | None = None, options: LinkOptions | None = None) -> None:
        self.receiver = RecordedReceiver()
        self.replies, self.kept_back = self.receiver.replies, self.receiver.kept_back
        self.extensions = self.receiver.extensions
        self.incidents: list[Incident] = []
        self.metrics = Metrics(self.incidents.append)
        self.links = PeerLinks(
            dialer or stage.dialer(ALICE),
            stage.resolve,
            metrics=self.metrics,
            random=Random(3),
            options=options,
        )

    def correlations(self) -> list[int]:
        """Of the replies so far, in order."""
        return [reply.correlation for _, reply in self.replies]


def vote(correlation: int, *, pre_vote: bool = False) -> core.RequestVote:
    return core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=correlation, pre_vote=pre_vote)


def append(correlation: int) -> core.AppendEntries:
    entries = (Entry.command(3, b"{}"),)
    return core.AppendEntries(
        term=3, leader=ALICE, previous=LogId(correlation, 3), entries=entries, commit=0, correlation=correlation
    )


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        yield Stage(nursery)
        nursery.cancel_scope.cancel()


async def test_requests_arrive_in_order_and_replies_answer_their_requests(stage: Stage) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(100, 140):
        sender.links.send(BOB, append(correlation))
    await wait_all_tasks_blocked()
    assert [request.previous.index for _, request in host.handler.asked if isinstance(request, core.AppendEntries)] == [
        *range(100, 140)
    ]
    assert sender.replies == [
        (BOB, core.AppendReply(term=3, success=True, next_index=correlation + 2, correlation=correlation))
        for correlation in range(100, 140)
    ]
    (view,) = sender.links.describe()
    assert (view.peer, view.connected, view.waiting, view.sent, view.dropped) == (BOB, True, 0, 40, 0)


async def test_the_handshake_tells_whether_the_peer_understands(stage: Stage) -> None:
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


async def test_a_peer_that_appears_later_gets_what_is_sent_then_and_nothing_old(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    for correlation in range(50):
        sender.links.send(BOB, vote(correlation))
        await trio.sleep(0.1)
    assert sender.incidents[0].fault is Fault.UNREACHABLE
    assert "Connection refused" in sender.incidents[0].text
    host = stage.add(Host(BOB))
    for correlation in range(50, 100):
        sender.links.send(BOB, vote(correlation))
        await trio.sleep(0.1)
    assert sender.correlations()[-1] == 99
    assert min(sender.correlations()) > 40
    assert len(host.handler.asked) == len(sender.replies)


async def test_an_unreachable_peer_costs_a_bounded_queue_and_few_events(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
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


async def test_a_dead_peer_is_noticed_by_its_silence_and_dialed_again(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
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


async def test_steady_replies_keep_a_connection_however_long_it_lasts(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
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


async def test_a_broken_connection_is_opened_again_with_request_2(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
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


async def test_forgetting_a_peer_closes_its_link(stage: Stage) -> None:
    host, sender = stage.add(Host(BOB)), Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.send(BOB, vote(1))
    await wait_all_tasks_blocked()
    assert host.server.places.established == 1
    sender.links.forget(BOB)
    await wait_all_tasks_blocked()
    assert host.server.places.established == 0
    assert sender.links.describe() == ()


async def test_a_pack_that_could_not_be_sent_leaves_no_gap_for_the_next(stage: Stage) -> None:
    # Given a newcomer that understands the document alone
    stage.add(Host(BOB))
    sender = Sender(stage, stage.dialer(ALICE, offered=()))
    await stage.nursery.start(sender.links.run, sender.receiver)
    newcomer = JoiningPeer(
        None,
        lambda _: wire.JoinClusterRequest(
            source=ALICE,
            destination=BOB,
            term=3,
            entries=(LogEntry(3, ALONE),),
        ),
    )
    assert sender.links.invite(BOB, newcomer)
    await wait_all_tasks_blocked()
    newcomer.accepted = True
    newcomer.on_join_reply(wire.JoinClusterResponse(source=BOB, destination=ALICE, term=3, next_index=1, accepted=True))
    # When the first entry is one that it cannot read, and the second follows without waiting
    servers = (Server(ALICE, "tcp://a:1"),), (Server(BOB, "tcp://b:1"),)
    unreadable = (configuration_entry(3, CoreConfiguration(*servers)),)
    sender.links.send(
        BOB, core.AppendEntries(term=3, leader=ALICE, previous=LogId(0, 0), entries=unreadable, commit=1, correlation=1)
    )
    sender.links.send(BOB, append(1))
    await wait_all_tasks_blocked()
    # Then the second, which would be stored where the first belongs, is kept back, and it gets no answer
    assert sender.kept_back == [(BOB, 1, 1)]
    assert sender.replies == []
    assert newcomer.packs == 0


async def test_a_leader_whose_only_peer_has_not_joined_steps_down_by_check_quorum(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    # Given a leader of two servers, and a link to the other that keeps every append back: it refuses to join
    stage.add(Host(BOB))
    leader, sender = Bench(1, 1, voters=2), Sender(stage, stage.dialer(ALICE, offered=()))
    await stage.nursery.start(sender.links.run, sender.receiver)
    joining_peer = JoiningPeer(
        None,
        lambda _: wire.JoinClusterRequest(
            source=ALICE,
            destination=BOB,
            term=3,
            entries=(LogEntry(3, ALONE),),
        ),
    )
    assert sender.links.invite(BOB, joining_peer)
    await wait_all_tasks_blocked()
    leader.lead()
    appends, steps = leader.appends(BOB), 0
    # When time goes on
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
    # Then no message of the core has left, and the leader has noticed that the peer does not answer
    assert joining_peer.accepted is False
    (view,) = sender.links.describe()
    assert (view.connected, view.sent) == (True, 1)
    assert not leader.is_(Role.LEADER)


def heartbeat(correlation: int) -> core.AppendEntries:
    return core.AppendEntries(term=3, leader=ALICE, previous=LogId(2, 3), entries=(), commit=0, correlation=correlation)


def slow_disk(request: core.Request) -> float:
    """Seconds until the follower answers: a disk that pauses holds up appends, and nothing else."""
    return 1.6 if isinstance(request, core.AppendEntries) and request.entries else 0.0


async def heartbeats_during(sender: Sender, seconds: int) -> list[float]:
    """Send an append, then a heartbeat each 0.1 s; when an answer to a heartbeat came."""
    sender.links.send(BOB, append(1))
    answered_s = []
    for tenth in range(10 * seconds):
        await trio.sleep(0.1)
        sender.links.send(BOB, heartbeat(100 + tenth))
        await wait_all_tasks_blocked()
        if sender.replies and sender.correlations()[-1] >= 100:
            answered_s.append(trio.current_time())
            sender.replies.clear()
    return answered_s


async def test_a_heartbeat_does_not_wait_for_the_disk_that_an_append_waits_for(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    # Given a follower whose disk takes 1.6 s
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    # When a leader appends, and sends heartbeats meanwhile
    began_s = trio.current_time()
    answered_s = await heartbeats_during(sender, 1)
    # Then they are answered while the append is not, so no quorum is missed
    assert len(answered_s) >= 8
    assert max(after - before for before, after in zip([began_s, *answered_s], answered_s, strict=False)) <= 0.31
    # And the append is answered when it is durable, on a connection that was never taken for dead
    await trio.sleep(1)
    assert 1 in sender.correlations()
    assert sender.metrics.counts[ConnectionEvent.LINKS_ESTABLISHED] == 1
    assert sender.metrics.counts[ConnectionEvent.HEARTBEAT_CONNECTIONS] == 1


async def test_a_peer_that_answers_heartbeats_is_not_dead_however_long_its_disk_pauses(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = lambda request: 4 * slow_disk(request)
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 6)
    await trio.sleep(1)
    assert 1 in sender.correlations()
    assert sender.metrics.counts[ConnectionEvent.LINKS_ESTABLISHED] == 1
    assert sender.incidents == []


async def test_a_heartbeat_never_overtakes_an_append_that_was_just_sent(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    # Given a connection that owes an answer, and another for heartbeats beside it
    host, sender = stage.add(Host(BOB)), Sender(stage)
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 1)
    assert sender.metrics.counts[ConnectionEvent.HEARTBEAT_CONNECTIONS] == 1
    # When a round of reads sends a heartbeat right behind an append
    sender.links.send(BOB, append(2))
    sender.links.send(BOB, heartbeat(200))
    await wait_all_tasks_blocked()
    # Then it follows the append on the same connection, and is answered behind it
    assert 200 not in sender.correlations()
    await trio.sleep(3)
    assert [each for each in sender.correlations() if each in {2, 200}] == [2, 200]


async def test_a_server_of_another_make_has_one_connection(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
    host, sender = stage.add(Host(BOB)), Sender(stage, stage.dialer(ALICE, offered=()))
    host.handler.delay_s = slow_disk
    await stage.nursery.start(sender.links.run, sender.receiver)
    await heartbeats_during(sender, 1)
    assert host.server.places.established == 1


async def test_one_link_does_not_wait_for_another(stage: Stage) -> None:
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


async def test_a_reply_that_answers_nothing_ends_the_connection(stage: Stage) -> None:
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


async def test_what_was_sent_and_what_was_not_are_told_apart_when_a_connection_ends(stage: Stage) -> None:
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


async def test_a_waiting_caller_is_told_when_our_own_side_gives_the_connection_up() -> None:
    answers: list[wire.Reply | Lost] = []
    async with trio.open_nursery() as nursery:
        connection, _theirs = await connection_against(nursery, [])
        assert connection.post(b"request", answers.append)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert answers == [Lost.UNANSWERED]


async def test_a_reply_in_another_servers_name_ends_the_connection(stage: Stage, autojump_clock: MockClock) -> None:
    del autojump_clock
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


async def test_a_large_request_has_time_to_get_there_before_silence_counts(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
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


async def test_a_repeated_incident_is_counted_each_time_and_reported_once_in_a_while(autojump_clock: MockClock) -> None:
    del autojump_clock
    told: list[Incident] = []
    metrics = Metrics(told.append)
    for _ in range(100):
        metrics.incident(Fault.SILENT, "10.0.0.1", "no word")
        metrics.incident(Fault.SILENT, "10.0.0.2", "no word")
        await trio.sleep(0.25)
    assert metrics.counts[Fault.SILENT] == 200
    assert len(told) == 6


async def test_a_full_table_makes_room_for_a_new_server_by_an_unused_link(
    stage: Stage, autojump_clock: MockClock
) -> None:
    """Servers come and go; who left does not keep out who comes."""
    del autojump_clock
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


async def test_a_kept_link_is_connected_before_there_is_anything_to_say(stage: Stage) -> None:
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect({BOB})
    await wait_all_tasks_blocked()
    assert [(view.peer, view.connected) for view in sender.links.describe()] == [(BOB, True)]
    assert [peer for peer, _ in sender.extensions] == [BOB]


async def test_a_kept_link_that_breaks_comes_back_and_one_that_is_kept_no_more_does_not(
    stage: Stage, autojump_clock: MockClock
) -> None:
    del autojump_clock
    # Given a link that is kept
    stage.add(Host(BOB))
    sender = Sender(stage)
    await stage.nursery.start(sender.links.run, sender.receiver)
    sender.links.connect({BOB})
    await wait_all_tasks_blocked()
    # When its connection breaks, then it is made again
    await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(5)
    assert [view.connected for view in sender.links.describe()] == [True]
    # When the server is a member no more, and the connection breaks, then it is not dialed again
    sender.links.connect(())
    await trio.aclose_forcefully(stage.live[-1])
    await trio.sleep(5)
    assert [view.connected for view in sender.links.describe()] == [False]
