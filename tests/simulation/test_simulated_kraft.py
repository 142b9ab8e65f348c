"""The simulator's connections of a KRaft quorum: transmission, delays, refusals and retries."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from consensus.core.events import Event, PeerExtensions
from consensus.core.messages import (
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    Fetch,
    FetchReply,
    Message,
    Request,
    RequestVote,
    VoteReply,
)
from consensus.core.model import Configuration, Entry, Index, LogId, ReplicaKey, ServerId
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.peer_transport import KraftTransport
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from consensus.protocols.kraft.replica.quorum_service import QuorumReplies
from consensus.protocols.kraft.wire.entries import batches_for_replicas, entries_of
from consensus.protocols.kraft.wire.mapping import Answering, QuorumResponse
from tests.simulation.consensus.history import SHORT, run_history
from tests.simulation.consensus.kafka_links import KafkaLinks
from tests.simulation.consensus.kafka_node import KafkaCommands, KafkaNode, named_for_kafka
from tests.simulation.consensus.marks import Marks
from tests.simulation.consensus.profile import STRATEGIES, KafkaRates, draw_ids, draw_profile, is_successor
from tests.simulation.consensus.quiet_way import WAY_MS, QuietWay

ONE, TWO, ANOTHER_TWO = (ReplicaKey(number, bytes([place]) * 16) for number, place in ((1, 1), (2, 2), (2, 3)))
VOTERS = Configuration(named_for_kafka([ONE, TWO]))
CLUSTER = "c2ltdWxhdGVkLWNsdXN0ZQ"
VOTE = RequestVote(term=4, candidate=ONE, last=LogId(9, 3), correlation=700, cluster_id=CLUSTER)
FETCH = Fetch(
    term=4,
    replica=ONE,
    position=LogId(3, 1),
    commit=2,
    max_wait_ms=500,
    max_bytes=1_000,
    correlation=701,
    cluster_id=CLUSTER,
)
RATES = KafkaRates(static=False, old_versions=0, busy=0, lost_directories=0, loser=1, batch_records=5, late_answers=0)


@dataclass
class SimulatedHost:
    """A server with simulated connections."""

    key: ReplicaKey
    answering: Answering = field(default_factory=lambda: Answering(None))
    versions: Mapping[int, tuple[int, int]] = field(default_factory=lambda: dict(VERSIONS))
    node: KafkaNode | None = None
    extensions: list[PeerExtensions] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = QuorumNames(self.key, (Endpoint("CONTROLLER", "10.0.0.1", 9093),), VOTERS)
        replies = QuorumReplies(names, batches_for_replicas, lambda: self.answering)
        self.node = KafkaNode(names, replies, KraftTransport(names, entries_of, random=Random(1)))

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` immediately: the server never pauses."""
        action()

    def step(self, event: Event) -> None:
        """Record the extensions passed to its core."""
        assert isinstance(event, PeerExtensions)
        self.extensions.append(event)


class Wire(QuietWay):
    """The connections of two servers."""

    def __init__(self, second: ReplicaKey = TWO, rates: KafkaRates = RATES) -> None:
        super().__init__()
        self.responses: list[QuorumResponse] = []
        self.hosts = {ONE: SimulatedHost(ONE), second: SimulatedHost(second)}
        profile = dataclasses.replace(draw_profile(Random(1), STRATEGIES["kraft"]), reply_timeout_ms=300)
        hosts: dict[ServerId, SimulatedHost] = {host.key: host for host in self.hosts.values()}
        self.marks = Marks()
        self.links = KafkaLinks(Random(1), profile, rates, hosts, self, self.marks, self)

    # The judge's interface.

    def check_response(self, _answerer: ServerId, _request: Request, response: QuorumResponse) -> None:
        self.responses.append(response)

    def response_received(self, *_details: object) -> None:
        """Ignore a received response."""

    def taken(self, request: Request) -> Message:
        """Send a request from server 1 over a new connection; return the request that server 2 receives."""
        self.links.send_request(ONE, TWO, request)
        (taken,) = self.run(3 * WAY_MS)
        return taken


def test_links_fetch_and_entries_survive_encoding() -> None:
    wire = Wire()
    taken = wire.taken(FETCH)
    assert isinstance(taken, Fetch)
    assert replace(taken, correlation=701) == FETCH
    commands = KafkaCommands(Random(1), 5).batch([b"a", b"b"], 7, producer=1)
    entries = tuple(Entry.command(4, data) for data in commands)
    wire.links.send_reply(
        TWO, ONE, FetchReply(term=4, leader=TWO, commit=3, correlation=taken.correlation, entries=entries)
    )
    assert wire.run(WAY_MS) == [FetchReply(term=4, leader=TWO, commit=3, correlation=701, entries=entries)]


