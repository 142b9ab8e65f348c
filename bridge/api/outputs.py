"""JSON output of commands that is not a response of the control endpoint (`docs/reference/json.md`).

Commands that only forward a response print it unchanged. These documents contain the paths of files and public keys,
but no secret keys or passwords. Only `init` prints a secret, the token.
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
    """The members in gossip, in order of their names."""


class RoundTripView(Record, frozen=True):
    """A round-trip time between two nodes."""

    node: str
    """The name of the node that measures it."""
    peer: str
    """Name of the replying node; the first digits of its NodeId if unknown."""
    rtt_ms: float
    """Milliseconds."""


class RoundTripsOutput(Document, frozen=True):
    """`members --rtt`."""

    round_trips: tuple[RoundTripView, ...]
    """Round-trip times between the nodes and their peers."""
    silent: tuple[str, ...]
    """Names of running nodes that did not reply in time."""


class LinkedDirectory(Record, frozen=True):
    """The directory of one server."""

    server: str
    """The name of the server."""
    address: str | None
    """The address of the server's directory, which the link contains if there is room; null without a directory."""
    problem: str | None
    """Reason why the directory does not serve now; null if it serves."""


class LinkOutput(Document, frozen=True):
    """`link`."""

    address: str
    """The address of the master."""
    link: str
    """The link for users."""
    directories: tuple[LinkedDirectory, ...]
    """The directory of each server: the serving ones first, in the order of the link."""


class FarmOutput(Document, frozen=True):
    """`farm`: the replicated state at the queried node."""

    cluster: str
    """The name of the cluster."""
    log_time_ms: int | None
    """Log time; null before the queried node has the log."""
    applied_index: int
    """Last entry applied at the queried node."""
    leader_id: int | None
    """Raft id of the leader."""
    voters: tuple[VoterView, ...]
    """The voters."""
    learners: tuple[VoterView, ...]
    """The servers that receive the log and do not vote."""
    publishing: tuple[PublishingView, ...]
    """The publication of each master."""
    reports: tuple[ReportView, ...]
    """The latest report of each server."""
    weights: WeightsView
    """Exclusions and factors of operators and the pipeline."""
    removed: tuple[int, ...]
    """Raft ids of servers removed by an operator."""


class ServerView(VoterView, frozen=True, kw_only=True):
    """A server of the Raft group."""

    role: str
    """`voter` or `learner`."""
    leads: bool
    """The server is the leader."""
    lag_entries: int | None
    """Number of entries of the leader's log that it lacks.

    Null for the leader itself, for a server that has not replied in this term, and if the queried node does not lead.
    """
    report_age_ms: int | None
    """Milliseconds of log time since its last report; null without a report."""
    loss: str = ""
    """Loss to the farm if it fails, or the reason why it is down; empty if the farm loses nothing when it fails."""


class ServersOutput(Document, frozen=True):
    """`servers`."""

    servers: tuple[ServerView, ...]
    """The servers of the Raft group."""
    removed: tuple[int, ...]
    """Raft ids of servers removed by an operator."""
    waits: tuple[str, ...]
    """Conditions for the leader's next changes of the group; empty if the queried node does not lead."""


class ClientsOutput(Document, frozen=True):
    """`node clients`."""

    clients: tuple[ClientKeyView, ...]
    """All client keys, removed ones included."""


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
    """The public hash of the key."""
    cluster: str
    """The name of the cluster."""
    expect: int
    """Number of nodes that create the farm."""


class NewClientOutput(Document, frozen=True):
    """`keys new-client`."""

    file: str
    """The path of the new client key file."""
    name: str
    """Name of the key in the farm."""
    public_key: str
    """The public half, in base64."""


class CurveKeyOutput(Document, frozen=True):
    """`keys new-curve` and `show-curve`."""

    file: str
    """The path of the file with the secret half."""
    name: str
    """Name of the key."""
    public_key: str
    """The public half, in Z85."""


class KafkaUserOutput(Document, frozen=True):
    """`keys kafka-user`."""

    file: str
    """The path of the file with the password."""
    name: str
    """The user's name."""
    line: str
    """The line for the file of `kafka.users`."""


class DestinationOutput(Document, frozen=True):
    """`keys new-destination` and `import-destination`."""

    file: str
    """The path of the new master key file."""
    address: str
    """The address of the destination."""
    hash: str
    """Hash of the destination."""
    destination: str
    """The destination in base64."""


class SigningKeyView(Record, frozen=True):
    """A new signing key."""

    file: str
    """The path of its file."""
    expires: int
    """End of the validity of the key, seconds since the epoch."""
    transient_key: str
    """Public half of the key, in hexadecimal."""


