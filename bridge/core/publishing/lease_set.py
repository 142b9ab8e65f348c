"""The leaves of the Meta LeaseSet2 and their costs (docs/reference/publishing-rules.md).

    load = job lag 30 + bandwidth 30 + connections 20 + missing tunnels 20        0 … 100
    cost = load, weighed by operators and pipeline, + 100 if not healthy 0 … 200      (`bridge.core.log.weights`)

Availability comes first: if fewer than half of all known leaves are healthy, unhealthy leaves are listed, too, at a
higher cost. In this case false reports are more likely than a failure of most leaves. An empty structure is never
published. Costs and membership have hysteresis, because otherwise each report would cause a publication. A cost is kept
until it differs by the margin. With more than 16 leaves, a new leaf displaces a listed leaf if the new leaf is cheaper
by the margin at a clock entry. Health does not have hysteresis: a healthy leaf replaces an unhealthy leaf immediately.
Otherwise clients could try 16 dead leaves after a server's death. An operator's exclusion or factor also counts
immediately.

No server can fill the structure alone. With n servers that report eligible leaves, each gets at most max(1, ⌊16 / n⌋)
places, filled by health, membership and cost as above. A destination that several servers report counts for one of
them: the server with the fewest leaves for this master, then the lowest Raft id. So a server that claims another
server's leaves uses up its own places, not the other server's.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache

from msgspec import Struct

from bridge.core.log.figures import RouterStatus
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import LeafStatus
from bridge.core.log.weights import UNHEALTHY_COST, weighed
from bridge.core.publishing.candidates import JOB_LAG_WORST_MS, penalty
from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.state.farm_state import SERVERS_MAX, FarmState, FarmTuning, Leaf, MasterState, ServerState

JOB_LAG_COST = 30
BANDWIDTH_COST = 30
CONNECTIONS_COST = 20
TUNNELS_COST = 20


@lru_cache(maxsize=16 * SERVERS_MAX)
def leaf_load(router: RouterStatus, leaf: LeafStatus) -> int:
    """Return the load of a destination from 0 (idle) to 100; lower is preferred.

    The router's bandwidth replaces an unknown bandwidth of the leaf.
    """
    own_bandwidth = leaf.configured_bandwidth_bytes_per_s is not None
    missing_tunnels = (
        leaf.configured_tunnels - leaf.current_tunnels
        if leaf.configured_tunnels is not None and leaf.current_tunnels is not None
        else None
    )
    return (
        penalty(JOB_LAG_COST, router.job_lag_ms, JOB_LAG_WORST_MS)
        + penalty(
            BANDWIDTH_COST,
            leaf.current_bandwidth_bytes_per_s if own_bandwidth else router.current_bandwidth_bytes_per_s,
            leaf.configured_bandwidth_bytes_per_s if own_bandwidth else router.configured_bandwidth_bytes_per_s,
        )
        + penalty(CONNECTIONS_COST, leaf.current_connections, leaf.configured_connections)
        + penalty(TUNNELS_COST, missing_tunnels, leaf.configured_tunnels)
    )


def select_leaves(
    state: FarmState, master: str, tuning: FarmTuning, *, at_clock: bool, reweighed: str | None = None
) -> tuple[Leaf, ...]:
    """Return the leaves that `master` lists after this entry, in order of destination.

    `reweighed` is the hash of a leaf whose cost an operator has just changed.
    """
    current_costs = {leaf.destination: leaf.cost for leaf in state.masters.get(master, MasterState()).leaves}
    candidates = _candidates(state, master, tuning)
    costs = {
        destination: current_costs[destination]
        if destination in current_costs
        and abs(cost - current_costs[destination]) < tuning.cost_margin
        and (reweighed is None or hash_of(destination) != reweighed)
        else cost
        for destination, cost in candidates.costs.items()
    }
    members = _members(costs, set(current_costs), candidates, tuning.cost_margin, swap=at_clock)
    return tuple(Leaf(destination, costs[destination]) for destination in sorted(members))


def is_healthy(state: FarmState, server: ServerState, leaf: LeafStatus, tuning: FarmTuning) -> bool:
    """Return True if a leaf is healthy in a recent report of this server, and the server has a router."""
    return leaf.healthy and server.report.router.attached and not state.stale(server, tuning)


class _Candidates(Struct, frozen=True):
    """The eligible leaves: their costs, the healthy leaves, and the server whose places each uses."""

    costs: Mapping[str, int]
    healthy: AbstractSet[str]
    owners: Mapping[str, int]
    places_each: int
    """Number of places that one server may have."""


def _candidates(state: FarmState, master: str, tuning: FarmTuning) -> _Candidates:
    """Collect the eligible leaves, without excluded ones."""
    healthy: dict[str, int] = {}
    known: dict[str, int] = {}
    servers: dict[str, set[int]] = {}
    for server, leaf in state.leaves_of(master):
        load = leaf_load(server.report.router, leaf)
        cost = weighed(load, hash_of(leaf.destination), state.weights, state.log_time_ms)
        if is_healthy(state, server, leaf, tuning):
            healthy[leaf.destination] = min(cost, healthy.get(leaf.destination, cost))
        poor = cost + UNHEALTHY_COST
        known[leaf.destination] = min(poor, known.get(leaf.destination, poor))
        servers.setdefault(leaf.destination, set()).add(server.report.server_id)
    costs = healthy if 2 * len(healthy) >= len(known) else known | healthy
    counts = Counter(server_id for destination in costs for server_id in servers[destination])
    owners = {
        destination: min(servers[destination], key=lambda server_id: (counts[server_id], server_id))
        for destination in costs
    }
    return _Candidates(costs, frozenset(healthy), owners, max(1, LEAVES_MAX // max(1, len(counts))))


def _members(
    costs: Mapping[str, int], current: AbstractSet[str], candidates: _Candidates, margin: int, *, swap: bool
) -> set[str]:
    healthy, owners = candidates.healthy, candidates.owners

    def order(destination: str) -> tuple[bool, int, str]:
        # The cheapest come first; among equal costs the destination decides, so that all servers agree.
        return destination not in healthy, costs[destination], destination

    def rank(destination: str) -> tuple[bool, bool, int, str]:
        # The order is health, then membership, then cost. Membership before cost is the hysteresis.
        return destination not in healthy, destination not in current, costs[destination], destination

    members: set[str] = set()
    places: Counter[int] = Counter()
    for destination in sorted(costs, key=rank):
        if len(members) < LEAVES_MAX and places[owners[destination]] < candidates.places_each:
            members.add(destination)
            places[owners[destination]] += 1
    if swap:
        for waiting in sorted(costs.keys() - members, key=order):
            owner = owners[waiting]
            full = places[owner] >= candidates.places_each
            dearest = max((each for each in members if not full or owners[each] == owner), key=order)
            if costs[dearest] - costs[waiting] >= margin:
                return members - {dearest} | {waiting}
    return members


def content_hash(leaves: tuple[Leaf, ...]) -> str:
    """Return the hex SHA-256 of destinations and costs in order of destination, without the ends of the entries."""
    lines = sorted(f"{leaf.destination} {leaf.cost}\n" for leaf in leaves)
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
