"""What all servers of a farm understand: a level that the log raises, and that no server applies beyond its own.

    each node        tells the level that it supports in its signed metadata
    the leader       once every voter supports more than the farm's level ──▶ {"level": …}, committed
    every server     applies entries of the kinds that the level allows; at a level beyond its own it stops
    every voter      refuses an append or a snapshot with a level beyond its own before it stores anything of it

A state machine of several versions must not diverge. An older server takes an entry of a kind that it does not know
for a foreign JSON object, and its state would from there on be another one, silently. So entries of new kinds are
proposed only at the level that brings them, and the level is raised only when all voters know them; one that a client
submits before that is applied by nobody (`bridge.core.farm.state_machine`). Who then comes with an older version (a
learner that was not asked) refuses the level's entry, and with it all that follows; if its log has the entry already (a
downgrade) it stops there, before any of the new ones. Either way it says which version it takes.

The level never falls, and rises by one at a time: an entry of any other level has no effect, so that one that is made
up neither ends a server nor opens the way for entries that nobody understands. JSON objects of applications are
foreign at every level: what they mean is not the farm's.
"""

from collections.abc import Collection

from bridge.core.log.records import (
    Approval,
    ClientKey,
    Correction,
    CostFactor,
    Eviction,
    Exclusion,
    Factors,
    Force,
    KeyReplacement,
    Level,
    Record,
    Removal,
)

FIRST_LEVEL = 1
"""What a farm understands before its log says more: reports, clock, publications, admissions."""

SUPPORTED_LEVEL = 2
"""What this version understands."""

VERSION_OF = {1: "0.1.0", 2: "0.1.0"}
"""The first version that supports a level: told in the entry, for those who do not know it."""

_VERSION_CHARACTERS = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz.+-")
_NEEDED: dict[type, int] = dict.fromkeys(
    (Approval, ClientKey, Correction, Eviction, Exclusion, CostFactor, Force, Factors, KeyReplacement, Removal), 2
)


def needed_level(record: Record) -> int:
    """The level from which on a record may be in the log."""
    return _NEEDED.get(type(record), FIRST_LEVEL)


def next_level(current: int, voters: Collection[int | None]) -> Level | None:
    """The level to propose, given what each voter supports (None: not known); None while there is nothing to raise."""
    if not voters:
        return None
    supported = min((FIRST_LEVEL if each is None else each for each in voters), default=FIRST_LEVEL)
    following = current + 1
    return Level(following, VERSION_OF[following]) if following <= min(supported, SUPPORTED_LEVEL) else None


def may_raise(current: int, level: Level) -> bool:
    """Whether the entry raises the level, or would in a server that supports it."""
    return level.number == current + 1


class UnsupportedLevelError(Exception):
    """The farm speaks of things that this version does not understand; the text names the version that does."""

    def __init__(self, level: int, version: str, index: int | None = None) -> None:
        """`index` is the place of the entry in the log; None: a snapshot has it."""
        self.index = index
        # The word comes from an entry that anybody may have made up.
        named = version if version and _VERSION_CHARACTERS.issuperset(version) else "a newer one"
        super().__init__(
            f"the farm has reached feature level {level}, and this version of garlicfarm supports {SUPPORTED_LEVEL}:"
            f" from here on its log has entries that this node would misunderstand. Install garlicfarm {named} or"
            " newer, and start the node again; nothing is lost"
        )
