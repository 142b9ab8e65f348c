"""Every kind of gossip message, for hypothesis and by example."""

from hypothesis import strategies as st

from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.messages import (
    AliveUpdate,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    Message,
    Payload,
    PingRequest,
    PingResponse,
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
PAYLOAD = Payload((AliveUpdate(ALICE), VERDICT), capacity=3, peer_count=2, sample=(BORIS, ALICE))

EXAMPLES: tuple[Message, ...] = (
    JoinReq(ALICE, token=b"t" * 32, auth=b"a" * 32, peer_count=5),
    JoinNak("swimjoin", 7115, b"t" * 32),
    JoinRedirect((BORIS.address, ALICE.address), "swimjoin", 7116, b"full"),
    JoinAck(ALICE, (BORIS,)),
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
    PingResponse(ALICE.node_id, BORIS.node_id, BORIS.incarnation, seq=6253, ttl=1, nack=True, payload=PAYLOAD),
    Broadcast(ALICE),
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
verdicts = st.builds(
    VerdictUpdate, node_ids, incarnations, st.sampled_from([Status.SUSPECT, Status.DEAD, Status.LEFT]), node_ids
)
updates = st.one_of(st.builds(AliveUpdate, infos), verdicts)
payloads = st.builds(
    Payload,
    updates=st.lists(updates, max_size=4).map(tuple),
    capacity=st.integers(0, 2**32 - 1),
    peer_count=st.integers(0, 2**32 - 1),
    sample=st.lists(infos, max_size=3).map(tuple),
)
domains = st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=32)
codes = st.integers(0, 2**32 - 1)
etags = st.binary(max_size=128)
sequences = st.integers(0, 2**64 - 1)
ttls = st.integers(0, 255)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(JoinReq, infos, etags, st.binary(max_size=64), codes),
    st.builds(JoinNak, domains, codes, etags),
    st.builds(JoinRedirect, st.lists(addresses, max_size=5).map(tuple), domains, codes, etags),
    st.builds(JoinAck, infos, st.lists(infos, max_size=3).map(tuple)),
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
        PingResponse, node_ids, node_ids, incarnations, seq=sequences, ttl=ttls, nack=st.booleans(), payload=payloads
    ),
    st.builds(Broadcast, infos),
)