class SigningKeysOutput(Document, frozen=True):
    """`keys offline`."""

    address: str
    """Address of the keys' destination."""
    keys: tuple[SigningKeyView, ...]
    """The new keys."""


class RotationOutput(Document, frozen=True):
    """`keys rotate`."""

    rotated: bool
    """The farm uses the new key, and refuses the old one."""
    key: str
    """The id of the new key."""
    epoch: int
    """Epoch (logical clock of the ring) of the choice of the new key."""
    members: int
    """Number of running members."""
    removed: tuple[str, ...]
    """The ids of the removed keys."""
    left_out: tuple[str, ...] = ()
    """With `--force`: members in the state down, or without a confirmation."""
    unstored: tuple[str, ...] | UnsetType = UNSET
    """With `--force`: members that could not store the keys, if any: they would restart with older keys."""


class InitOutput(Document, frozen=True):
    """`init`. Secret: it contains the token."""

    file: str
    """Path of the written configuration."""
    farm_key: str
    """Path of the written farm key file."""
    label: str
    """The public hash of the farm key."""
    command: str | None
    """The command for the other machines, with the token; null for a farm of one node."""

    def __repr__(self) -> str:
        """Hide the token: the default repr of a Struct shows all fields."""
        return f"InitOutput({self.file!r})"


class JoinOutput(Document, frozen=True):
    """`join`."""

    file: str
    """Path of the written configuration."""
    farm_key: str
    """Path of the written farm key file."""
    label: str
    """The public hash of the farm key."""
    inviter: str
    """The name of the inviting node."""
    signing_keys: tuple[str, ...]
    """Paths of the written signing keys, one for each master that this node may publish."""


class MasterOutput(Document, frozen=True):
    """`keys master`."""

    address: str
    """The address of the master."""
    file: str
    """Path of the master key file."""
    signing_key: str
    """Path of the signing key of this node."""
    spare_keys: int
    """Number of signing keys for nodes that this node invites; with a later `--spare`, the number of added keys."""


class ReceiveOutput(Document, frozen=True):
    """`keys receive`."""

    inviter: str
    """The name of the node with the spare keys."""
    signing_keys: tuple[str, ...]
    """Paths of the written signing keys, one for each master."""


class KeyExportOutput(Document, frozen=True):
    """`keys export`."""

    file: str
    """Path of the written farm key file."""
    label: str
    """The public hash of the key."""
    epoch: int
    """Epoch (logical clock of the ring) of the choice of the sealing key."""
    cluster_id: str | None
    """The id of the cluster; null before the farm is created."""


# -- configuration -----------------------------------------------------------------------------------------------------


class ConfigurationOutput(Document, frozen=True):
    """`config show`."""

    configuration: Mapping[str, Any]
    """Every setting with a value, with the keys of a file (`docs/reference/settings.md`)."""


class BundleOutput(Document, frozen=True):
    """`config export`."""

    file: str
    """The path of the bundle."""
    label: str
    """The public hash of the farm's key."""
    settings: Mapping[str, Any]
    """The settings in the bundle, keys as in node.toml."""


class ImportOutput(Document, frozen=True):
    """`config import`."""

    file: str
    """The path of the new configuration."""
    farm_key: str
    """The path of the farm key file."""
    label: str
    """The public hash of the farm's key."""


class CheckResult(Enum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Record, frozen=True):
    """A check, with its action."""

    name: str
    """Subject of the check."""
    result: CheckResult
    """Result of the check."""
    text: str
    """The finding."""
    action: str = ""
    """Action for the operator; empty if none is needed."""
    cause: str = ""
    """Name of the check with the cause of this finding; empty if this finding has its own cause."""


class DoctorOutput(Document, frozen=True):
    """`doctor`."""

    healthy: bool
    """The checks did not find a problem."""
    checks: tuple[Check, ...]
    """The checks."""


# -- routers of this machine -------------------------------------------------------------------------------------------


class FoundServiceView(Record, frozen=True):
    """I2CP, I2PControl or SAM of a router of this machine."""

    state: str
    """`on` (it listens), `off`, `not listening` (it should), or `unknown`."""
    address: str
    """Address of the service, or its usual address."""
    action: str = ""
    """The way to switch it on; empty if it is on."""
    lines: tuple[str, ...] = ()
    """The lines that the action adds to the configuration of the router."""


