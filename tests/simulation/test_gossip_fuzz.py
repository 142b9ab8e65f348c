"""A core never raises, and its invariants hold after every step, for any sequence of messages, times and requests.

All messages here have passed the seal, so a holder of the farm's key sent them; their content may be false.
"""

from random import Random
from typing import TypeVar
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from gossip.core import probe
from gossip.core.effects import MembershipChanged, Send
from gossip.core.events import (
    AnswerGiven,
    DeadlineReached,
    Event,
    KeyringChanged,
    LeaveRequested,
    MaintenanceSwitched,
    MetadataChanged,
    QueryRequested,
    Received,
    SeedsGiven,
    UserEventRequested,
)
from gossip.core.keyring import CLOCK_LIMIT, KEYS_LIMIT, DatedKey, Keyring
from gossip.core.member import INCARNATION_LIMIT, Incarnation, NodeInfo, Status
from gossip.core.messages import (
    DOMAIN,
    AliveUpdate,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    KeyringUpdate,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Query,
    QueryReply,
    RefusalCode,
    UserEvent,
    UserMessageId,
    VerdictUpdate,
)
from gossip.core.options import SwimOptions
from gossip.core.swim import Swim
from tests.simulation.gossip_network import GossipNetwork, address_of, node_id

CAPACITY = 3
DIRECTORY = 10

# Few members, so that messages concern the same ones: 0 is the node under test.
ids = st.integers(0, 15).map(node_id)
addresses = st.integers(0, 15).map(address_of)
numbers = st.one_of(st.integers(0, 4), st.sampled_from([INCARNATION_LIMIT - 1, INCARNATION_LIMIT, (1 << 63) - 1]))
incarnations = st.builds(Incarnation, numbers, numbers)
infos = st.builds(NodeInfo, ids, addresses, incarnations, st.integers(0, 8), st.binary(max_size=4))
updates = st.one_of(
    st.builds(AliveUpdate, infos),
    st.builds(VerdictUpdate, ids, incarnations, st.sampled_from(Status), ids),
)


T = TypeVar("T")


def tuples(of: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, max_size=3).map(tuple)


clocks = st.one_of(st.integers(0, 9), st.sampled_from([1 << 32, CLOCK_LIMIT - 1, (1 << 63) - 1]))
message_ids = st.builds(UserMessageId, clocks, ids, numbers)
names = st.sampled_from(["word", "gossip:keys", "", "n" * 33])
user_messages = st.one_of(
    st.builds(UserEvent, message_ids, names, st.binary(max_size=4)),
    st.builds(Query, message_ids, names, st.binary(max_size=4), addresses, st.sampled_from([0, 1, 9_000, 1 << 40])),
)
keys = st.integers(0, 20).map(lambda number: bytes([number]) * 32)
chain_keys = st.builds(DatedKey, clocks, keys, st.booleans())
chains = st.builds(Keyring, tuples(chain_keys), keys, clocks)
FIRST = Keyring.of(b"1" * 32, (b"2" * 32,), (), 1)
digests = st.sampled_from([b"", b"another!", FIRST.digest])
payloads = st.builds(
    Payload, tuples(updates), st.integers(0, 8), st.integers(0, 9), tuples(infos), tuples(user_messages), digests
)
codes = st.one_of(st.sampled_from(RefusalCode).map(int), st.integers(0, 9))
domains = st.sampled_from([DOMAIN, "elsewhere"])
seqs = st.integers(0, 3)
ttls = st.integers(0, 255)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(JoinReq, infos, st.binary(max_size=3), st.just(b""), st.integers(0, 9), clocks),
    st.builds(JoinNak, domains, codes, st.binary(max_size=3)),
    st.builds(JoinRedirect, tuples(addresses), domains, codes),
    st.builds(JoinAck, infos, tuples(infos), clocks),
    st.builds(Leave, infos),
    st.builds(PingRequest, ids, incarnations, ids, incarnations, seqs, ttls, st.one_of(st.none(), addresses), payloads),
    st.builds(PingResponse, ids, ids, incarnations, seqs, ttls, st.booleans(), payloads),
    st.builds(Broadcast, infos),
    st.builds(QueryReply, message_ids, ids, st.binary(max_size=4)),
    st.builds(KeyringUpdate, chains),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Received, addresses, messages, st.booleans()),
    st.builds(Received, addresses, messages, st.booleans()),
    st.just(DeadlineReached()),
    st.builds(SeedsGiven, tuples(addresses)),
    st.builds(MetadataChanged, st.binary(max_size=8)),
    st.builds(MaintenanceSwitched, st.booleans()),
    st.builds(UserEventRequested, st.just("word"), st.binary(max_size=8)),
    st.builds(QueryRequested, st.integers(0, 3), st.just("ask"), st.just(b""), st.integers(1, 9_000)),
    st.builds(AnswerGiven, message_ids, st.binary(max_size=4)),
    st.builds(KeyringChanged, st.just(FIRST.install(b"3" * 32).use(b"3" * 32))),
)
pauses = st.one_of(st.just(0), st.integers(1, 500), st.integers(-100, 60_000))


