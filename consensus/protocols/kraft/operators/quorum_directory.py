"""The directory of a KRaft server: its owner, the first voters, and Kafka's files for operators.

    log.dirs/meta.properties                    version, cluster.id, node.id, directory.id       as Kafka writes it
             initial-controllers                the first voters, if the log will name them      made by `format`
             scram-users                        credentials derived from users' passwords        made by `format`
             __cluster_metadata-0/quorum-state  leader, epoch and vote, one line of JSON         as Kafka writes it
             __cluster_metadata-0/storage/      the log, snapshots, term and vote                our own form

*Authority.* Term and vote are in the storage, which syncs them before the reply to a vote. `quorum-state` repeats them
after each change, for readers of Kafka's file. If the file had authority, too, each vote would need a second sync, and
file and storage could contradict each other. They are compared at a start: if the file has a later epoch, the storage
is an older copy. With an older copy the server could vote twice in one epoch, so it does not start.

*The first voters.* A directory formatted with initial controllers begins with an empty log, and their first leader
writes them to the log. Kafka begins with a snapshot that contains them. In this log a snapshot at offset 0 is
impossible, and the leader's own records have the same contents.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
from msgspec import Struct

from consensus.core.model import ReplicaKey
from consensus.protocols.kafka.wire.limits import (
    MAX_EPOCH,
    TOPIC_NAME,
    ZERO_UUID,
    KafkaWireError,
    uuid_of_text,
    uuid_text,
)
from consensus.protocols.kafka.wire.scram import Mechanism, ScramCredential, ScramUsers
from consensus.protocols.kraft.operators.settings import (
    ID_LIMIT,
    NamedVoter,
    SettingsError,
    VoterSettings,
    address,
    dialed_address,
    parse_properties,
)
from consensus.storage.durable_file import replace_file
from consensus.storage.file_access import access_advice

META_FILE: Final = "meta.properties"
INITIAL_FILE: Final = "initial-controllers"
USERS_FILE: Final = "scram-users"
STATE_FILE: Final = "quorum-state"
_LOG: Final = f"{TOPIC_NAME}-0"
_STORAGE: Final = "storage"
_KAFKAS_SEGMENTS: Final = "*.log"
_META_VERSION: Final = "1"
_MAX_STATE_BYTES: Final = 64 * 1024


class QuorumDirectoryError(Exception):
    """The directory cannot be used; the text contains the reason and the remedy."""


class QuorumState(Struct, frozen=True):
    """The contents of `quorum-state`; -1: unknown leader, or no vote."""

    leader_id: int
    leader_epoch: int
    voted: ReplicaKey | None
    voters: tuple[int, ...] | None = None
    """Voters that never change (data version 0); None if the log names them (data version 1)."""


class QuorumDirectory(Struct, frozen=True):
    """A formatted directory."""

    path: Path
    cluster_id: str
    node_id: int
    directory_id: UUID
    initial: tuple[NamedVoter, ...] = ()

    @property
    def storage(self) -> Path:
        """Return the path of the log."""
        return self.path / _LOG / _STORAGE

    def write_state(self, state: QuorumState) -> None:
        """Replace `quorum-state`, durably. Raises `OSError`."""
        replace_file(self.path / _LOG / STATE_FILE, encode_state(state))

    def read_state(self) -> QuorumState | None:
        """Return the contents of `quorum-state`, or None if it does not exist yet. Raises `QuorumDirectoryError`."""
        file = self.path / _LOG / STATE_FILE
        try:
            if not file.exists():
                return None
            with file.open("rb") as stream:
                return decode_state(stream.read(_MAX_STATE_BYTES))
        except OSError as error:
            raise _unreadable(file, error) from error
        except ValueError as error:
            raise QuorumDirectoryError(
                f"'{file}' cannot be read ({error}). Restore it, or remove it if the storage next to it is intact"
            ) from error

    def read_users(self) -> ScramUsers | None:
        """Return SCRAM's users, or None if the directory was formatted without users. Raises `QuorumDirectoryError`."""
        file = self.path / USERS_FILE
        try:
            return decode_users(file.read_bytes()) if file.exists() else None
        except OSError as error:
            raise _unreadable(file, error) from error
        except ValueError as error:
            raise QuorumDirectoryError(f"'{file}' cannot be used: {error}. Restore the original file") from error

    def check_not_older(self, term: int) -> None:
        """Raise `QuorumDirectoryError` if the storage, which is at `term`, is older than `quorum-state`."""
        state = self.read_state()
        if state is not None and state.leader_epoch > term:
            raise QuorumDirectoryError(
                f"'{self.storage}' has epoch {term}, and '{STATE_FILE}' next to it has epoch {state.leader_epoch}: the"
                " storage is an older copy, so the server could vote twice. Format an empty directory and add it to"
                " the quorum as a new server"
            )


