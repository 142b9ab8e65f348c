"""The metrics of KIP-595: each value is measured at the point and time that the KIP specifies."""

import math

import pytest
import trio
from msgspec.structs import fields

from bridge.cli.kraft.metrics import PREFIX, STATE, TEXTS, exposition, serve_metrics
from consensus.core.effects import Apply, Effect, Persist, Role, RoleChanged
from consensus.core.model import Configuration, Entry, EntryKind, HardState, LogId, ReplicaKey, Server
from consensus.core.status import RaftDescription
from consensus.protocols.kraft.replica.metrics import (
    SAMPLE_S,
    STATES,
    PollIdle,
    QuorumFigures,
    QuorumMeasurements,
    RecentValues,
    figures_of,
)
from consensus.protocols.kraft.replica.quorum_names import QuorumNames
from tests.node.memory_server import until

FIGURES = QuorumFigures(3, 7, -1, 12, 6, 10, "observer", 1, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 0.25)
OF_THE_KIP = (
    "current-leader",
    "current-epoch",
    "current-vote",
    "log-end-offset",
    "log-end-epoch",
    "high-watermark",
    "current-state",
    "number-unknown-voter-connections",
    "election-latency-avg",
    "election-latency-max",
    "commit-latency-avg",
    "commit-latency-max",
    "fetch-records-rate",
    "append-records-rate",
    "poll-idle-ratio-avg",
)
"""The metrics in the order of the KIP's table. One row of the table lists both an average and a maximum."""


class Clock:
    """A clock in seconds that the test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def entries(count: int) -> tuple[Entry, ...]:
    return tuple(Entry(1, EntryKind.COMMAND, b"x") for _ in range(count))


class Measured:
    """Measurements, and the clock for the effects."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.found = QuorumMeasurements(self.clock)

    def at(self, now_s: float, *effects: Effect) -> None:
        """Measure the effects of a core's step at this second."""
        self.clock.now_s = 100.0 + now_s
        self.found.take(effects)


def role(of: Role, leader: int | None = None) -> RoleChanged:
    return RoleChanged(of, 1, None if leader is None else ReplicaKey(leader))


def test_commit_latency_is_from_append_to_watermark() -> None:
    """Records appended together count once, and the watermark may pass several appends in one step."""
    measured = Measured()
    measured.at(0, Persist(number=1, first=1, entries=entries(1)), role(Role.LEADER, 1))
    measured.at(1, Persist(number=2, first=2, entries=entries(10)))
    measured.at(1.5, Apply(1, entries(1)))
    measured.at(3, Apply(2, entries(10)))
    assert measured.found.commits.average() == pytest.approx((1_500 + 2_000) / 2)
    assert measured.found.commits.highest() == pytest.approx(2_000)


def test_commit_latency_is_measured_only_by_leader() -> None:
    """A follower does not measure it. A deposed leader does not count the commits of the next leader."""
    measured = Measured()
    measured.at(0, role(Role.FOLLOWER, 2), Persist(number=1, first=1, entries=entries(1)))
    measured.at(1, Apply(1, entries(1)))
    measured.at(2, role(Role.LEADER, 1), Persist(number=2, first=2, entries=entries(1)))
    measured.at(3, role(Role.FOLLOWER, 2))
    measured.at(4, Apply(2, entries(1)))
    assert math.isnan(measured.found.commits.average())
    assert math.isnan(measured.found.commits.highest())


@pytest.mark.parametrize("end", [role(Role.LEADER, 1), role(Role.FOLLOWER, 2)], ids=["leads", "follows"])
def test_election_latency_is_from_first_candidacy_to_leader(end: RoleChanged) -> None:
    """The latency includes lost rounds."""
    measured = Measured()
    measured.at(0, role(Role.CANDIDATE))
    measured.at(1, role(Role.FOLLOWER))
    measured.at(2, role(Role.CANDIDATE))
    measured.at(2.5, end)
    measured.at(9, role(Role.FOLLOWER, 3))
    assert measured.found.elections.average() == measured.found.elections.highest() == pytest.approx(2_500)


def test_rates_count_records_by_role() -> None:
    """A leader appends, any other server fetches. A persist without records does not count."""
    measured = Measured()
    measured.at(0, role(Role.FOLLOWER, 2), Persist(number=1, first=1, entries=entries(30)))
    measured.at(1, Persist(number=2, hard_state=HardState(2, None)))
    measured.at(10, role(Role.LEADER, 1), Persist(number=3, first=31, entries=entries(60)))
    measured.clock.now_s = 100 + SAMPLE_S
    assert measured.found.fetched.rate() == pytest.approx(30 / SAMPLE_S)
    assert measured.found.appended.rate() == pytest.approx(60 / SAMPLE_S)


def test_window_drops_values_after_two_samples() -> None:
    """Values of the previous sample still count. After one more sample they do not count."""
    clock = Clock()
    window = RecentValues(clock)
    window.add(4)
    clock.now_s += SAMPLE_S
    window.add(2)
    assert (window.average(), window.highest(), window.total()) == (3, 4, 6)
    clock.now_s += SAMPLE_S
    assert (window.average(), window.highest()) == (2, 2)
    clock.now_s += 2 * SAMPLE_S
    assert math.isnan(window.average())
    assert window.rate() == 0


