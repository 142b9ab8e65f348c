"""The feature level: the kinds of entries that the voters of a farm understand.

    each node        announces the level that it supports in its signed metadata
    the leader       once every voter supports more than the farm's level ──▶ {"level": …}, committed
    every server     applies entries of the kinds that the level allows; at a level beyond its own it stops
    every voter      refuses an append or a snapshot with a level beyond its own before it stores anything of it

Servers of different versions must compute the same state. An older server treats an entry of an unknown kind as a
foreign JSON object. From then on its state would differ, without an error. So entries of a new kind are proposed only
at the level that introduces them, and no server applies them below that level (`bridge.core.farm.state_machine`). The
leader raises the level only when all voters support the new level. One exception: an order that removes, replaces or
evicts a server may raise the level without this server's support (`bridge.node.control.orders.order_level`). The
levels of learners are not considered. So a learner may have an older version; it refuses the level's entry and all
later entries. A server whose log holds that entry already (after a downgrade) stops at the entry. In both cases the
server reports the required version.

The level never falls and rises by one at a time. An entry with any other level does not have an effect. So a forged
level entry does not stop a server or permit entries that servers do not understand. JSON objects of applications are
foreign at every level.
"""

from collections.abc import Collection, Mapping

from bridge.core.log.records import Level

FIRST_LEVEL = 1
"""The level of an empty log: reports, clock, publications, admissions."""

EVICTION_LEVEL = 2
"""From this level on, operators' entries about identities and publishing have an effect."""

REQIDS_LEVEL = 3
"""From this level on, the state has a table of updates by ØMQ Raft (`bridge.core.state.reqids`). The table decides
which copy of an entry counts, so a server without it would compute another state."""

KAFKA_LEVEL = 4
"""From this level on, the state has tables of Kafka's producers and consumer groups
(`bridge.core.state.kafka_clients`). The tables decide which entries count, so a server without them would compute
another state."""

BOUNDS_LEVEL = 5
"""From this level on, the state machine limits each number by a step and each table by a share per author. An older
server would accept entries that this one refuses, so the limits apply to entries after the level's own entry."""

SUPPORTED_LEVEL = BOUNDS_LEVEL
"""The highest level that this version supports."""

VERSION_OF = dict.fromkeys(range(FIRST_LEVEL, SUPPORTED_LEVEL + 1), "0.1.0")
"""The first version that supports a level; the entry names it for servers that do not know the level."""

_VERSION_CHARACTERS = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.+-")


def next_level(current: int, voters: Collection[int | None]) -> Level | None:
    """Return the next level if this version and all voters support it, otherwise None.

    `voters` has the level that each voter supports; None for an unknown level.
    """
    if not voters:
        return None
    supported = min((FIRST_LEVEL if each is None else each for each in voters), default=FIRST_LEVEL)
    higher = current + 1
    return Level(higher, VERSION_OF[higher]) if higher <= min(supported, SUPPORTED_LEVEL) else None


def holding_back(current: int, voters: Mapping[int, int | None]) -> frozenset[int]:
    """Return the voters that do not support a level above `current`."""
    return frozenset(each for each, level in voters.items() if level is None or level <= current)


def level_obstacle(current: int, holding: Mapping[str, int | None]) -> str:
    """Return the reason why the farm stays at a level; `holding`: the announced level of each server, by name."""
    reasons = "; ".join(
        f"{name} announces {'no level yet' if level is None else f'level {level}'}"
        for name, level in sorted(holding.items())
    )
    return f"the farm stays at feature level {current}, and this node supports level {SUPPORTED_LEVEL}: {reasons}"


def may_raise(current: int, level: Level) -> bool:
    """Return True if the entry raises the level, or would on a server that supports it."""
    return level.number == current + 1


class UnsupportedLevelError(Exception):
    """The farm's level is above the levels of this version; the text names the required version."""

    def __init__(self, level: int, version: str, index: int | None = None) -> None:
        """Set the index of the entry in the log; None if the level comes from a snapshot."""
        self.index = index
        # The version's name comes from an entry that any client may have forged.
        is_named = version and _VERSION_CHARACTERS.issuperset(version)
        newer = f"garlicfarm {version} or newer" if is_named else "a newer version of garlicfarm"
        super().__init__(
            f"the farm has reached feature level {level}, and this version of garlicfarm supports {SUPPORTED_LEVEL}:"
            f" from here on its log has entries that this node would misunderstand. Install {newer},"
            " and start the node again; nothing is lost"
        )
