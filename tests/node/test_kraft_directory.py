"""The settings and the directory of a KRaft server: Kafka's names and files, and errors with advice."""

import errno
import os
import re
from pathlib import Path

import pytest

from consensus.core.model import Entry, EntryKind, ReplicaKey
from consensus.protocols.kafka.wire.limits import KafkaWireError, uuid_of_text
from consensus.protocols.kraft.operators import quorum_directory
from consensus.protocols.kraft.operators.quorum_directory import (
    QuorumDirectoryError,
    QuorumState,
    decode_state,
    encode_state,
    format_directory,
    read_directory,
)
from consensus.protocols.kraft.operators.settings import (
    NamedVoter,
    SettingsError,
    VoterSettings,
    core_options,
    parse_properties,
    voter_settings,
)
from consensus.protocols.kraft.wire.entries import control_data, control_value, entry_head
from tests.effort import each_case

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
RECORDED_STATIC = (
    b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,'
    b'"currentVoters":[{"voterId":1}],"data_version":0}'
)
RECORDED_DYNAMIC = (
    b'{"leaderId":1,"leaderEpoch":4,"votedId":1,"votedDirectoryId":"oZPctUIFRnmqhzQZ1Clfcw","data_version":1}'
)
"""Kafka 4.1.2 wrote both files."""


def settings(path: Path, text: str = "controller.quorum.voters=1@localhost:9093,2@[::1]:9094") -> VoterSettings:
    return voter_settings(parse_properties(f"node.id=1\nlog.dirs={path}\n{text}"))


def test_settings_have_kafka_names(tmp_path: Path) -> None:
    """The lines are from Kafka's own file; Kafka's defaults apply to missing settings."""
    read = settings(tmp_path, "controller.quorum.voters=1@localhost:9093,2@[::1]:9094\nprocess.roles=controller")
    assert read.voters == (NamedVoter(ReplicaKey(1), "localhost", 9093), NamedVoter(ReplicaKey(2), "::1", 9094))
    assert (read.append_linger_ms, read.retry_backoff_ms, read.fetch_timeout_ms) == (25, 20, 2_000)
    options = core_options(read)
    assert (options.election_timeout_min_ms, options.election_timeout_max_ms) == (1_000, 2_000)


@each_case(
    ("text", "setting"),
    [
        ("num.partitions=1", "num.partitions"),
        ("controller.quorum.voters=1@localhost", "controller.quorum.voters"),
        ("controller.quorum.append.linger.ms=soon", "controller.quorum.append.linger.ms"),
        ("controller.quorum.auto.join.enable=yes", "controller.quorum.auto.join.enable"),
        ("process.roles=broker", "process.roles"),
        ("controller.quorum.voters=1@a:1,1@b:2", "twice"),
        ("controller.quorum.fetch.timeout.ms=0", r"controller\.quorum\.fetch\.timeout\.ms is 0"),
        ("no setting", "name=value"),
        ("listeners=9093", "NAME://host:port"),
    ],
    ids=["unknown", "voter", "number", "flag", "role", "twice", "zero", "line", "listener"],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, setting: str) -> None:
    voters = "" if "voters" in text else "controller.quorum.voters=1@localhost:9093\n"
    with pytest.raises(SettingsError, match=setting):
        settings(tmp_path, voters + text)


@pytest.mark.parametrize("line", [RECORDED_STATIC, RECORDED_DYNAMIC], ids=["static", "dynamic"])
def test_quorum_state_line_round_trips(line: bytes) -> None:
    assert encode_state(decode_state(line)) == line


@each_case("data", [b"", b"[]", b"{}", b'{"data_version":2}', b"\xff", RECORDED_STATIC.replace(b"1,", b"-5,")])
def test_other_bytes_are_not_a_quorum_state(data: bytes) -> None:
    with pytest.raises(KafkaWireError):
        decode_state(data)


def test_directory_belongs_to_one_server(tmp_path: Path) -> None:
    """The directory keeps its format, is not formatted twice, and refuses another node.id."""
    own = settings(tmp_path)
    formatted = format_directory(own, CLUSTER)
    assert read_directory(own) == formatted
    with pytest.raises(QuorumDirectoryError, match="formatted already"):
        format_directory(own, CLUSTER)
    other = voter_settings(parse_properties(f"node.id=2\nlog.dirs={tmp_path}\ncontroller.quorum.voters=2@a:1"))
    with pytest.raises(QuorumDirectoryError, match=r"belongs to node\.id 1"):
        read_directory(other)


def test_own_static_voter_may_have_wildcard_address(tmp_path: Path) -> None:
    """A server does not connect to itself, and files for containers often have such an address."""
    read = settings(tmp_path, "controller.quorum.voters=1@0.0.0.0:9093,2@b:9093")
    assert (read.voters[0].host, read.voters[0].port) == ("0.0.0.0", 9093)  # noqa: S104 - compared, not bound
    for other in ("0.0.0.0:9093", "[ff02::1]:9093", "b:0"):
        with pytest.raises(SettingsError, match=re.escape(f"'{other}', which is not the address of one server")):
            settings(tmp_path, f"controller.quorum.voters=1@a:9093,2@{other}")


def test_directory_of_earlier_version_is_read(tmp_path: Path) -> None:
    """An earlier version accepted wildcard addresses of initial controllers."""
    own = settings(tmp_path, "controller.quorum.bootstrap.servers=localhost:9093")
    initial = (NamedVoter(ReplicaKey(1, uuid_of_text(CLUSTER).bytes), "::", 9093),)
    formatted = format_directory(own, CLUSTER, initial=initial)
    assert read_directory(own) == formatted


def test_standalone_quorum_starts_with_directory_id(tmp_path: Path) -> None:
    """With `standalone`, the first voter is this server with the id of its directory, also after a restart."""
    own = settings(tmp_path, "controller.quorum.bootstrap.servers=localhost:9093")
    formatted = format_directory(own, CLUSTER, standalone=True)
    assert [voter.key for voter in formatted.initial] == [ReplicaKey(1, formatted.directory_id.bytes)]
    assert read_directory(own) == formatted


def test_storage_older_than_quorum_state_is_refused(tmp_path: Path) -> None:
    """With an older copy of the storage, a server could vote twice in one epoch."""
    directory = format_directory(settings(tmp_path), CLUSTER, directory_id=uuid_of_text(CLUSTER))
    directory.write_state(QuorumState(2, 7, ReplicaKey(2), (1, 2)))
    directory.check_not_older(7)
    with pytest.raises(QuorumDirectoryError, match="older copy"):
        directory.check_not_older(6)


@pytest.mark.parametrize("value", [b"", b"x", b"y" * 300], ids=["empty", "short", "long"])
def test_control_record_round_trips(value: bytes) -> None:
    """The entry returns its value for its own type, and None for another type."""
    entry = Entry(1, EntryKind.CONTROL, control_data(1_000, value, 5))
    head = entry_head(entry.data)
    assert head is not None
    assert (head.timestamp_ms, head.batch_continues, head.producer_id) == (5, False, -1)
    assert control_value(entry.data, 1_000) == value
    assert control_value(entry.data, 1_001) is None


def test_format_on_full_disk_names_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(path: Path, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(quorum_directory, "replace_file", fill)
    with pytest.raises(QuorumDirectoryError, match="No space left on device; free some space there"):
        format_directory(settings(tmp_path / "new"), CLUSTER)
