"""Build the view of the farm from the descriptions of each part of the node.

    gossip's description, metadata ──▶ members, gossip
    the farm's log                 ──▶ raft, publishing, reports, weights (`bridge.api.building.log_part`)
    the node itself                ──▶ node, alarms, events

Pure code: tests check the operator's view without a terminal or a farm.
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.api.alarms import by_gravity
from bridge.api.building.log_part import FarmInputs, LogPart, no_raft, ordered
from bridge.api.farm_facts import udp_blocked
from bridge.api.json import encode
from bridge.api.verdict import verdict_of
from bridge.api.view import (
    AlarmView,
    EventView,
    FarmIdentity,
    FarmView,
    GossipView,
    MemberView,
    NodeView,
    OtherFarmView,
    ServerRole,
    WeightsView,
)
from bridge.core.formation.founding import EXPECT_MAX
from bridge.core.formation.member import MemberStatus, NodeMetadata
from bridge.core.history.records import NODES_MAX
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.membership.admission import Standing
from consensus import endpoint_text
from gossip import Address, Member, NodeId, OtherFarm, Status
from gossip import Description as GossipDescription

OTHERS_MAX: Final = max(NODES_MAX, EXPECT_MAX)
"""Limit of members without an admission in a view for the verdict and the history."""

_ENCODED_AT_ONCE: Final = 64
_STATUSES: Final = tuple(MemberStatus(each.name.lower()) for each in Status)


class ViewInputs(Struct, frozen=True, kw_only=True):
    """All inputs of a view."""

    taken_at_ms: int
    node: NodeView
    farm: FarmIdentity
    endpoint: str
    """The address of this node's own Raft server."""
    gossip: GossipDescription
    gossip_counters: Mapping[str, int]
    other_farms: tuple[OtherFarm, ...] = ()
    """Senders of gossip under another farm's key within the last minute."""
    metadata_of: Callable[[NodeId], NodeMetadata | None]
    """Metadata of a member by its NodeId; None if it cannot be read."""
    log: FarmInputs | None
    """The log; None if this node is not a server of a farm."""
    address_of: Callable[[str], str]
    """The `….b32.i2p` address of a destination in base64."""
    alarms: tuple[AlarmView, ...] = ()
    events: tuple[EventView, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)


def build_view(inputs: ViewInputs, others_max: int | None = None) -> FarmView:
    """Return the whole view, or with `others_max` only the members that affect the verdict and the history."""
    names: dict[int | None, str] = {
        metadata.raft_id: metadata.name
        for member in inputs.gossip.members
        if (metadata := inputs.metadata_of(member.info.node_id)) is not None and metadata.raft_id is not None
    }
    if inputs.log is not None:
        # The recorded names have precedence over the metadata of a member.
        admitted = inputs.log.state.admitted
        names.update((server_id, each.name) for server_id, each in admitted.items() if each.name is not None)
    if inputs.node.raft_id is not None:
        names[inputs.node.raft_id] = inputs.node.name
    selected = inputs.gossip.members
    if others_max is not None and len(selected) > others_max:
        selected = _selected(inputs, others_max)
    members = tuple(_members(inputs, selected))
    farm = None if inputs.log is None else LogPart(inputs.log, names, inputs.address_of)
    raft = no_raft() if farm is None else farm.raft(members)
    reports = () if farm is None else farm.reports()
    unreachable_ids = _unreachable(inputs) - udp_blocked(inputs.node, raft, members, reports)
    view = FarmView(
        taken_at_ms=inputs.taken_at_ms,
        node=inputs.node,
        farm=inputs.farm,
        gossip=GossipView(
            peer_count=inputs.gossip.peer_count,
            capacity=inputs.gossip.self_info.capacity,
            known_count=len(inputs.gossip.members) + 1,
            counters=ordered(inputs.gossip_counters),
            other_farms=tuple(
                OtherFarmView(_address(each.source, None) or "", each.label.hex()) for each in inputs.other_farms
            ),
        ),
        raft=raft,
        members=members,
        publishing=() if farm is None else farm.publishing(unreachable_ids),
        reports=reports,
        weights=WeightsView() if farm is None else farm.weights(),
        removed=() if farm is None else farm.state.removed,
        alarms=by_gravity(inputs.alarms),
        events=inputs.events,
        counters=ordered(inputs.counters),
    )
    return replace(view, verdict=verdict_of(view))


def encode_whole_view(inputs: ViewInputs, view: FarmView) -> bytes:
    """Return the JSON of the whole view, from the view with `OTHERS_MAX`.

    Of a large group, only some views of members exist at a time. All of them would leave free memory between other
    objects, which the process keeps.
    """
    if len(inputs.gossip.members) <= OTHERS_MAX:
        return encode(view)
    head, key, tail = encode(replace(view, members=())).partition(b'"members":[]')
    members = _members(inputs, inputs.gossip.members)
    # One growing buffer: a list of parts would leave its memory to the heap, between other objects.
    document = bytearray(head + key[:-1])
    while views := tuple(islice(members, _ENCODED_AT_ONCE)):
        document += encode(views)[1:-1] + b","
    document[-1:] = b"]" + tail
    return bytes(document)


def _unreachable(inputs: ViewInputs) -> frozenset[int]:
    """Return the Raft ids of the servers that gossip marks dead or left."""
    if inputs.log is None:
        return frozenset()
    unreachable_nodes = {each.node_id for each in inputs.gossip.members if each.status >= Status.DEAD}
    return frozenset(server_id for server_id, each in inputs.log.holders.items() if each.node_id in unreachable_nodes)


