"""The settings, commands and programs of docs/how-to/read-the-log-with-kafka.md work on a node.

Each test is skipped if its tool is not installed. Only the document's addresses, host names and the path of Connect's
jar are replaced. The records read are compared with the node's control endpoint.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bridge.api.log import LogEntryView
from tests.end_to_end.farm import Node, wait_until
from tests.interop.kafka.kafka_farm import TOPIC
from tests.interop.kafka.test_readers import BOUND_S, READERS, needs_kcat, needs_readers, node_with, records
from tests.interop.kafka.tool_jvm import CLASS_PATH, LOG_SETTINGS, SMALL
from tests.node.certificates import Authority
from tests.processes import free_ports

pytestmark = pytest.mark.interop

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "read-the-log-with-kafka.md"
ADDRESS = "127.0.0.1:9092"
CONNECT_JAR = "/opt/kafka/libs/connect-file-4.1.2.jar"
BIN = Path(sys.executable).parent
FIRST_WITH_SCRAM = (2, 6, 1)
"""Versions of librdkafka before this one send a nonce twice, and are refused."""
OPTION = re.compile(r"-X ([a-z.]+)=(\S+)")


def blocks(language: str) -> list[str]:
    """Return the document's blocks in a language."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def block(language: str, part: str) -> str:
    (found,) = [each for each in blocks(language) if part in each]
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """Run a node with the document's first settings: only an address."""
    assert f'[kafka]\nlisten = "{ADDRESS}"\n' in blocks("toml")
    with node_with(tmp_path_factory.mktemp("plain"), "") as found:
        yield found


@pytest.fixture(scope="module")
def with_groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, str]]:
    """Run a node with consumer groups and two unreachable peers."""
    with node_with(tmp_path_factory.mktemp("groups"), block("toml", "groups = true")) as found:
        yield found


def shell(commands: str, directory: Path) -> str:
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["/bin/bash", "-ec", commands],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def texts_by_offset(entries: dict[int, LogEntryView]) -> dict[int, str]:
    return {offset: entry.data.decode() for offset, entry in entries.items()}