def test_rate_after_start_divides_by_whole_sample() -> None:
    window = RecentValues(Clock())
    window.add(30)
    assert window.rate() == pytest.approx(30 / SAMPLE_S)


def test_poll_idle_ratio_is_share_without_processor_time() -> None:
    clock, processor = Clock(), Clock()
    idle = PollIdle(clock, processor)
    clock.now_s, processor.now_s = clock.now_s + 4, processor.now_s + 1
    assert idle.average() == pytest.approx(3 / 4)
    clock.now_s, processor.now_s = clock.now_s + 2, processor.now_s + 2
    assert idle.average() == pytest.approx(3 / 6)


def test_poll_idle_ratio_leaves_out_old_samples() -> None:
    clock, processor = Clock(), Clock()
    idle = PollIdle(clock, processor)
    clock.now_s, processor.now_s = clock.now_s + SAMPLE_S, processor.now_s + SAMPLE_S
    assert idle.average() == 0
    clock.now_s += 2 * SAMPLE_S
    assert idle.average() == 1


def described(of: Role, voters: tuple[Server, ...]) -> RaftDescription:
    """Return the description of replica 1 at one moment."""
    return RaftDescription(
        server_id=ReplicaKey(1),
        role=of,
        term=7,
        voted_for=ReplicaKey(2),
        leader=ReplicaKey(3),
        last=LogId(12, 6),
        durable_index=12,
        commit_index=10,
        applied_index=10,
        pending_proposals=0,
        followers=(),
        configuration=Configuration(voters),
        change=None,
        log_start=LogId(0, 0),
        snapshot=None,
        disk_full=False,
        pending_reads=0,
        transfer_target=None,
        extensions=(),
        dropped=(),
    )


def test_figures_match_raft_description() -> None:
    """The cases include a voter with an unknown address, and a server without a vote."""
    one, two, three = (Server(ReplicaKey(number), where) for number, where in ((1, ""), (2, ""), (3, "127.0.0.1:1")))
    names = QuorumNames(ReplicaKey(1), (), Configuration((one, two, three)))
    measured = Measured()
    voter = figures_of(described(Role.FOLLOWER, (one, two, three)), 10, names, measured.found, PollIdle(measured.clock))
    assert (voter.current_leader, voter.current_epoch, voter.current_vote) == (3, 7, 2)
    assert (voter.log_end_offset, voter.log_end_epoch, voter.high_watermark) == (12, 6, 10)
    assert (voter.current_state, voter.number_unknown_voter_connections) == ("follower", 1)
    observer = figures_of(described(Role.FOLLOWER, (two, three)), 10, names, measured.found, PollIdle(measured.clock))
    assert observer.current_state == "observer"
    candidate = figures_of(described(Role.CANDIDATE, (one, two)), 10, names, measured.found, PollIdle(measured.clock))
    assert candidate.current_state == "candidate"


def test_kip_metrics_have_name_and_value() -> None:
    """The name is `kafka_raft_` and the KIP's name with underscores."""
    lines = [line for line in exposition(FIGURES).decode().splitlines() if line[0] != "#"]
    exposed = dict(line.rsplit(" ", 1) for line in lines)
    states = {f'{PREFIX}{STATE}{{state="{state}"}}': float(state == "observer") for state in STATES}
    plain = [PREFIX + name.replace("-", "_") for name in OF_THE_KIP if name != "current-state"]
    values = [getattr(FIGURES, field.name) for field in fields(FIGURES) if field.name != STATE]
    assert {name: float(value) for name, value in exposed.items()} == dict(zip(plain, values, strict=True)) | states
    assert [name.replace("_", "-") for name in TEXTS] == list(OF_THE_KIP)


async def response_to(port: int, request: bytes) -> bytes:
    """Return the endpoint's response to these bytes."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        parts = [bytes(part) async for part in stream]
    return b"".join(parts)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /metrics", b"200"),
        ("HEAD /metrics?x", b"200"),
        ("GET /", b"404"),
        ("POST /metrics", b"405"),
        ("not HTTP at all", None),
    ],
)
async def test_endpoint_serves_only_metrics(request_line: str, status: bytes | None) -> None:
    """A connection serves one request. The endpoint closes it if the bytes are not HTTP."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_metrics, "127.0.0.1", 0, lambda: FIGURES)
            answer = await response_to(port, f"{request_line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            nursery.cancel_scope.cancel()
    if status is None:
        assert answer == b""
        return
    assert answer.split()[1] == status
    assert (b"kafka_raft_current_leader 3.0" in answer) is (request_line == "GET /metrics")


async def test_fault_in_figures_ends_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    served = [FIGURES]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_metrics, "127.0.0.1", 0, lambda: served.pop(0))
            answers = [await response_to(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(2)]
            await until(lambda: "pop from empty list" in caplog.text)
            nursery.cancel_scope.cancel()
    assert answers[0].split()[1] == b"200"
    assert answers[1] == b""
