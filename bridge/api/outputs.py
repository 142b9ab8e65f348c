"""What commands print with `--json` that is not an answer of the control endpoint (`docs/reference/json.md`).

A command that passes an answer on prints it as it is. Files are told by their paths; no key and no password is in any
of these documents.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import UNSET, UnsetType

from bridge.api.control import ClientKeyView, ConfirmedAnswer, LeavingAnswer, WithdrawnAnswer
from bridge.api.json import Document, Record
from bridge.api.view import MemberView, PublishingView, ReportView, VoterView, WeightsView

# -- the farm ----------------------------------------------------------------------------------------------------------


class MembersOutput(Document, frozen=True):
    """`members`."""

    members: tuple[MemberView, ...]
    """The members that gossip knows, in order of their names."""


class RoundTripView(Record, frozen=True):
    """A round-trip time between two nodes."""

    node: str
    """The name of the node that measures it."""
    peer: str
    """The name of the node that answers; the first digits of its NodeId if that is not known."""
    rtt_ms: float
    """Milliseconds."""


class RoundTripsOutput(Document, frozen=True):
    """`members --rtt`."""

    round_trips: tuple[RoundTripView, ...]
    """What the nodes measure of their peers."""
    silent: tuple[str, ...]
    """The names of nodes that run and have not answered in time."""


class FarmOutput(Document, frozen=True):
    """`farm`: the shared state, as the asked node has applied it."""

    cluster: str
    """The name of the cluster."""
    log_time_ms: int | None
    """The farm's agreed time, milliseconds since the epoch; null before the asked node has the log."""
    applied_index: int
    """The last entry that the asked node has applied."""
    leader_id: int | None
    """The Raft id of the leader; null while none is known."""
    voters: tuple[VoterView, ...]
    """The servers that vote."""
    learners: tuple[VoterView, ...]
    """The servers that get the log and do not vote."""
    publishing: tuple[PublishingView, ...]
    """What is published, for each master."""
    reports: tuple[ReportView, ...]
    """The latest application entry of each server."""
    weights: WeightsView
    """What operators and the pipeline add to the reports."""
    removed: tuple[int, ...]
    """The Raft ids of servers that an operator took out of the farm."""


class ServerView(VoterView, frozen=True, kw_only=True):
    """A server of the Raft group."""

    role: str
    """`voter` or `learner`."""
    leads: bool
    """It is the leader."""
    lag_entries: int | None
    """How many entries of the leader's log it lacks; null if the asked node does not lead."""
    report_age_ms: int | None
    """Milliseconds of log time since its last application entry; null if there is none."""
    loss: str = ""
    """What the farm would lack without it, or why it is missing already; empty if it may be lost."""


class ServersOutput(Document, frozen=True):
    """`servers`."""

    servers: tuple[ServerView, ...]
    """The servers of the Raft group."""
    removed: tuple[int, ...]
    """The Raft ids of servers that an operator took out of the farm."""
    waits: tuple[str, ...]
    """What the leader waits for before it changes the group, in words; empty if the asked node does not lead."""


class ClientsOutput(Document, frozen=True):
    """`node clients`."""

    clients: tuple[ClientKeyView, ...]
    """The client keys that were ever admitted."""


class LeaveOutput(LeavingAnswer, frozen=True):
    """`leave`."""

    node: str
    """The name of the node."""


class WithdrawOutput(WithdrawnAnswer, frozen=True):
    """`withdraw`."""

    node: str
    """The name of the node."""


class ConfirmClusterOutput(ConfirmedAnswer, frozen=True):
    """`confirm-cluster`."""

    node: str
    """The name of the node."""


# -- keys --------------------------------------------------------------------------------------------------------------


class NewFarmOutput(Document, frozen=True):
    """`keys new-farm`."""

    file: str
    """The path of the new farm key file."""
    label: str
    """The public hash of the key, in hexadecimal."""
    cluster: str
    """The name of the cluster."""
    expect: int
    """Number of nodes that create the farm."""


class NewClientOutput(Document, frozen=True):
    """`keys new-client`."""

    file: str
    """The path of the new client key file."""
    name: str
    """What the farm calls the key."""
    public_key: str
    """The public half, in base64."""


class CurveKeyOutput(Document, frozen=True):
    """`keys new-curve` and `show-curve`."""

    file: str
    """The path of the file with the secret half."""
    name: str
    """What the key is called."""
    public_key: str
    """The public half, in Z85."""


class KafkaUserOutput(Document, frozen=True):
    """`keys kafka-user`."""

    file: str
    """The path of the file with the password."""
    name: str
    """The user's name."""
    line: str
    """What belongs into `kafka.users`."""


class DestinationOutput(Document, frozen=True):
    """`keys new-destination` and `import-destination`."""

    file: str
    """The path of the new master key file."""
    address: str
    """The address of the destination."""
    hash: str
    """Its hash, in hexadecimal."""
    destination: str
    """The destination in base64."""


class SigningKeyView(Record, frozen=True):
    """A signing key that was made."""

    file: str
    """The path of its file."""
    expires: int
    """When it ends, seconds since the epoch."""
    transient_key: str
    """Its public half, in hexadecimal."""