@needs_kcat
def test_kcat_prints_topic_and_log(plain: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = plain
    expected = texts_by_offset(records(node))
    topics, log = (each.replace(ADDRESS, listen) for each in blocks("sh")[:2])
    assert 'topic "farm-log" with 1 partitions' in shell(topics, tmp_path)
    lines = [line.split(" ", 2) for line in shell(log, tmp_path).splitlines()]
    assert {int(offset): value for offset, _, value in lines}.items() >= expected.items()
    assert {key for _, key, _ in lines} >= {"report/1", "clock/1", "admission", "foreign"}


@needs_readers
def test_spark_program_writes_new_entries(plain: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = plain
    (program,) = blocks("python")
    (tmp_path / "entries.py").write_text(program.replace(ADDRESS, listen))
    jars = ",".join(str(jar) for jar in READERS.glob("*.jar") if not jar.name.startswith("connect-"))
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": f"--jars {jars} --conf spark.ui.enabled=false"
        " --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 pyspark-shell",
    }
    before: dict[int, str] = {}
    for note in ("before the first run", "between two runs"):
        node.submit({"note": note})
        expected = texts_by_offset(records(node))
        done = subprocess.run(
            [sys.executable, "entries.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        files = sorted((tmp_path / "entries").glob("*.json"))
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        found = {row["offset"]: row["value"] for row in rows}
        assert len(rows) == len(found)
        assert found.items() >= expected.items()
        assert found.items() > before.items()
        before = found


@needs_kcat
def test_group_continues_at_committed_position(with_groups: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = with_groups
    command = block("sh", "-G readers").replace(ADDRESS, listen)
    lines = [line.split() for _ in range(2) for line in shell(command, tmp_path).splitlines()]
    assert [int(offset) for offset, _ in lines] == sorted(records(node))[:40]


@needs_readers
def test_connect_file_sink_writes_log(with_groups: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = with_groups
    expected = [entry.data.decode() for entry in records(node).values()]
    (jar,) = READERS.glob("connect-file-*.jar")
    worker, sink = blocks("properties")
    changed = {ADDRESS: listen, CONNECT_JAR: str(jar), "127.0.0.1:8083": f"127.0.0.1:{free_ports(1)[0]}"}
    for part, put in changed.items():
        assert part in worker
        worker = worker.replace(part, put)
    (tmp_path / "worker.properties").write_text(worker)
    (tmp_path / "sink.properties").write_text(sink)
    file = tmp_path / "farm-log.txt"
    with (tmp_path / "connect.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("java", *SMALL, f"-Dlog4j2.configurationFile={LOG_SETTINGS}", "-cp", CLASS_PATH),
                *("org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "sink.properties"),
            ],
            cwd=tmp_path,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(
            lambda: file.exists() and len(file.read_text().splitlines()) >= len(expected),
            BOUND_S,
            "Connect writes the log",
            lambda: (tmp_path / "connect.log").read_text()[-3_000:],
        )
    finally:
        process.terminate()
        process.wait(BOUND_S)
    assert file.read_text().splitlines()[: len(expected)] == expected


def kcat_has_scram() -> bool:
    """Return True if this machine's kcat has a librdkafka with a working SCRAM login."""
    if shutil.which("kcat") is None:
        return False
    version = subprocess.run(["/usr/bin/env", "kcat", "-V"], capture_output=True, text=True, check=False)
    found = re.search(r"librdkafka ([0-9.]+)", version.stdout + version.stderr)
    return found is not None and tuple(map(int, found[1].split("."))) >= FIRST_WITH_SCRAM


def settings_of(command: str, listen: str, directory: Path) -> dict[str, str]:
    """Return the librdkafka settings of a command line, for another program."""
    options = dict(OPTION.findall(command)) | {"bootstrap.servers": listen}
    assert options["sasl.password"] == '"$(cat'
    options["sasl.password"] = (directory / "collector.password").read_text().strip()
    if "ssl.ca.location" in options:
        options["ssl.ca.location"] = str(directory / options["ssl.ca.location"])
    return options


def test_listed_user_can_submit_entry(tmp_path: Path) -> None:
    shell(block("sh", "keys kafka-user"), tmp_path)
    settings = block("toml", "write = true")
    name = 'users = "kafka-users"'
    assert name in settings
    node_directory = tmp_path / "node-1"
    with node_with(tmp_path, settings.replace(name, f'users = "{tmp_path / "kafka-users"}"')) as (node, listen):
        assert node.directory == node_directory
        command = block("sh", "kcat -b 127.0.0.1:9092 -P").replace(ADDRESS, listen)
        if kcat_has_scram():
            shell(command, tmp_path)
        else:
            producer = Producer(settings_of(command, listen, tmp_path))
            producer.produce(TOPIC, re.findall("echo '(.*?)'", command)[0])
            assert producer.flush(BOUND_S) == 0
        (entry,) = [entry for entry in records(node).values() if b"from kcat" in entry.data]
        assert entry.data.startswith(b'{"request":"kafka:')


def test_listed_user_can_read_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "authority.pem").write_bytes(authority.file.read_bytes())
    certificate = authority.certificate("127.0.0.1").path
    shell(block("sh", "keys kafka-user"), tmp_path)
    network = block("toml", "allow_network = true").splitlines()
    lines = [line for line in network if not line.startswith(("listen", "advertise"))]
    changed = "\n".join(lines).replace("kafka.pem", str(certificate))
    with node_with(tmp_path, f'{changed}\nusers = "{tmp_path / "kafka-users"}"\n') as (_, listen):
        command = block("sh", "SASL_SSL").replace("node-1.example:9092", listen)
        if kcat_has_scram():
            assert 'topic "farm-log" with 1 partitions' in shell(command, tmp_path)
        admin = AdminClient({**settings_of(command, listen, tmp_path)})
        assert len(admin.list_topics(timeout=BOUND_S).topics[TOPIC].partitions) == 1


def test_kraft_describe_shows_farm(plain: tuple[Node, str], tmp_path: Path) -> None:
    node, listen = plain
    printed = shell(block("sh", "kraft describe").replace(ADDRESS, listen), tmp_path)
    assert f"ClusterId:              {node.view().farm.cluster_id}\n" in printed
