"""The voters that keep the farm at its feature level, in words, for `status` and `doctor`.

Each voter announces the level that it supports in its signed description, and the level rises only if all of them
support more. So one that is not upgraded yet, or pretends not to be, keeps what a new level brings from the farm. A
node sees that at once; the alarm `feature-level` waits for hours, since every upgrade looks so for a while.
"""

from bridge.api.view import FarmView, ServerRole


def level_words(view: FarmView) -> str | None:
    """Return `4; node-3 announces no higher one`, or the level alone; None while this node has no log."""
    level = view.farm.level
    if level is None:
        return None
    holding = voters_at_level(view)
    if not holding:
        return f"{level}"
    return f"{level}; {', '.join(holding)} {'announces' if len(holding) == 1 else 'announce'} no higher one"


def voters_at_level(view: FarmView) -> tuple[str, ...]:
    """Return the names of the voters that keep the level below that of the asked node."""
    level = view.farm.level
    supported = next((each.level for each in view.members if each.is_self), None)
    if level is None or supported is None or supported <= level:
        return ()
    voters = [each for each in view.members if each.server_role is ServerRole.VOTER]
    return tuple(each.name for each in voters if each.level is None or each.level <= level)
