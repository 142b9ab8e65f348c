"""The settings that are one of a few words."""

from enum import Enum


class TransportKind(Enum):
    """What carries the connections between servers."""

    TLS = "tls"
    I2P = "i2p"


class Timing(Enum):
    """How patient the protocols are."""

    LAN = "lan"
    LOCAL = "local"
    """Processes of one machine."""
    I2P = "i2p"
    """Servers that reach each other by tunnels, where an answer takes seconds."""


class AdmissionChoice(Enum):
    """Which newcomers the node admits while it leads."""

    ASK = "ask"
    """Those that an operator approves."""
    ALL = "all"
    """All that hold the farm's key: for farms on one machine, and for tests."""


class PublishingPace(Enum):
    """How often a Meta LS2 is published anew."""

    NORMAL = "normal"
    """As routers and floodfills allow: refresh every 5 minutes, a change at most every 65 seconds."""
    REPORTING_PERIOD = "reporting-period"
    """With every report; for a router of the kind `file`."""


class RouterKind(Enum):
    """What stands behind the node."""

    FILE = "file"
    """No router: the structure is kept on disk."""
    I2CP = "i2cp"
    """A router that speaks I2CP."""


class LogFormat(Enum):
    """What a line of the node's own log looks like."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    """For programs: an object on each line."""


class LogLevel(Enum):
    """The least severity that is logged."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
