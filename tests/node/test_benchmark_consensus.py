"""The comparison of consensus with etcd: requests to etcd, and figures from measurements."""

import sys
from pathlib import Path

import psutil
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks import consensus_failover, debian_package, etcd_group
from benchmarks.bare_pipe import running_pipe, take_frames
from benchmarks.child import Child, ChildError
from benchmarks.consensus_budget import split
from benchmarks.consensus_throughput import SCENARIOS, figures
from benchmarks.contenders import ETCD, OURS, PIPE, Turn, drive
from benchmarks.etcd_group import leads
from benchmarks.hop_marks import ACK, DISK, READ, REPLIED, REQUEST, SENT, STORED, SYNCED, Marks
from benchmarks.load import Load, Rate, Result
from benchmarks.machine import Machine
from benchmarks.steady import Acknowledged

MACHINE = Machine("a machine", (900.0, 1000.0, 1100.0), (20.0, 20.0, 20.0), (50.0, 50.0, 50.0))


def test_frames_of_pipe_are_split_at_any_boundary() -> None:
    sent = [b"first", b"", b"x" * 300]
    received, found = bytearray(), list[bytes]()
    for byte in b"".join(len(each).to_bytes(4, "big") + each for each in sent):
        received.append(byte)
        found += take_frames(received)
    assert found == sent
    assert not received


@pytest.mark.soak
async def test_pipe_acknowledges_frames_of_its_clients(tmp_path: Path) -> None:
    load = Load(clients=3, connections=2, seconds=0.02, entry_bytes=10)
    async with running_pipe(tmp_path) as pipe:
        turn = await drive(await pipe.clients(load, 1), pipe.servers.values(), load)
    assert turn.rate.entries_per_s > 0


@pytest.mark.parametrize(("leader", "expected"), [("7", True), ("8", False), ("0", False)])
def test_leads_if_status_names_member_itself(leader: str, expected: bool) -> None:  # noqa: FBT001
    assert leads({"header": {"member_id": "7"}, "leader": leader}) is expected


MARKS_OF_LEADER: Marks = {READ: [10, 90], REQUEST: [20], SENT: [30, 31], ACK: [100], REPLIED: [110], STORED: [60]}
MARKS_OF_FOLLOWER: Marks = {READ: [40], REQUEST: [45], DISK: [50], SYNCED: [70], STORED: [75], REPLIED: [80]}
LATER: Marks = {hop: [time + 100 for time in times] for hop, times in MARKS_OF_FOLLOWER.items()}


@pytest.mark.parametrize("stored", [[60], [], [150]])
def test_budget_of_write_adds_up_to_its_latency(stored: list[int]) -> None:
    found = split((0, 120_000), *_thousands(MARKS_OF_LEADER | {STORED: stored}, [MARKS_OF_FOLLOWER]))
    assert found == [10, 10, 10, 10, 5, 5, 20, 5, 5, 10, 10, 10, 10]


def test_budget_leaves_out_write_that_waited_for_leaders_disk() -> None:
    assert split((0, 120_000), *_thousands(MARKS_OF_LEADER | {STORED: [105]}, [MARKS_OF_FOLLOWER])) is None


def test_budget_leaves_out_write_without_follower() -> None:
    assert split((0, 120_000), *_thousands(MARKS_OF_LEADER, [LATER])) is None


def _thousands(leader: Marks, followers: list[Marks]) -> tuple[Marks, list[Marks]]:
    leader, *others = (
        {hop: [1000 * time for time in times] for hop, times in each.items()} for each in [leader, *followers]
    )
    return leader, others


def test_rate_counts_entries_of_all_processes() -> None:
    results = [Result(2.0, 0.5, [1_000, 3_000], {}), Result(1.9, 0.3, [2_000], {})]
    rate = Rate.of(results, batch=100)
    assert rate.entries_per_s == 150
    assert (rate.p50_ms, rate.p99_ms) == (2.0, 3.0)
    assert rate.processor_share == pytest.approx(0.4)


def turn(entries_per_s: float, p50_ms: float) -> Turn:
    return Turn(Rate(entries_per_s, p50_ms, p50_ms * 2, 0.1), (0.3, 0.2))


def test_ratios_pair_turns_of_one_round() -> None:
    many = next(scenario for scenario in SCENARIOS if scenario.clients == 64)
    found = {OURS: [turn(1_000, 1), turn(9_000, 1)], ETCD: [turn(1_000, 1), turn(3_000, 1)]}
    rows = {figure.name: figure for figure in figures(many, found, MACHINE)}
    assert rows["garlicfarm's rate / etcd's"].values == (1.0, 3.0)
    assert rows["garlicfarm's rate / etcd's"].note == "goal at least 1.3: 1 of 2 reach it"


