"""Event loops do not block: a farm under the watch, planted blocking operations, and a hanging or slow disk."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.api.control_routes import TRANSFER
from bridge.api.requests import TransferRequest
from tests.end_to_end import forking, hung_disk
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, Farm, Node, local_farm, tail
from tests.loop_watch.findings import (
    ROOT,
    allowed_operations,
    as_text,
    findings_in,
    not_allowed,
    watched_environment,
    watched_processes,
)
from tests.loop_watch.watch import ENVIRONMENT, Finding

PLANTED = """
import os, socket, subprocess, sys, threading, time
from pathlib import Path

import trio

from tests.loop_watch.watch import has_sample

place = Path(sys.argv[2])


def busy() -> None:
    began = time.thread_time()
    while time.thread_time() - began < 0.1 or not has_sample():
        pass


def sleep() -> None:
    time.sleep(0.5)
    while not has_sample(in_kernel=True):
        time.sleep(0.5)


async def main() -> None:
    with (place / "open").open("wb") as file:
        os.fsync(file.fileno())
    await trio.lowlevel.checkpoint()
    (place / "open").rename(place / "renamed")
    (place / "renamed").stat()
    os.listdir(place)
    sleep()
    await trio.lowlevel.checkpoint()
    busy()
    await trio.lowlevel.checkpoint()
    socket.getaddrinfo("localhost", 1)
    subprocess.run(["true"], check=True)
    print("blocking", file=sys.stderr)
    thread = threading.Thread(target=time.sleep, args=(0.5,))
    thread.start()
    thread.join()
    # Blocking in a thread is correct.
    await trio.to_thread.run_sync((place / "in-thread").write_bytes, b"")


trio.run(main)
"""

CONTENDED = """
import ctypes, os, socket, subprocess, sys, threading, time

import trio

from tests.loop_watch.watch import has_sample

ended = threading.Event()


def compute(niceness: int) -> None:
    os.nice(niceness)
    while not ended.is_set():
        pass


async def send() -> None:
    sending, receiving = socket.socketpair()
    sending.setblocking(False)
    took_s = 0.0
    with trio.fail_after(60):
        while took_s < 0.15:
            began_s = time.monotonic()
            for _ in range(500):
                sending.send(b"a")
                receiving.recv(1)
            took_s = time.monotonic() - began_s
            await trio.lowlevel.checkpoint()


async def sleep() -> None:
    while not has_sample(in_kernel=True):
        ctypes.CDLL(None).usleep(1_000_000)


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    for niceness, run in ((19, send), (0, sleep)):
        ended.clear()
        thread = threading.Thread(target=compute, args=(niceness,), daemon=True)
        thread.start()
        trio.run(run)
        ended.set()
        thread.join()
finally:
    busy.kill()
    busy.wait()
"""


def test_event_loops_do_not_block_in_running_farm(tmp_path: Path) -> None:
    if ENVIRONMENT in os.environ:
        pytest.skip("all processes of this session are watched")
    findings = tmp_path / "findings"
    with watched_processes(findings), local_farm(tmp_path / "farm", 3) as farm:
        farm.start_all()
        leader = farm.wait_settled()
        leader.submit({"mark": "watched"})
        assert leader.metric("garlicfarm_raft_commit_index") > 0
        leader.stop()
        leader.start()
        farm.wait_settled()
        for node in farm.nodes:
            node.stop()
    found = not_allowed(findings_in(findings))
    assert found == [], as_text(found)


def watched(program: str, findings: Path, *arguments: str | Path) -> list[Finding]:
    findings.mkdir()
    # The watch examines only some commands; the first argument is one of them.
    done = subprocess.run(
        [sys.executable, "-c", program, "run", *arguments],
        env={**os.environ, **watched_environment(findings)},
        cwd=ROOT,
        timeout=120,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return findings_in(findings)


def test_watch_reports_planted_operations(tmp_path: Path) -> None:
    found = watched(PLANTED, tmp_path / "findings", tmp_path)
    kinds = {each.kind for each in found}
    assert kinds >= {
        "join",
        "open",
        "os.fsync",
        "os.listdir",
        "os.rename",
        "os.stat",
        "socket.getaddrinfo",
        "step",
        "subprocess.Popen",
        "time.sleep",
        "write",
    }
    assert not any("in-thread" in each.what for each in found)
    steps = [re.findall(r"[0-9]+", each.what) for each in found if each.kind == "step"]
    assert max(int(processor_ms) for processor_ms, _ in steps) >= 90
    assert max(int(blocked_ms) for _, blocked_ms in steps) >= 450


def test_watched_forked_command_prints_into_pipe(tmp_path: Path) -> None:
    """The output of the command is a pipe, while the output of its source may be a seekable file."""
    with watched_processes(tmp_path / "findings"), forking.child(["--help"]) as (process, output, errors):
        text = output.read()
        assert process.wait(END_BOUND_S) == 0, errors.read()
    assert text.startswith("Usage")


def test_watch_on_busy_machine_reports_only_sleep(tmp_path: Path) -> None:
    """The sends wait for Python's lock, whose holder waits for a processor; the sleep is real."""
    found = watched(CONTENDED, tmp_path / "findings")
    assert [each.task for each in found if each.kind == "step"] == ["__main__.sleep"], as_text(found)


