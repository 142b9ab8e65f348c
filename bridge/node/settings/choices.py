"""The settings with a small set of words as values."""

from enum import Enum


class TransportKind(Enum):
    """The carrier of connections between servers."""

    TLS = "tls"
    I2P = "i2p"


class Timing(Enum):
    """The timing of the protocols."""

    LAN = "lan"
    LOCAL = "local"
    """For processes of one machine."""
    I2P = "i2p"
    """For servers that reach each other by tunnels, with replies after seconds."""


class AdmissionChoice(Enum):
    """The new nodes that this node admits while it leads."""

    ASK = "ask"
    """Nodes that an operator approves."""
    ALL = "all"
    """All nodes with the farm's key: for farms on one machine, and for tests."""


class PublishingPace(Enum):
    """The pace of publications of a Meta LS2."""

    NORMAL = "normal"
    """The rate that routers and floodfills permit: refresh every 5 minutes, a change at most every 65 seconds."""
    REPORTING_PERIOD = "reporting-period"
    """With every report; for a router of the kind `file`."""


class RouterKind(Enum):
    """The kind of router of the node."""

    FILE = "file"
    """Without a router: the structure is kept on disk."""
    I2CP = "i2cp"
    """A router with I2CP."""


class LogFormat(Enum):
    """The form of a line in the node's own log."""

    TEXT = "text"
    """For people."""
    JSON = "json"
    """For programs: an object on each line."""


class LogLevel(Enum):
    """The least severity in the log."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