class FoundTunnelView(Record, frozen=True):
    """A server tunnel of a router of this machine."""

    name: str
    """Name of the tunnel in the router's configuration."""
    kind: str
    """Type of the tunnel, in the router's words."""
    address: str | None
    """`.b32.i2p` address of the tunnel; null if it is not readable."""
    destination: str | None
    """Destination of the tunnel in base64, for `[[leaf]]`; null if it is not readable."""
    target: str
    """Host and port of its service."""
    chosen: bool
    """True if it becomes a leaf."""
    reason: str
    """Reason why it cannot become a leaf, or should not without the operator's choice; empty without such a reason."""


class FoundRouterView(Record, frozen=True):
    """A router of this machine."""

    software: str
    """`java` or `i2pd`."""
    configuration: str
    """Main configuration file of the router."""
    pid: int | None
    """Process id of the router; null if it does not run."""
    i2cp: FoundServiceView
    """I2CP port of the router."""
    i2pcontrol: FoundServiceView
    """I2PControl of the router."""
    sam: FoundServiceView
    """SAM bridge of the router."""
    tunnels: tuple[FoundTunnelView, ...]
    """Server tunnels of the router."""
    chosen: bool
    """True if the settings are for this router."""


class UnreadFileView(Record, frozen=True):
    """A file that this user cannot read."""

    path: str
    """Path of the file."""
    reason: str
    """The reason."""
    action: str
    """The command that lets this user read it; may be empty."""


class RouterDetectOutput(Document, frozen=True):
    """`router detect`."""

    routers: tuple[FoundRouterView, ...]
    """The routers of this machine, the most useful first."""
    unread: tuple[UnreadFileView, ...]
    """Files that this user cannot read."""
    file: str | None
    """The node's configuration; null if none is known."""
    written: bool
    """The settings were written into it."""
    settings: dict[str, Any]
    """The settings that were, or with `--yes` are, written: `router`, and the new tables `leaf`."""
    checks: tuple[Check, ...]
    """The check of the written settings, as `doctor` makes it; empty if they were not written."""


# -- stored state ------------------------------------------------------------------------------------------------------


class BackupOutput(Document, frozen=True):
    """`backup`."""

    file: str
    """The path of the backup."""
    cluster_id: str
    """The id of the cluster."""
    index: int
    """Last entry in the backup."""
    term: int
    """The term of the entry `index`."""
    bytes: int
    """The length of the file."""


class RestoreOutput(Document, frozen=True):
    """`restore`."""

    state_directory: str
    """The path of the new state directory."""
    cluster_id: str
    """Id of its cluster."""
    index: int
    """Last entry in the backup."""
    old_cluster_id: str | UnsetType = UNSET
    """Id of the backup's cluster, if a new cluster was created from it."""


class CutView(Record, frozen=True):
    """The dropped end of a log."""

    first: int
    """First dropped entry."""
    last: int
    """Last dropped entry."""
    kinds: Mapping[str, int]
    """Number of dropped entries of each kind."""


class RecoveryOutput(Document, frozen=True):
    """`recover`."""

    recovered: bool
    """The new cluster was created; false with `--dry-run`."""
    state_directory: str
    """The path of the state directory of the new cluster's first server."""
    old_cluster_id: str
    """Id of the old cluster."""
    new_cluster_id: str
    """The id of the new cluster."""
    node_id: str
    """The NodeId of its first server."""
    last_index: int
    """Last kept entry."""
    last_term: int
    """Term of the last kept entry; 1 if the terms were reset."""
    cut: CutView | None
    """The dropped end of the log; null if all entries are kept."""
    log_time_ms: int
    """The first log time of the new cluster."""
    routers_refuse_until: int | None
    """The last time when routers may refuse new structures, in seconds since the epoch; null if they do not."""
    left_behind: tuple[str, ...]
    """Names of the servers that must join again."""
    old_storage: str | None
    """Path of the old storage; null for a backup."""
    rejoin: str
    """The steps on the other nodes."""


class StorageOutput(Record, frozen=True):
    """`log verify`. Without `schema`, for compatibility."""

    directory: str
    """The path of the directory."""
    verdict: str
    """`sound`, `repairable`, `damaged`, `empty` or `not-a-log`."""
    live: bool
    """A process has the directory open."""
    entries: int
    """Number of entries."""
    first_index: int
    """First entry."""
    last_index: int
    """Last entry."""
    last_term: int
    """Term of the last entry."""
    segments: int
    """Number of files with entries."""
    snapshot_index: int | None
    """Last entry in the snapshot; null without a snapshot."""
    found: tuple[str, ...]
    """Contents."""
    repairs: tuple[str, ...]
    """Repairs of the next start."""
    faults: tuple[str, ...]
    """Faults."""