def check_invariants(swim: Swim, now: int) -> None:
    """Check the conditions that hold after every step."""
    description = swim.describe()
    own = description.self_info
    by_id = {member.node_id: member for member in description.members}
    peers = [member for member in description.members if member.is_peer]
    assert own.node_id not in by_id, "a node is not a member of its own directory"
    assert own.incarnation.number < INCARNATION_LIMIT
    assert own.incarnation.generation < INCARNATION_LIMIT
    assert description.peer_count == len(peers) <= CAPACITY
    assert len(by_id) == len(description.members) <= DIRECTORY
    assert all(peer.status in {Status.ALIVE, Status.SUSPECT} for peer in peers)
    live = [member for member in description.members if member.status in {Status.ALIVE, Status.SUSPECT}]
    assert swim._members.live_count == len(live)
    assert {entry.node_id for entry in swim.membership.entries() if entry.is_live} == {
        member.node_id for member in live
    }
    suspects = {member.node_id for member in description.members if member.status is Status.SUSPECT}
    assert set(swim._updates._suspicions) == suspects, "each suspect has its clock"
    assert description.joins_in_flight <= swim._options.joins_in_flight
    assert description.seed_count <= swim._options.seeds_limit
    assert len(swim._prober._relays.passed_on) <= swim._options.relays_limit
    assert len(swim._queue.queued) <= DIRECTORY + 2
    user_messages = swim._user_events
    assert len(user_messages.queue) <= swim._options.user_messages_limit
    assert len(user_messages._received) == len(user_messages._received_by_age) <= swim._options.user_messages_remembered
    assert len(swim._queries._own) <= swim._options.queries_limit
    assert len(swim._queries._open) <= swim._options.queries_limit
    assert user_messages.clock < CLOCK_LIMIT
    assert swim.keyring is not None
    assert swim.keyring.is_sound()
    assert len(swim.keyring.keys) <= KEYS_LIMIT
    assert (swim.deadline is None) == description.halted
    assert now >= 0


@given(
    story=st.lists(st.tuples(pauses, events), max_size=60),
    leaves_at=st.one_of(st.none(), st.integers(0, 60)),
    random_seed=st.integers(0, 9),
)
@patch.object(probe, "_SEQ_BITS", 4)  # so that made-up replies sometimes match a ping
def test_core_random_messages_keep_invariants(
    story: list[tuple[int, Event]], leaves_at: int | None, random_seed: int
) -> None:
    options = SwimOptions(
        directory_limit=DIRECTORY,
        relays_limit=4,
        seeds_limit=5,
        user_messages_limit=3,
        user_messages_remembered=5,
        queries_limit=2,
    )
    us = NodeInfo(node_id(0), address_of(0), Incarnation(1, 0), CAPACITY)
    swim = Swim(us, options, Random(random_seed), 0, keys=FIRST)
    now = 0
    incarnation = us.incarnation
    for index, (pause, event) in enumerate(story):
        now = max(now + pause, 0)
        if index == leaves_at:
            swim.step(LeaveRequested(), now)
        effects = swim.step(event, now)
        check_invariants(swim, now)
        for effect in effects:
            if isinstance(effect, MembershipChanged):
                assert effect.info.node_id != us.node_id, "never sent for this node itself"
            if isinstance(effect, Send) and isinstance(effect.message, JoinReq):
                assert effect.target != us.address, "never joins itself"
        assert swim.describe().self_info.incarnation >= incarnation, "the node's own incarnation only rises"
        incarnation = swim.describe().self_info.incarnation


@given(noise=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 300), messages), max_size=80))
def test_group_after_false_messages_agrees(noise: list[tuple[int, int, Message]]) -> None:
    """Liars may declare any member dead; after their last message, all nodes see every running node alive."""
    network = GossipNetwork(1, SwimOptions.loopback())
    nodes = network.start(5)
    network.run(2_000)
    for number, pause, message in noise:
        network.run(pause)
        if not _is_unanswerable(message):
            network.step(nodes[number], Received(address_of(14), message, token_valid=False))
    alive = [node for node in nodes if not node.core.describe().halted]

    def agreed() -> bool:
        return all(network.status(one, other) is Status.ALIVE for one in alive for other in alive if one is not other)

    assert network.run_until(agreed, limit_ms=60_000)


def _is_unanswerable(message: Message) -> bool:
    """Return True for claims of the highest generation: no later generation exists to refute them."""
    return f"generation={INCARNATION_LIMIT - 1}" in repr(message)