def test_links_parked_fetch_delays_fetches_only() -> None:
    wire = Wire()
    parked = wire.taken(FETCH)
    wire.links.send_request(ONE, TWO, replace(FETCH, correlation=702))
    assert wire.run(50) == []
    wire.links.send_request(ONE, TWO, VOTE)
    (vote,) = wire.run(50)
    assert isinstance(vote, RequestVote)
    # Then the response to the first releases the second
    assert isinstance(parked, Fetch)
    wire.links.send_reply(TWO, ONE, FetchReply(term=4, leader=TWO, commit=3, correlation=parked.correlation))
    assert [type(message) for message in wire.run(WAY_MS)] == [Fetch, FetchReply]


def test_links_successor_refuses_request_for_lost_directory() -> None:
    """The successor has the address and the id of the requested voter; neither core receives anything."""
    wire = Wire(ANOTHER_TWO)
    wire.links.send_request(ONE, TWO, VOTE)
    assert wire.run(100) == []
    assert wire.marks.counts["request for another directory refused"] == 1
    assert wire.marks.counts["response without information about the quorum"] == 1


def test_links_busy_server_delivers_nothing() -> None:
    wire = Wire(rates=dataclasses.replace(RATES, busy=1))
    wire.links.send_request(ONE, TWO, VOTE)
    assert wire.run(100) == []
    assert wire.marks.counts["response without information about the quorum"] == 1


def test_links_pre_vote_not_sent_to_older_version() -> None:
    wire = Wire()
    wire.hosts[TWO].versions = {**VERSIONS, ApiKey.VOTE: (0, 1)}
    wire.links.send_request(ONE, TWO, replace(VOTE, pre_vote=True))
    assert wire.run(100) == []
    assert [event.extensions.pre_vote for event in wire.hosts[ONE].extensions] == [False]
    assert wire.marks.counts["pre-vote unsupported by the peer's version"] == 1


def test_links_high_watermark_requires_commit_in_epoch() -> None:
    for began, sent in ((3, 3), (4, 0)):
        wire = Wire()
        wire.hosts[TWO].answering = Answering(TWO, term=4, began=LogId(began, 4))
        taken = wire.taken(FETCH)
        assert isinstance(taken, Fetch)
        wire.links.send_reply(TWO, ONE, FetchReply(term=4, leader=TWO, commit=3, correlation=taken.correlation))
        assert wire.run(WAY_MS) == [FetchReply(term=4, leader=TWO, commit=sent, correlation=701)]


def test_links_unsent_request_retried_until_expired() -> None:
    for cut_ms, comes in ((100, True), (400, False)):
        wire = Wire()
        wire.is_cut = True
        wire.links.send_request(ONE, TWO, VOTE)
        assert wire.run(cut_ms) == []
        wire.is_cut = False
        assert bool(wire.run(2_000)) is comes


def test_links_reply_is_lost_with_connection() -> None:
    wire = Wire()
    taken = wire.taken(VOTE)
    wire.links.stopped(ONE)
    wire.links.send_reply(TWO, ONE, VoteReply(term=4, granted=True, correlation=taken.correlation))
    assert wire.run(100) == []


def test_links_announcement_has_sender_of_its_id() -> None:
    wire = Wire()
    taken = wire.taken(BeginQuorumEpoch(term=4, leader=ONE, correlation=703, cluster_id=CLUSTER))
    assert taken == BeginQuorumEpoch(term=4, leader=ONE, correlation=taken.correlation, cluster_id=CLUSTER)
    wire.links.send_reply(TWO, ONE, BeginQuorumEpochReply(term=4, leader=ONE, correlation=taken.correlation))
    assert wire.run(WAY_MS) == [BeginQuorumEpochReply(term=4, leader=ONE, correlation=703)]


def test_history_server_directories_match_static_voters() -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in range(60):
        profile = draw_profile(Random(seed), STRATEGIES["kraft"])
        assert profile.kafka is not None
        ids = draw_ids(seed, profile, STRATEGIES["kraft"].features)
        assert all(isinstance(each, ReplicaKey) and bool(each.directory) is not profile.kafka.static for each in ids)
        assert not any(map(is_successor, ids[: profile.servers]))
        seen.add((profile.kafka.static, any(map(is_successor, ids))))
    assert seen == {(True, False), (False, True), (False, False)}


def test_client_batch_sequences_wrap_around() -> None:
    firsts: list[Index] = []
    for seed in range(20):
        commands = KafkaCommands(Random(seed), 5)
        written = [commands.batch([b"a"] * 4, 0, producer=1) for _ in range(2)]
        firsts.append(int.from_bytes(written[1][0][19:23], "big"))
    assert set(firsts) == {4, 2**31 - 1}


def test_history_contains_leader_changes_and_voters() -> None:
    lines: list[str] = []
    run_history(3, SHORT, STRATEGIES["kraft"], lines.append)
    assert any("EntryKind.CONTROL" in line for line in lines)
    assert any("10.0.0.1:9093" in line for line in lines)
