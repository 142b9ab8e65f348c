"""Figures of the benchmarks: percentiles, submitted entries, and the parts of the command."""

import ast
import json
import socket
from pathlib import Path
from types import ModuleType

import pytest
import trio

from benchmarks import __path__ as benchmarks_path
from benchmarks import cold_start, kraft, time_split, zmq_raft
from benchmarks.__main__ import PARTS, Part, main, run_part
from benchmarks.child import BenchmarkError
from benchmarks.client import entry
from benchmarks.figures import Figure, percentile, table
from benchmarks.gossip_group import Observer, record_serf, serf_ports
from benchmarks.gossip_whole_node import sizes_mb
from benchmarks.idle import as_on_a_lan, with_router
from benchmarks.job import Job, LeftOut, Measure, repeated
from benchmarks.machine import Machine
from benchmarks.time_split import CONNECTIONS, STEP, TLS, TimeSplit
from bridge.core.log.records import Foreign
from bridge.node.local import farm_files
from bridge.node.local.farm_files import prepare
from bridge.node.security.key_files import save_master_key
from bridge.node.settings.choices import RouterKind
from bridge.node.settings.configuration import load_configuration
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.log.entries import decode
from tests.effort import each_case
from tests.processes import free_ports

MACHINE = Machine("a machine", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1)])
def test_percentile_is_smallest_value_reaching_share(share: float, expected: int) -> None:
    assert percentile(list(range(1, 101)), share) == expected
    assert percentile([7], share) == 7


@pytest.mark.parametrize("number", [0, 7, 123_456_789])
def test_benchmark_entry_has_requested_size(number: int) -> None:
    submitted = entry(number, 256)
    assert len(submitted) == 256
    assert json.loads(submitted)["benchmark"] == number
    assert isinstance(decode(submitted), Foreign)


def test_table_shows_median_and_extremes_per_group() -> None:
    figures = [Figure("first", "rate", "/s", (300.0, 100.0, 200.0)), Figure("first", "latency", "ms", (1.5,), "goal 2")]
    lines = table([*figures, Figure("second", "rate", "/s", (1.0,))])
    assert lines.count("first") == lines.count("second") == 1
    rate = next(line for line in lines if line.strip().startswith("rate"))
    assert rate.split() == ["rate", "200", "/s", "100", "to", "300", "3x"]
    assert any(line.endswith("goal 2") for line in lines)


async def test_repeated_part_has_values_of_all_runs(tmp_path: Path) -> None:
    async def part(job: Job) -> list[Figure]:
        await trio.lowlevel.checkpoint()
        run = int(job.directory.name)
        return [
            Figure("first", "rate", "/s", (float(run),), "goal 2"),
            Figure("second", f"task {run % 2}", "ms", (1.0,)),
        ]

    assert await repeated(part, Job("idle", tmp_path, 3, 1.0, MACHINE)) == [
        Figure("first", "rate", "/s", (0.0, 1.0, 2.0), "goal 2"),
        Figure("second", "task 0", "ms", (1.0, 1.0)),
        Figure("second", "task 1", "ms", (1.0,)),
    ]


def test_parts_of_command_have_their_functions() -> None:
    for part in PARTS.values():
        module, _, name = part.function.rpartition(".")
        tree = ast.parse(Path(*benchmarks_path, f"{module}.py").read_text())
        functions = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, part.function


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import absent_package.part", LeftOut),
        ("import bridge.absent_module", ModuleNotFoundError),
        ("from bridge import absent_name", ImportError),
    ],
)
async def test_part_is_left_out_only_without_a_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, expected: type[Exception]
) -> None:
    (tmp_path / "broken_part.py").write_text(line)
    monkeypatch.setattr("benchmarks.__path__", [str(tmp_path)])
    with pytest.raises(expected):
        await run_part(Part("broken_part.measure"), Job("idle", tmp_path, 1, 1.0, MACHINE))


@pytest.mark.parametrize(
    ("module", "function"),
    [(kraft, kraft.latency), (kraft, kraft.failover), (zmq_raft, zmq_raft.throughput), (zmq_raft, zmq_raft.failover)],
)
async def test_part_without_its_programs_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: ModuleType, function: Measure
) -> None:
    monkeypatch.setattr(module, "missing", lambda: "no program")
    with pytest.raises(LeftOut, match="no program"):
        await function(Job("part", tmp_path, 1, 1.0, MACHINE))


def test_parts_without_runs_refuse_their_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "machine", "memory", "--runs", "2"])
    with pytest.raises(SystemExit):
        main()
    assert "--runs does not apply to machine and memory" in capsys.readouterr().err