def _selected(inputs: ViewInputs, others_max: int) -> tuple[Member, ...]:
    """Return the admitted members, and others: the first ones by name for the history, some live ones for the verdict.

    The verdict compares the number of live members with at most the number of founders.
    """
    admitted = frozenset[bytes]() if inputs.log is None else {each.node_id for each in inputs.log.holders.values()}
    others = [each for each in inputs.gossip.members if each.info.node_id not in admitted]
    ids = [each.info.node_id for each in others]
    named = ((metadata.name, each) for each in ids if (metadata := inputs.metadata_of(each)) is not None)
    live = (each.info.node_id for each in others if each.status < Status.DEAD)
    chosen = {*admitted, *islice(live, others_max), *(node_id for _, node_id in nsmallest(others_max, named))}
    return tuple(each for each in inputs.gossip.members if each.info.node_id in chosen)


def _members(inputs: ViewInputs, selected: Iterable[Member]) -> Iterator[MemberView]:
    """Yield the views of this node and of the selected members, by name and then by id."""
    gossip, node = inputs.gossip, inputs.node
    roles = {} if inputs.log is None else _server_roles(inputs.log)
    own = MemberView(
        node_id=node.node_id,
        name=node.name,
        status=MemberStatus.LEFT if gossip.leaving else MemberStatus.ALIVE,
        generation=gossip.self_info.incarnation.generation,
        number=gossip.self_info.incarnation.number,
        address=_address(gossip.self_info.address, inputs.endpoint),
        is_self=True,
        is_peer=False,
        peer_count=gossip.peer_count,
        capacity=gossip.self_info.capacity,
        raft_id=node.raft_id,
        endpoint=inputs.endpoint,
        server_role=roles.get(bytes.fromhex(node.node_id), ServerRole.NONE),
        level=SUPPORTED_LEVEL,
    )
    evicted = frozenset[bytes]() if inputs.log is None else _evicted(inputs.log)
    admitted = {} if inputs.log is None else inputs.log.holders
    recorded = {each.node_id: each.name for each in admitted.values() if each.name is not None}
    numbers = {each.node_id: server_id for server_id, each in sorted(admitted.items())}

    known = {each.info.node_id: each for each in selected}
    metadata_of = inputs.metadata_of
    # The whole view uses one name: a renamed node keeps its old name until the log has recorded the new name.
    names = {
        node_id: recorded.get(node_id)
        or (node_id.hex() if (metadata := metadata_of(node_id)) is None else metadata.name)
        for node_id in sorted(known)
    }
    ordered = sorted(names, key=names.__getitem__)
    own_place = bisect(ordered, (own.name, own.node_id), key=lambda each: (names[each], each.hex()))
    for place, node_id in enumerate(ordered):
        if place == own_place:
            yield own
        yield _member(
            known[node_id],
            names[node_id],
            metadata_of(node_id),
            roles.get(node_id, ServerRole.NONE),
            gossip.now_ms,
            recorded_id=numbers.get(node_id),
            evicted=node_id in evicted,
        )
    if own_place == len(ordered):
        yield own


def _server_roles(log: FarmInputs) -> dict[bytes, ServerRole]:
    """Return the role in the Raft group of each admitted identity."""
    configuration = log.raft.configuration
    roles = dict.fromkeys(configuration.learner_ids, ServerRole.LEARNER) | dict.fromkeys(
        configuration.voter_ids, ServerRole.VOTER
    )
    return {
        each.node_id: roles.get(server_id, ServerRole.REMOVED)
        for server_id, each in log.holders.items()
        if each.standing is not Standing.LAPSED
    }


def _evicted(log: FarmInputs) -> frozenset[bytes]:
    """Return the NodeIds of the evicted identities."""
    return frozenset(each.node_id for each in log.state.admitted.values() if each.standing is Standing.EVICTED)


def _member(
    member: Member,
    name: str,
    metadata: NodeMetadata | None,
    server_role: ServerRole,
    now_ms: int,
    *,
    recorded_id: int | None,
    evicted: bool,
) -> MemberView:
    # The last round trip of a member that is dead or has left is not a current figure.
    is_gone = member.status >= Status.DEAD
    return MemberView(
        node_id=member.node_id.hex(),
        name=name,
        status=_STATUSES[member.status],
        generation=member.incarnation.generation,
        number=member.incarnation.number,
        address=_address(member.info.address, None if metadata is None else metadata.endpoint),
        is_self=False,
        is_peer=member.is_peer,
        rtt_ms=None if is_gone or member.round_trip_ms is None else float(member.round_trip_ms),
        peer_count=member.peer_count,
        capacity=member.info.capacity,
        # The metadata of a server that has just restarted lacks its id until it has opened its log.
        raft_id=recorded_id if metadata is None or metadata.raft_id is None else metadata.raft_id,
        endpoint=None if metadata is None else metadata.endpoint,
        server_role=server_role,
        status_age_ms=max(0, now_ms - member.since_ms) if now_ms else None,
        certificate=None if metadata is None or metadata.fingerprint is None else metadata.fingerprint.hex(),
        evicted=evicted,
        level=None if metadata is None else metadata.feature_level,
    )


def _address(address: Address, endpoint: str | None) -> str | None:
    """Return the gossip address of a member; None if it is reached by an I2P name and does not gossip."""
    if endpoint is not None and endpoint.rpartition(":")[0].endswith(".i2p"):
        return None
    return endpoint_text(address.host, address.port)
