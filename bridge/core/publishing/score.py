"""The figures of a score, and the reasons why a server cannot publish, as values.

Commands print these values without the state of the farm, because the modules of the state load slowly.
`bridge.core.publishing.candidates` makes them.
"""

from enum import Enum

from msgspec import Struct


class Inability(Enum):
    """The reason why a server cannot publish now."""

    STALE = "its last report is stale"
    CLOCK_OFF = "its clock contradicts log time"
    UNATTACHED = "it does not have a router"
    OFF = "publishConfig is off"
    FAILING = "its router does not accept its structures"
    """Like `OFF`, the server reports `publishConfig` off. It also reports the reason, so only the texts differ."""
    NO_KEY = "it does not have a valid signing key"
    KEY_ENDS = "its signing key has ended or ends within 15 minutes"


def inability_text(value: str) -> str:
    """Return the displayed text of the value of an inability. JSON has the value itself."""
    return "publishing is switched off" if value == Inability.OFF.value else value


class ScoreFigure(Enum):
    """A figure of the score."""

    JOB_LAG = "job lag"
    UPTIME = "uptime"
    LEAVES = "leaves"
    BANDWIDTH = "bandwidth"
    PROCESSOR = "processor"
    MEMORY = "memory"


class ScorePart(Struct, frozen=True):
    """The part of one figure in the score: 0 to `maximum` points."""

    figure: ScoreFigure
    points: int
    maximum: int