def test_allowed_operations_have_reasons_and_limits() -> None:
    for each in allowed_operations():
        assert len(each.reason.split()) > 4
        assert (each.kind, each.where, each.what, each.within) != ("*", "*", "*", "*")


@pytest.fixture(scope="module")
def shared_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with local_farm(tmp_path_factory.mktemp("farm"), 3, lan_timing=True) as farm:
        yield farm


@pytest.fixture
def hang(shared_farm: Farm) -> Path:
    """Return a missing file. The disk of the first node hangs while it exists."""
    file = shared_farm.directory / "hang"
    file.unlink(missing_ok=True)
    return file


@pytest.fixture
def farm(shared_farm: Farm, hang: Path) -> Farm:
    """Return a farm of three. The previous test has ended its first node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(hung_disk.ENVIRONMENT, str(hang))
        shared_farm.nodes[0].start()
    shared_farm.start_all()
    shared_farm.wait_settled()
    return shared_farm


def led_by(farm: Farm, node: Node) -> None:
    farm.wait_until(lambda: farm.leader() is node or _hand_over(farm, node), START_BOUND_S, f"{node.name} leads")


def _hand_over(farm: Farm, node: Node) -> bool:
    leader = farm.leader()
    if leader is not None:
        leader.ask(lambda client: client.call(TRANSFER, TransferRequest(node.name)))
    return False


def test_node_works_while_disk_hangs_and_stops_in_time(hang: Path, farm: Farm) -> None:
    node, other, _ = farm.nodes
    led_by(farm, node)
    hang.touch()
    # A leader needs only a majority of disks.
    for number in range(3):
        assert other.submit({"mark": f"hung-{number}"}).outcome.value == "committed"
    assert node.view().node.name == node.name
    assert node.running
    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    assert node.wait_end(END_BOUND_S) == 1
    # Both messages are correct: the first sync that hangs may be of the log or of another file.
    assert re.search("did not finish a write within 5 s|did not end within 12 s", tail(node.log_file))


def test_second_signal_ends_node_with_hanging_disk(hang: Path, farm: Farm) -> None:
    node, other, _ = farm.nodes
    hang.touch()
    assert other.submit({"mark": "hung"}).outcome.value == "committed"
    assert node.process is not None
    node.process.send_signal(signal.SIGTERM)
    node.process.send_signal(signal.SIGINT)
    assert node.wait_end(END_BOUND_S) == 1
    assert "Traceback" not in tail(node.log_file)


def test_node_with_slow_disk_stops_with_code_zero(hang: Path, farm: Farm) -> None:
    """Each sync takes 2 s."""
    node, other, _ = farm.nodes
    led_by(farm, node)
    hang.with_name("new").write_text("2")
    hang.with_name("new").replace(hang)
    for number in range(3):
        assert other.submit({"mark": f"slow-{number}"}).outcome.value == "committed"
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)  # as at the end of its terminal
    assert node.wait_end(END_BOUND_S) == 0, tail(node.log_file)