@pytest.mark.parametrize(("other", "goal"), [(ETCD, "1: 0 of 2"), (PIPE, "1.5: 1 of 2")])
def test_p50_ratio_of_one_client_is_shown(other: str, goal: str) -> None:
    one = next(scenario for scenario in SCENARIOS if scenario.clients == 1)
    found = {OURS: [turn(1_000, 3), turn(1_000, 4)], other: [turn(2_000, 2), turn(2_000, 1)]}
    rows = {figure.name: figure for figure in figures(one, found, MACHINE)}
    assert rows[f"garlicfarm's p50 / {other}'s"].values == (1.5, 4.0)
    assert rows[f"garlicfarm's p50 / {other}'s"].note == f"goal at most {goal} reach it"


def test_etcd_rows_are_omitted_without_etcd() -> None:
    one = next(scenario for scenario in SCENARIOS if scenario.clients == 1)
    names = [figure.name for figure in figures(one, {OURS: [turn(1, 1)]}, MACHINE)]
    assert not [name for name in names if "etcd" in name]


def test_failover_slower_than_etcd_reports_difference() -> None:
    ours, theirs = consensus_failover.figures({"garlicfarm": [2.0, 1.5, 1.6], "etcd": [1.5, 1.4, 1.7]})
    assert ours.note == "goal: at most etcd's median of 1.50 s: missed by 0.10 s"
    assert theirs.note == ""


def test_writes_after_kill_end_time_without_leader() -> None:
    acknowledged = Acknowledged()
    acknowledged.add(9.9, 10.1)
    assert acknowledged.first(10.0) is None
    acknowledged.add(10.2, 11.6)
    acknowledged.add(10.4, 11.5)
    assert acknowledged.first(10.0) == 11.5


async def test_missing_etcd_is_reported_with_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert await debian_package.find_program("etcd", "etcd-server", tmp_path) == (
        None,
        "etcd is not installed, and this is not a Debian system to fetch it from",
    )


async def test_missing_go_client_is_reported_with_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(etcd_group, "GO_PLACES", str(tmp_path))
    assert await etcd_group.build_client() == (None, "Go is not installed")
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho it does not compile >&2\nexit 1\n")
    go.chmod(0o700)
    assert await etcd_group.build_client() == (None, "`go build` failed: it does not compile")


def test_scenario_divides_clients_among_processes() -> None:
    scenario = next(each for each in SCENARIOS if each.clients == 256)
    assert scenario.load(2.0, 256) == Load(clients=128, connections=4, seconds=2.0, entry_bytes=256, batch=1)


async def test_benchmark_process_replies_until_its_input_ends(tmp_path: Path) -> None:
    echo = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    async with await Child.start("echo", [sys.executable, "-c", echo], tmp_path / "log") as child:
        assert await child.request('{"a": 1}') == {"a": 1}
        assert child.resident_bytes() > 0
    assert child.process.returncode == 0


async def test_process_ending_early_is_reported_with_last_output(tmp_path: Path) -> None:
    child = await Child.start("a wreck", ["sh", "-c", "echo it broke >&2; exit 3"], tmp_path / "log")
    with pytest.raises(ChildError, match=r"a wreck ended early; its last output: …it broke"):
        await child.receive_line()
    await child.end()


async def test_process_ended_during_receive_is_reported(tmp_path: Path) -> None:
    child = await Child.start("echo", ["cat"], tmp_path / "log")
    assert child.process.stdout is not None
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_expect_early_end, child)
            await wait_all_tasks_blocked()
            await child.process.stdout.aclose()
        await child.end()


async def _expect_early_end(child: Child) -> None:
    with pytest.raises(ChildError, match="echo ended early"):
        await child.receive_line()


async def test_foreign_process_ends_with_benchmark(tmp_path: Path) -> None:
    child = await Child.start_foreign("a stranger", ["sleep", "600"], tmp_path / "log")
    assert psutil.pid_exists(child.pid)
    await child.end()
    with trio.fail_after(60):
        while psutil.pid_exists(child.pid):  # noqa: ASYNC110 - the kernel does not wake tasks
            await trio.sleep(0.01)


async def test_foreign_process_reports_its_exit_status(tmp_path: Path) -> None:
    child = await Child.start_foreign("a stranger", ["sh", "-c", "echo it broke >&2; exit 3"], tmp_path / "log")
    assert await child.receive_line() == "3"
    await child.end()
    assert child.log.read_text() == "it broke\n"
