"""Gossip messages of every kind: strategies for hypothesis, and fixed examples."""

from hypothesis import strategies as st

from gossip.core.keyring import DatedKey, Keyring
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import (
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
    UserEvent,
    UserMessageId,
    VerdictUpdate,
)

ALICE = NodeInfo(
    NodeId(b"alice..."),
    Address("10.3.2.1", 7946),
    Incarnation(3, 1),
    capacity=30,
    metadata=b"router",
    credential=b"c" * 96,
)
BORIS = NodeInfo(NodeId(b"boris..."), Address("fd00::17", 7947), Incarnation(2, 0), capacity=3)
VERDICT = VerdictUpdate(BORIS.node_id, BORIS.incarnation, Status.SUSPECT, accuser=ALICE.node_id)
DEPARTURE = VerdictUpdate(BORIS.node_id, BORIS.incarnation, Status.LEFT, BORIS.node_id, proof=b"d" * 96)
EVENT_ID = UserMessageId(17, BORIS.node_id, 2)
USER_MESSAGES = (
    UserEvent(EVENT_ID, "deploy", b"now"),
    Query(UserMessageId(18, ALICE.node_id, 3), "uptime", b"?", ALICE.address, 2_000),
)
PAYLOAD = Payload(
    (AliveUpdate(ALICE), VERDICT, DEPARTURE),
    capacity=3,
    peer_count=2,
    sample=(BORIS, ALICE),
    user_messages=USER_MESSAGES,
    keys_digest=b"digest..",
)
CHAIN = Keyring((DatedKey(2, b"1" * 32, retired=True), DatedKey(4, b"4" * 32)), b"4" * 32, used_at=5)

EXAMPLES: tuple[Message, ...] = (
    JoinReq(ALICE, token=b"t" * 32, auth=b"a" * 32, peer_count=5, clock=16),
    JoinNak("swimjoin", 7115, b"t" * 32, receiver_generation=4),
    JoinRedirect((BORIS.address, ALICE.address), "swimjoin", 7116, b"full", receiver_generation=4),
    JoinAck(ALICE, (BORIS,), clock=16, receiver_generation=4),
    Leave(ALICE),
    PingRequest(
        ALICE.node_id,
        ALICE.incarnation,
        BORIS.node_id,
        BORIS.incarnation,
        6253,
        2,
        requester=ALICE.address,
        payload=PAYLOAD,
    ),
    PingResponse(
        ALICE.node_id, BORIS.node_id, BORIS.incarnation, seq=6253, ttl=1, nack=True, payload=PAYLOAD, proof=b"p" * 112
    ),
    Broadcast(ALICE),
    QueryReply(EVENT_ID, ALICE.node_id, b"three days"),
    KeyringUpdate(CHAIN, ALICE.node_id, b"k" * 96),
)

node_ids = st.binary(min_size=8, max_size=8).map(NodeId)
hosts = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
addresses = st.builds(Address, hosts, st.integers(0, 65_535))
incarnations = st.builds(Incarnation, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
infos = st.builds(
    NodeInfo,
    node_id=node_ids,
    address=addresses,
    incarnation=incarnations,
    capacity=st.integers(0, 2**32 - 1),
    metadata=st.binary(max_size=512),
    credential=st.binary(max_size=128),
)
verdicts = st.builds(VerdictUpdate, node_ids, incarnations, st.sampled_from([Status.SUSPECT, Status.DEAD]), node_ids)
departures = st.builds(
    lambda node_id, incarnation, proof: VerdictUpdate(node_id, incarnation, Status.LEFT, node_id, proof),
    node_ids,
    incarnations,
    st.binary(max_size=128),
)
updates = st.one_of(st.builds(AliveUpdate, infos), verdicts, departures)
message_ids = st.builds(UserMessageId, st.integers(0, 2**63 - 1), node_ids, st.integers(0, 2**63 - 1))
names = st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=32)
bodies = st.binary(max_size=512)
user_messages = st.one_of(
    st.builds(UserEvent, message_ids, names, bodies),
    st.builds(Query, message_ids, names, bodies, addresses, st.integers(0, 600_000)),
)


@st.composite
def chains(draw: st.DrawFn) -> Keyring:
    keys = draw(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5, unique=True))
    times = st.integers(1, 2**53 - 1)
    chain_keys = tuple(sorted(DatedKey(draw(times), key, retired=draw(st.booleans())) for key in keys))
    primary = draw(st.sampled_from(keys))
    used_at = draw(times)
    if draw(st.booleans()):  # a key older than all dated keys
        others = (each for each in chain_keys if each.key != primary)
        chain_keys = (DatedKey(0, primary), *others)
    chain = Keyring(chain_keys, primary, used_at)
    assert chain.is_sound()
    return chain


payloads = st.builds(
    Payload,
    updates=st.lists(updates, max_size=4).map(tuple),
    capacity=st.integers(0, 2**32 - 1),
    peer_count=st.integers(0, 2**32 - 1),
    sample=st.lists(infos, max_size=3).map(tuple),
    user_messages=st.lists(user_messages, max_size=2).map(tuple),
    keys_digest=st.sampled_from([b"", b"8 bytes."]),
)
domains = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=32)
codes = st.integers(0, 2**64 - 1)
etags = st.binary(max_size=128)
sequences = st.integers(0, 2**64 - 1)
clocks = st.integers(0, 2**63 - 1)
ttls = st.integers(0, 255)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(JoinReq, infos, etags, st.binary(max_size=64), st.integers(0, 2**32 - 1), clocks),
    st.builds(JoinNak, domains, codes, etags, clocks),
    st.builds(JoinRedirect, st.lists(addresses, max_size=5).map(tuple), domains, codes, etags, clocks),
    st.builds(JoinAck, infos, st.lists(infos, max_size=3).map(tuple), clocks, clocks),
    st.builds(Leave, infos),
    st.builds(
        PingRequest,
        node_ids,
        incarnations,
        node_ids,
        incarnations,
        seq=sequences,
        ttl=ttls,
        requester=st.none() | addresses,
        payload=payloads,
    ),
    st.builds(
        PingResponse,
        node_ids,
        node_ids,
        incarnations,
        seq=sequences,
        ttl=ttls,
        nack=st.booleans(),
        payload=payloads,
        proof=st.binary(max_size=128),
    ),
    st.builds(Broadcast, infos),
    st.builds(QueryReply, message_ids, node_ids, bodies),
    st.builds(KeyringUpdate, chains(), node_ids, st.binary(max_size=128)),
)