class SigningKeysOutput(Document, frozen=True):
    """`keys offline`."""

    address: str
    """The address of the destination that the keys sign for."""
    keys: tuple[SigningKeyView, ...]
    """The new keys."""


class RotationOutput(Document, frozen=True):
    """`keys rotate`."""

    rotated: bool
    """The farm uses the new key, and refuses the old one."""
    key: str
    """The id of the new key."""
    epoch: int
    """The change of the ring that chose the new key, by the ring's own clock."""
    members: int
    """How many members run."""
    removed: tuple[str, ...]
    """The ids of the removed keys."""
    left_out: tuple[str, ...] = ()
    """Members that were down, or did not confirm, when it was forced."""
    unstored: tuple[str, ...] | UnsetType = UNSET
    """Members that could not store the keys when it was forced, if any: they would restart with older ones."""


class KeyExportOutput(Document, frozen=True):
    """`keys export`."""

    file: str
    """The path of the farm key file that was written."""
    label: str
    """The public hash of the key, in hexadecimal."""
    epoch: int
    """The change of the ring that chose the sealing key, by the ring's own clock."""
    cluster_id: str | None
    """The id of the cluster, in hexadecimal; null before the farm is created."""


# -- configuration -----------------------------------------------------------------------------------------------------


class ConfigurationOutput(Document, frozen=True):
    """`config show`."""

    configuration: Mapping[str, Any]
    """Every setting that has a value, with the keys of a file (`docs/reference/settings.md`)."""


class BundleOutput(Document, frozen=True):
    """`config export`."""

    file: str
    """The path of the bundle."""
    label: str
    """The public hash of the farm's key, in hexadecimal."""
    settings: Mapping[str, Any]
    """The settings in the bundle, keys as in node.toml."""


class ImportOutput(Document, frozen=True):
    """`config import`."""

    file: str
    """The path of the new configuration."""
    farm_key: str
    """The path of the farm key file."""
    label: str
    """The public hash of the farm's key, in hexadecimal."""


class CheckResult(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Record, frozen=True):
    """One thing that was looked at, and what to do about it."""

    name: str
    """What was looked at."""
    result: CheckResult
    """How it is."""
    text: str
    """What was found, in words."""
    action: str = ""
    """What to do, in words; empty if there is nothing to do."""


class DoctorOutput(Document, frozen=True):
    """`doctor`."""

    healthy: bool
    """No check has found a problem."""
    checks: tuple[Check, ...]
    """The checks."""


# -- stored state ------------------------------------------------------------------------------------------------------


class BackupOutput(Document, frozen=True):
    """`backup`."""

    file: str
    """The path of the backup."""
    cluster_id: str
    """The id of the cluster, in hexadecimal."""
    index: int
    """The last entry that it covers."""
    term: int
    """The term of that entry."""
    bytes: int
    """The length of the file."""


class RestoreOutput(Document, frozen=True):
    """`restore`."""

    state_directory: str
    """The path of the new state directory."""
    cluster_id: str
    """The id of the cluster that it belongs to, in hexadecimal."""
    index: int
    """The last entry that the backup covers."""
    old_cluster_id: str | UnsetType = UNSET
    """The id of the cluster of the backup, if a new cluster was made of it."""


class CutView(Record, frozen=True):
    """The end of a log that was left out."""

    first: int
    """The first entry of it."""
    last: int
    """The last entry of it."""
    kinds: Mapping[str, int]
    """How many entries of each kind it had."""


class RecoveryOutput(Document, frozen=True):
    """`recover`."""

    recovered: bool
    """The new cluster was made; false with `--dry-run`."""
    state_directory: str
    """The path of the state directory of the new cluster's first server."""
    old_cluster_id: str
    """The id of the cluster that is given up, in hexadecimal."""
    new_cluster_id: str
    """The id of the new cluster, in hexadecimal."""
    node_id: str
    """The NodeId of its first server, in hexadecimal."""
    last_index: int
    """The last entry that is kept."""
    last_term: int
    """The term in which the new cluster begins."""
    cut: CutView | None
    """The end of the log that was left out; null if all of it is kept."""
    log_time_ms: int
    """The log time at which the new cluster begins, milliseconds since the epoch."""
    routers_refuse_until: int | None
    """Until when routers may refuse new structures, seconds since the epoch; null if they do not."""
    left_behind: tuple[str, ...]
    """The names of the servers that have to join anew."""
    old_storage: str | None
    """The path under which the old storage is kept; null if a backup was taken."""
    rejoin: str
    """The steps on the other nodes, as text."""


class StorageOutput(Record, frozen=True):
    """`log verify`. Without `schema`, as it always was."""

    directory: str
    """The path of the directory."""
    verdict: str
    """`sound`, `repairable`, `damaged`, `empty` or `not-a-log`."""
    live: bool
    """A process has the directory open."""
    entries: int
    """How many entries it holds."""
    first_index: int
    """The first of them."""
    last_index: int
    """The last of them."""
    last_term: int
    """The term of the last one."""
    segments: int
    """How many files they are in."""
    snapshot_index: int | None
    """The last entry that the snapshot covers; null without a snapshot."""
    found: tuple[str, ...]
    """What is there, in words."""
    repairs: tuple[str, ...]
    """What the next start repairs, in words."""
    faults: tuple[str, ...]
    """What is wrong, in words."""
