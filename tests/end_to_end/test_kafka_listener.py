"""The Kafka listener of a real node: the farm's log read by a stock consumer, and written by a stock producer."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Exclusion
from bridge.node.security.key_files import save_farm_key
from bridge.wire.i2p.destination_keys import new_demo_leaf
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.log.entries import encode
from tests.end_to_end.farm import START_BOUND_S, Farm, call
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml

pytestmark = pytest.mark.processes

BOUND_S = 20.0
EXCLUSION = encode(Exclusion(hash_of(new_demo_leaf().base64), excluded=True)).decode()


def lone_farm(directory: Path, kafka: str) -> tuple[Farm, str]:
    """One node, and where its listener is."""
    key_file = directory / "farm.key"
    save_farm_key(key_file, new_farm_key(1))
    gossip, consensus, listen = (
        f"{LOOPBACK}:{free_port(kind)}" for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_STREAM)
    )
    node = node_toml(directory / "node-1", farm_key=key_file, gossip=gossip, consensus=consensus, seeds=[])
    node.directory.chmod(0o700)
    node.configuration.write_text(node.configuration.read_text() + f'[kafka]\nlisten = "{listen}"\n{kafka}')
    return Farm(directory, [node]), listen


def new_user(directory: Path, name: str, *scopes: str) -> tuple[str, dict[str, Any]]:
    """The line of a user, and what its client needs to log in."""
    options = [part for scope in scopes for part in ("--scope", scope)]
    made = call("keys", "kafka-user", directory / f"{name}.password", "--name", name, *options)
    assert made.returncode == 0
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": name,
        "sasl_plain_password": (directory / f"{name}.password").read_text().strip(),
    }
    return made.stdout, login


def kafka_python(listen: str, login: dict[str, Any], **job: Any) -> Any:
    """What kafka-python did, in a process of its own."""
    told = json.dumps({"listen": listen, "login": login, **job})
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.kafka_python", told],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_listed_users_read_the_log_and_produce_to_it_each_record_once(tmp_path: Path) -> None:
    # Given a node that lists a user who may produce and one who may read
    (writer_line, writer), (reader_line, reader) = new_user(tmp_path, "writer", "submit"), new_user(tmp_path, "reader")
    users = tmp_path / "users"
    users.write_text(writer_line + reader_line)
    users.chmod(0o600)
    farm, listen = lone_farm(tmp_path, f'write = true\ngroups = true\nusers = "{users}"\n')
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the level is raised")

        # When the writer produces records, with a producer id
        notes = [json.dumps({"note": number}) for number in range(100)]
        offsets = kafka_python(listen, writer, produce=notes, idempotent=True)
        assert offsets == list(range(offsets[0], offsets[0] + 100))

        # Then the reader reads the log as `GET /v1/log` shows it, without what is not for readers
        read = kafka_python(listen, reader, read=offsets[-1] + 1)
        found = [each for each in read if each["offset"] <= offsets[-1]]
        told = node.entries()
        assert {each["offset"]: each["value"] for each in found} == {
            index - 1: entry.data.decode()
            for index, entry in told.items()
            if entry.kind.value == "application" and b"kafkaProducer" not in entry.data and index <= offsets[-1] + 1
        }
        assert [(each["offset"], json.loads(each["value"])["note"]) for each in found if each["key"] == "foreign"] == [
            *zip(offsets, range(100), strict=True)
        ]
        assert {each["key"] for each in found} >= {"clock/1", "foreign", "level"}
        for each in found:
            entry = told[each["offset"] + 1]
            assert each["headers"] == [["term", str(entry.term)]]
            assert each["timestamp"] == (-1 if entry.log_time_ms is None else entry.log_time_ms)

        # And a group goes on where it has stopped
        in_group = kafka_python(listen, reader, read=offsets[-1] + 1, group="readers")
        assert in_group[: len(found)] == found
        [last] = kafka_python(listen, writer, produce=[json.dumps({"note": 100})], idempotent=False)
        assert isinstance(last, int)
        following = kafka_python(listen, reader, read=last + 1, group="readers")
        assert {each["offset"] for each in following}.isdisjoint(each["offset"] for each in in_group)
        assert [each["value"] for each in following if each["offset"] == last] == [json.dumps({"note": 100})]

        # And what is no entry, or out of scope, is refused
        for login, value, error in (
            (writer, "no JSON", "InvalidRecordError"),
            (writer, EXCLUSION, "TopicAuthorizationFailedError"),
            (reader, "{}", "TopicAuthorizationFailedError"),
        ):
            assert kafka_python(listen, login, produce=[value], idempotent=False) == [error]
        view = node.view()
        assert view.node.kafka_address == listen
        assert view.counters["kafka_produced_records"] == 101
        assert view.counters["kafka_logins"] >= 3


def test_a_port_that_is_in_use_keeps_the_node_from_starting(tmp_path: Path) -> None:
    farm, listen = lone_farm(tmp_path, "")
    with farm, socket.create_server((LOOPBACK, int(listen.rpartition(":")[2]))):
        (node,) = farm.nodes
        assert node.start().ended(BOUND_S) == 1
        assert "[kafka]: cannot listen at" in node.log_file.read_text().splitlines()[-1]