def test_serf_ports_are_free_and_never_returned_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may not listen yet when the ports of the next one are chosen."""
    usual = free_ports(2)
    with socket.socket(type=socket.SOCK_DGRAM) as in_use:
        in_use.bind((farm_files.LOOPBACK, 0))
        used: int = in_use.getsockname()[1]
        monkeypatch.setattr(farm_files, "PORTS", [*usual, used])
        monkeypatch.setattr(farm_files, "PORT_ATTEMPTS", 3)
        found = [port for _ in range(50) for port in serf_ports()]
    assert used not in found[::2]
    assert len(set(found)) == len(found)


async def test_split_assigns_each_interval_to_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def work(spent_ns: int) -> None:
        nonlocal now_ns
        now_ns += spent_ns

    class Server:
        def step(self) -> None:
            work(5)
            self.encrypt()
            work(2)

        def encrypt(self) -> None:
            work(3)

    monkeypatch.setattr("benchmarks.task_times.thread_time_ns", lambda: now_ns)
    monkeypatch.setattr(time_split, "thread_time_ns", lambda: now_ns)
    monkeypatch.setattr("gc.callbacks", [])
    split = TimeSplit(((Server, "step", STEP), (Server, "encrypt", TLS)))
    await trio.lowlevel.checkpoint()
    split.take()
    Server().step()
    work(11)
    await trio.lowlevel.checkpoint()
    taken = {kind: round(spent_s * 1e9) for kind, spent_s in split.take().items()}
    assert (taken[STEP], taken[TLS], taken[CONNECTIONS]) == (7, 3, 11)


def test_settings_for_router_are_valid(tmp_path: Path) -> None:
    save_master_key(tmp_path / "master.key", new_master_key())
    [node] = prepare(tmp_path, 1).nodes
    settings = with_router(as_on_a_lan(node.configuration_file.read_text()), 7654)
    node.configuration_file.write_text(settings)
    configuration = load_configuration(node.configuration_file)
    assert configuration.router.kind is RouterKind.I2CP
    assert not configuration.demo


def test_own_memory_excludes_shared_memory() -> None:
    rollup = """\
5581a0000000-7ffd3a9f0000 ---p 00000000 00:00 0                          [rollup]
Rss:               50000 kB
Pss:               30000 kB
Pss_Dirty:         20000 kB
Shared_Clean:      19000 kB
Shared_Dirty:       1000 kB
Private_Clean:      5000 kB
Private_Dirty:     25000 kB
Private_Hugetlb:       0 kB
"""
    assert sizes_mb(rollup) == {"resident": pytest.approx(51.2), "its own": pytest.approx(30.72)}


JOINED = "2026/11/23 01:14:02 [INFO] serf: EventMemberJoin: serf-3 127.0.0.1"
SUSPECTED = "2026/11/23 01:14:09 [INFO] memberlist: Suspect serf-3 has failed, no acks received"
FAILED = "2026/11/23 01:14:12 [INFO] serf: EventMemberFailed: serf-3 127.0.0.1"
MARKED = (
    "2026/11/23 01:14:12 [INFO] memberlist: Marking serf-3 as failed, suspect timeout reached (2 peer confirmations)"
)


@each_case(
    ("log", "status"),
    [
        ((JOINED,), "alive"),
        ((JOINED, SUSPECTED), "alive"),
        ((JOINED, SUSPECTED, MARKED, FAILED), "dead"),
        ((JOINED, MARKED, FAILED, SUSPECTED), "dead"),
        ((JOINED, FAILED, JOINED), "alive"),
    ],
)
def test_serf_log_suspicion_is_recorded_without_status_change(log: tuple[str, ...], status: str) -> None:
    observer = Observer()
    for line in log:
        record_serf(observer, line)
    assert observer.status == {"serf-3": status}
    assert (observer.first("serf-3", {"suspect"}, 0.0) is not None) == (SUSPECTED in log)
    assert observer.first("serf-3", {"suspect"}, float("inf")) is None


UP = """\
Demonstration: throwaway destinations, loopback only. Nothing here leaves this machine.
23:59:59.500 node-1 process-started pid=3
23:59:59.600 node-2 process-started pid=4
23:59:59.700 node-3 process-started pid=5
00:00:00.100 node-1 node-started: for the 1. time, with pid 3
00:00:00.400 node-3 node-started: for the 1. time, with pid 5
00:00:00.300 node-2 node-started: for the 1. time, with pid 4
00:00:01.000 node-1 farm-founded: cluster=d3a0 raftId=2
00:00:01.200 node-2 farm-founded: cluster=d3a0 raftId=1
00:00:01.700 leader-elected: node-1 leads in term 1
"""


def test_start_steps_are_timed_by_events_over_midnight() -> None:
    began_s = 86_400 * 20_000 - 1.0
    assert cold_start.steps(UP.splitlines(), began_s) == pytest.approx(
        {
            "every process of a node runs": 0.7,
            "every node has started": 1.4,
            "the farm is created": 2.0,
            "a server leads": 2.7,
        }
    )


def test_start_without_event_of_every_node_is_an_error() -> None:
    lines = [line for line in UP.splitlines() if "node-2 node-started" not in line]
    with pytest.raises(BenchmarkError, match="node-started 2 times, not 3"):
        cold_start.steps(lines, 0.0)