def parse_initial_voters(
    text: str, parse: Callable[[str, str], tuple[str, int]] = dialed_address
) -> tuple[NamedVoter, ...]:
    """Parse `id@host:port:directory,…`; raises `SettingsError`. `parse` returns host and port of an address."""
    voters = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        node_id, at, rest = part.partition("@")
        where, colon, directory = rest.rpartition(":")
        if not at or not colon or not node_id.isdecimal() or int(node_id) >= ID_LIMIT:
            raise SettingsError(
                f"{part!r} is not a controller: write it as id@host:port:directory-id; the maximum id is {ID_LIMIT - 1}"
            )
        try:
            key = ReplicaKey(int(node_id), uuid_of_text(directory).bytes)
        except KafkaWireError as error:
            raise SettingsError(
                f"{part!r} is not a controller ({error}): write it as id@host:port:directory-id"
            ) from error
        voters.append(NamedVoter(key, *parse("initial controllers", where)))
    if not voters or len({voter.key.id for voter in voters}) != len(voters):
        raise SettingsError("give at least one initial controller, each with a separate id")
    return tuple(voters)


def format_directory(
    settings: VoterSettings,
    cluster_id: str,
    *,
    standalone: bool = False,
    initial: tuple[NamedVoter, ...] = (),
    directory_id: UUID | None = None,
    users: Mapping[str, Mapping[Mechanism, ScramCredential]] | None = None,
) -> QuorumDirectory:
    """Make the directory of a server, as `kafka-storage format` does; raises `QuorumDirectoryError`.

    With static voters, `standalone` and `initial` are not allowed. Without static voters, `standalone` creates a quorum
    of this server alone, and `initial` creates a quorum of several. Otherwise the server joins an existing quorum.
    """
    _check_cluster_id(cluster_id)
    if settings.voters and (standalone or initial):
        raise QuorumDirectoryError(
            "the settings name controller.quorum.voters, which never change: format without initial controllers, or "
            "give controller.quorum.bootstrap.servers instead"
        )
    if standalone and initial:
        raise QuorumDirectoryError("a quorum is created by one server alone or by several: choose one of the two")
    if standalone:
        first = settings.advertised[0]
        directory_id = directory_id or new_uuid()
        initial = (NamedVoter(ReplicaKey(settings.node_id, directory_id.bytes), first.host, first.port),)
    own = next((voter for voter in initial if voter.key.id == settings.node_id), None)
    if initial and own is None:
        raise QuorumDirectoryError(
            f"node.id {settings.node_id} is not among the initial controllers: add it, or format without them to join"
        )
    chosen = UUID(bytes=own.key.directory) if own is not None else directory_id or new_uuid()
    formatted = QuorumDirectory(settings.log_dir, cluster_id, settings.node_id, chosen, initial)
    _write(formatted, users or {})
    return formatted


def read_directory(settings: VoterSettings) -> QuorumDirectory:
    """Return the formatted directory; raises `QuorumDirectoryError` if it does not belong to this server."""
    file = settings.log_dir / META_FILE
    try:
        if not file.exists():
            raise QuorumDirectoryError(f"'{settings.log_dir}' is not formatted: run `garlicfarm kraft format` first")
        values = parse_properties(file.read_text())
        if values.get("version") != _META_VERSION:
            raise SettingsError(f"its version is {values.get('version', 'missing')}, not {_META_VERSION}")
        cluster_id, node_id = values["cluster.id"], int(values["node.id"])
        directory_id = uuid_of_text(values["directory.id"])
        initial_file = settings.log_dir / INITIAL_FILE
        # An earlier version accepted any address here.
        initial = parse_initial_voters(initial_file.read_text(), address) if initial_file.exists() else ()
    except KeyError as error:
        raise QuorumDirectoryError(f"'{file}' lacks {error.args[0]}: restore the original file") from error
    except OSError as error:
        raise _unreadable(Path(error.filename or file), error) from error
    except ValueError as error:
        raise QuorumDirectoryError(f"'{file}' cannot be used: {error}. Restore the original file") from error
    if node_id != settings.node_id:
        raise QuorumDirectoryError(
            f"'{settings.log_dir}' belongs to node.id {node_id}, but the settings have {settings.node_id}: a server"
            " could vote twice with it. Give each server a separate directory"
        )
    return QuorumDirectory(settings.log_dir, cluster_id, node_id, directory_id, initial)


def storage_in(path: Path) -> Path:
    """Return the path of the log in a directory without settings; raises `QuorumDirectoryError` if it is missing."""
    storage = path / _LOG / _STORAGE
    if storage.is_dir():
        return storage
    if any((path / _LOG).glob(_KAFKAS_SEGMENTS)):
        raise QuorumDirectoryError(
            f"'{path}' is a directory of Kafka's own controller: read it with Kafka's kafka-dump-log.sh"
        )
    raise QuorumDirectoryError(
        f"'{path}' is not a directory of this program: name the directory in the server's setting log.dirs"
    )


