"""The feature level that an order about one server needs, even if this server does not announce that level.

    removal, approval ──▶ the server is lost, and the others that answer are a majority ──▶ the leader raises the level
    eviction          ──▶ the server is hostile; the order itself checks the majority   ──▶ the leader raises the level

The entry that removes, retires or evicts a server may need a level that this server does not announce. The leader
raises the level automatically (`bridge.node.membership.level_raising`) only when each voter announces it. For a lost
server this takes until the grace time has passed (`consensus.grace_ms`). A hostile server may never announce the
level. But a voter of an old version refuses the level's entry and all later ones. So if the farm needs the vote of this
server for a majority, the level's entry would stop the farm. Therefore a node refuses a removal or an approval while
the server runs: the operator can update the server or stop it.

The check commits nothing and does not move leadership, so a dry run gives the same answer. Only the leader knows which
voters answer; any other node counts the voters that gossip or a connection of its Raft server reaches.
"""

from msgspec import Struct

from bridge.api.control import Refused
from bridge.core.log.feature_level import VERSION_OF, holding_back
from bridge.core.log.records import Level
from bridge.core.membership.admission import server_name
from bridge.core.membership.eviction import too_few_answer
from bridge.node.control.orders.leading import commit_as_leader
from bridge.node.founded_farm import FoundedFarm
from bridge.node.membership.reconciling import group_of
from consensus import integer_id


class OrderLevel(Struct, frozen=True):
    """The level that an order needs, and the server that the order is about."""

    order: str
    server_id: int | None
    level: int
    why: str = ""
    is_eviction: bool = False
    """True for an eviction: the server may run, and the order itself checks the majority, or overrides this check."""


def check_level(farm: FoundedFarm, need: OrderLevel) -> None:
    """Raise `Refused` unless the farm has the level, or this server could raise it now as the leader."""
    level, server_id = farm.state.level, need.server_id
    if level >= need.level:
        return
    holding = holding_back(need.level - 1, farm.level_raising.announced())
    needs = f"this {need.order} needs feature level {need.level}{need.why}"
    if others := holding - {server_id}:
        text = f"{needs}. {farm.level_raising.obstacle(others)}. Update these voters, and start them if they are down"
        raise Refused(409, "level-too-low", text)
    if server_id is None or server_id not in holding or need.is_eviction:
        return
    name = server_name(farm.state.admitted, server_id)
    if farm.is_present(server_id, farm.contact_within_ms / 1000):
        text = (
            f"{needs}. {farm.level_raising.obstacle(holding)}. {name} runs, and a voter of an older version refuses all"
            " entries from this level on: update it, or stop it first. If it has just stopped, try again in a moment"
        )
        raise Refused(409, "still-runs", text)
    voters = _voters(farm)
    missing = too_few_answer(voters, _answering(farm, voters), server_id, len(voters))
    if missing is not None:
        text = f"{needs}. Without {name} {missing} answer, less than a majority: the farm could not commit anything"
        raise Refused(409, "no-majority", f"{text}. Start the others first")


async def reach_level(farm: FoundedFarm, need: OrderLevel) -> None:
    """Raise the farm's level at the leader, one step at a time; raise `Refused` with the reason if that fails."""
    while farm.state.level < need.level:
        check_level(farm, need)
        number = farm.state.level + 1
        unknown = f"`garlicfarm status` shows whether the farm has feature level {number}; no {need.order} was done"
        await commit_as_leader(farm, Level(number, VERSION_OF[number]), unknown)


def _voters(farm: FoundedFarm) -> frozenset[int]:
    return frozenset(map(integer_id, farm.replica.server.describe().raft.configuration.voter_ids))


def _answering(farm: FoundedFarm, voters: frozenset[int]) -> frozenset[int]:
    own_id = frozenset((farm.replica.server_id,))
    if farm.replica.leads:
        return own_id | group_of(farm.replica.server.describe().raft, farm.contact_within_ms).answering
    present = {each for each in voters if farm.is_present(each, farm.contact_within_ms / 1000)}
    # A follower may be connected to a dead server: the leader repeats the check, and refuses the order.
    return own_id | present | farm.replica.connected()
