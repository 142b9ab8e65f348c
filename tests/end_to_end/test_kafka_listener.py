"""The Kafka listener of a real node: kafka-python reads and writes the farm's log, and `kraft` commands read it."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Exclusion
from bridge.node.security.key_files import save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.log.entries import encode
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import START_BOUND_S, Farm, call
from tests.end_to_end.settings import LOOPBACK, free_port, node_toml
from tests.node.test_cli_terminals import NO_KEY, UNSTYLED, on_a_terminal

EXCLUSION = encode(Exclusion(hash_of(new_demo_leaf().base64), excluded=True)).decode()


def lone_farm(directory: Path, kafka: str) -> tuple[Farm, str]:
    """Return a farm of one node, and the address of its listener."""
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
    """Create a user; return the line for the users file, and the login settings of a client."""
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


def kafka_python(listen: str, *jobs: dict[str, Any]) -> Any:
    """Run kafka-python in a separate process; return the result of each job."""
    request = json.dumps([{"listen": listen, **job} for job in jobs])
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.kafka_python", request],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_listed_users_read_and_produce_each_record_once(tmp_path: Path) -> None:
    # Given a node that lists a user with write permission and a user without
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
        [offsets] = kafka_python(listen, {"login": writer, "produce": notes, "idempotent": True})
        assert (len(offsets), offsets) == (100, sorted(set(offsets)))  # The node's own entries may lie between.

        # Then the reader gets the log of `GET /v1/log`, without control records
        reading = {"login": reader, "read": offsets[-1] + 1}
        in_a_group, note = {**reading, "group": "readers"}, json.dumps({"note": 100})
        read, in_group, [last] = kafka_python(
            listen, reading, in_a_group, {"login": writer, "produce": [note], "idempotent": False}
        )
        found = [each for each in read if each["offset"] <= offsets[-1]]
        entries = node.entries()
        assert {each["offset"]: each["value"] for each in found} == {
            index - 1: entry.data.decode()
            for index, entry in entries.items()
            if entry.kind.value == "application" and b"kafkaProducer" not in entry.data and index <= offsets[-1] + 1
        }
        assert [(each["offset"], json.loads(each["value"])["note"]) for each in found if each["key"] == "foreign"] == [
            *zip(offsets, range(100), strict=True)
        ]
        assert {each["key"] for each in found} >= {"clock/1", "foreign", "level"}
        for each in found:
            entry = entries[each["offset"] + 1]
            assert each["headers"] == [["term", str(entry.term)]]
            assert each["timestamp"] == (-1 if entry.log_time_ms is None else entry.log_time_ms)

        # And a group continues at its offset; an invalid entry, or an entry out of scope, is refused
        assert in_group[: len(found)] == found
        assert isinstance(last, int)
        refused = ((writer, "no JSON"), (writer, EXCLUSION), (reader, "{}"))
        following, *errors = kafka_python(
            listen,
            {**in_a_group, "read": last + 1},
            *({"login": login, "produce": [value], "idempotent": False} for login, value in refused),
        )
        assert {each["offset"] for each in following}.isdisjoint(each["offset"] for each in in_group)
        assert [each["value"] for each in following if each["offset"] == last] == [note]
        assert errors == [["InvalidRecordError"], ["TopicAuthorizationFailedError"], ["TopicAuthorizationFailedError"]]
        view = node.view()
        assert view.node.kafka_address == listen
        assert view.counters["kafka_produced_records"] == 101
        assert view.counters["kafka_logins"] >= 3


def test_kraft_commands_read_farm_but_do_not_change_voters(tmp_path: Path) -> None:
    # Given a node whose listener has a record for each entry, and entries in its log
    farm, listen = lone_farm(tmp_path, "control_records = true\n")
    with farm:
        (node,) = farm.nodes
        node.start()
        farm.wait_until(lambda: node.view().farm.level == SUPPORTED_LEVEL, START_BOUND_S, "the level is raised")
        for number in range(3):
            node.submit({"note": number})

        # When the `kraft` commands read its log, then it equals the log of `GET /v1/log`, with each offset
        entries, where = node.entries(), ("--bootstrap-server", listen)
        printed = call("kraft", "log", *where, "--json", "--limit", str(len(entries)))
        assert printed.returncode == 0, printed.stderr
        records = [json.loads(line) for line in printed.stdout.splitlines()]
        assert [record["offset"] for record in records] == [index - 1 for index in sorted(entries)]
        for record in records:
            entry = entries[record["offset"] + 1]
            assert record["epoch"] == entry.term
            if record["record"] == "Data":
                assert record["value"] == entry.data.decode()
        assert {record["record"] for record in records} == {"Data", "FarmInternal"}
        assert [json.loads(record["value"])["note"] for record in records if record.get("key") == "foreign"] == [
            0,
            1,
            2,
        ]

        # And as text, from an offset on
        text = call("kraft", "log", *where, "--from", str(records[-1]["offset"]), "--limit", "1").stdout.splitlines()
        assert text[0].split()[:2] == ["OFFSET", "EPOCH"]
        assert text[1].split()[:2] == [str(records[-1]["offset"]), str(records[-1]["epoch"])]

        # And the farm is described, and a change of voters is refused; the error names the farm's own commands
        described = call("kraft", "describe", *where, "--json")
        assert json.loads(described.stdout)["cluster"] == node.view().farm.cluster_id
        replication = ["kraft", "describe", *where, "--replication"]
        for wide in (), ("--wide",):
            _, written = on_a_terminal([*replication, *wide], {"COLUMNS": "80"}, NO_KEY)
            lines = UNSTYLED.sub(b"", written).splitlines()
            assert lines[0].startswith(b"NodeId  DirectoryId"), written
            assert (max(map(len, lines)) <= 80) is not bool(wide)
        new_voter = ("--voter-id", "9", "--voter-directory-id", "AAAAAAAAAAAAAAAAAAAABw", "--listener", "RAFT://a:1")
        for change in (("add-voter", *new_voter), ("remove-voter", "--voter-id", "1", "--yes")):
            result = call("kraft", *change, *where)
            assert (result.returncode, result.stdout) == (1, "")
            assert "removes them with `garlicfarm leave` or `garlicfarm servers remove`" in result.stderr


def test_port_in_use_ends_node(tmp_path: Path) -> None:
    farm, listen = lone_farm(tmp_path, "")
    with farm, socket.create_server((LOOPBACK, int(listen.rpartition(":")[2]))):
        (node,) = farm.nodes
        assert node.start().wait_end(START_BOUND_S) == 1
        assert "[kafka]: cannot listen at" in node.log_file.read_text().splitlines()[-1]