def _unreadable(file: Path, error: OSError) -> QuorumDirectoryError:
    return QuorumDirectoryError(f"'{file}' cannot be read: {error.strerror or error}{access_advice(file, error)}")


def new_uuid() -> UUID:
    """Return a random UUID whose text does not begin with a dash: command lines would mistake it for an option."""
    while True:
        uuid = uuid4()
        if not uuid_text(uuid).startswith("-"):
            return uuid


def encode_state(state: QuorumState) -> bytes:
    """Return the line of `quorum-state`, in Kafka's order; raises `KafkaWireError` as `decode_state` does."""
    _check_numbers(state.leader_epoch, state.leader_id, -1 if state.voted is None else state.voted.id)
    voted_id = -1 if state.voted is None else state.voted.id
    if state.voters is not None:
        line: dict[str, Any] = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in state.voters],
            "data_version": 0,
        }
    else:
        directory = state.voted.directory if state.voted is not None else b""
        line = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": voted_id,
            "votedDirectoryId": uuid_text(directory or ZERO_UUID),
            "data_version": 1,
        }
    return json.dumps(line, separators=(",", ":")).encode()


def decode_state(data: bytes) -> QuorumState:
    """Parse the result of `encode_state`; raises `KafkaWireError`."""
    try:
        line = json.loads(data)
        version, epoch = line["data_version"], line["leaderEpoch"]
        leader_id, voted_id = line["leaderId"], line["votedId"]
        if version not in (0, 1) or not all(type(number) is int for number in (epoch, leader_id, voted_id)):
            raise KafkaWireError("quorum-state has another version or no numbers")
        directory = uuid_of_text(line["votedDirectoryId"]) if version else ZERO_UUID
        voters = None if version else tuple(int(voter["voterId"]) for voter in line["currentVoters"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise KafkaWireError(f"these bytes are not a quorum-state: {error}") from error
    _check_numbers(epoch, leader_id, voted_id)
    voted = None if voted_id < 0 else ReplicaKey(voted_id, b"" if directory == ZERO_UUID else directory.bytes)
    return QuorumState(leader_id, epoch, voted, voters)


def _check_numbers(epoch: int, leader_id: int, voted_id: int) -> None:
    if not (0 <= epoch <= MAX_EPOCH and leader_id >= -1 and voted_id >= -1):
        raise KafkaWireError("quorum-state has numbers out of range")


def encode_users(users: Mapping[str, Mapping[Mechanism, ScramCredential]]) -> bytes:
    """Return a JSON object of the derived credentials, by user and mechanism; bytes are in Base64."""
    return msgspec.json.format(msgspec.json.encode(users), indent=1)


def decode_users(data: bytes) -> ScramUsers:
    """Parse the result of `encode_users`; raises `KafkaWireError`."""
    try:
        return ScramUsers(msgspec.json.decode(data, type=dict[str, dict[Mechanism, ScramCredential]]))
    except (ValueError, RecursionError) as error:
        raise KafkaWireError(f"these are not users: {error}") from error


def _check_cluster_id(cluster_id: str) -> None:
    try:
        uuid_of_text(cluster_id)
    except KafkaWireError as error:
        raise QuorumDirectoryError(
            f"the cluster id cannot be used: {error}. Make one with `garlicfarm kraft random-uuid`"
        ) from error


def _write(formatted: QuorumDirectory, users: Mapping[str, Mapping[Mechanism, ScramCredential]]) -> None:
    file = formatted.path / META_FILE
    meta = (
        f"version={_META_VERSION}\ncluster.id={formatted.cluster_id}\nnode.id={formatted.node_id}\n"
        f"directory.id={uuid_text(formatted.directory_id)}\n"
    )
    try:
        if file.exists():
            raise QuorumDirectoryError(f"'{formatted.path}' is formatted already: choose another, or start the server")
        (formatted.path / _LOG).mkdir(mode=0o700, parents=True, exist_ok=True)
        if formatted.initial:
            replace_file(formatted.path / INITIAL_FILE, ",".join(map(str, formatted.initial)).encode())
        if users:
            replace_file(formatted.path / USERS_FILE, encode_users(users))
        # Written last: a directory with this file is complete.
        replace_file(file, meta.encode())
    except OSError as error:
        advice = access_advice(Path(error.filename or file), error) or "; choose another directory"
        raise QuorumDirectoryError(
            f"'{formatted.path}' cannot be formatted: {error.strerror or error}{advice}"
        ) from error
