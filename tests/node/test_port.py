"""The functions of the control endpoint: refused submissions, pages of the log, and waiting readers."""

import json
from collections.abc import Sequence
from typing import cast

import pytest
import trio
from msgspec import structs
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.control import Refused, SubmitOutcome
from bridge.api.control_routes import LEAVE, WITHDRAW
from bridge.api.log import LogPage
from bridge.api.verdict import REACH_LEADER
from bridge.api.view import FarmView, VerdictKind
from bridge.core.log.fields import ENTRY_LIMIT_BYTES
from bridge.core.log.records import Clock, Publication
from bridge.node.control.farm_admin import QUORUM_PATIENCE_S, FarmAdmin
from bridge.node.control.routes import Call, Request
from bridge.node.events.durations import Durations
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.membership.user_messages import UserMessages
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import Submitting
from bridge.wire.log.entries import encode
from consensus import Histogram
from consensus.core.model import Entry
from consensus.server.errors import NotLeaderError, ServerBusyError, ServerStoppedError
from tests.node.farm_stage import MASTER, NOW_MS, OWN, Stage
from tests.node.partial_farm import FOUNDING, partial_farm
from tests.operator_views import farm_view, judged

pytestmark = pytest.mark.usefixtures("machine_clock")


NO_PROMISE = "this node has not made a promise yet."


async def _nothing_to_withdraw() -> str | None:
    return NO_PROMISE


async def _nothing_to_confirm(cluster_id: bytes) -> str | None:
    return f"no member reports cluster {cluster_id.hex()}"


def port_of(
    stage: Stage, left: list[bool] | None = None, current: CurrentFarm | None = None, view: FarmView | None = None
) -> FarmAdmin:
    return FarmAdmin(
        make_view=lambda: view or farm_view(2, leader=1),
        encode_view=bytes,
        trace=stage.trace,
        leave=lambda: (left if left is not None else []).append(True),
        withdrawal_refusal=lambda: NO_PROMISE,
        withdraw=_nothing_to_withdraw,
        confirm=_nothing_to_confirm,
        messages=cast("UserMessages", None),
        current_farm=current or CurrentFarm(),
        stuck=tuple,
        durations=Durations(Histogram()),
        last_verdict=lambda: None,
    )


def founded_port(stage: Stage) -> FarmAdmin:
    return port_of(stage, current=CurrentFarm(farm_of(stage)))


def farm_of(stage: Stage) -> FoundedFarm:
    submitting = Submitting(cast("Replica", stage.replica), stage.applied_state, stage.signer, "submit-01-1")
    return partial_farm(stage.applied_state, replica=stage.replica, signer=stage.signer, submitting=submitting)


def indexes(page: LogPage) -> list[int]:
    return [entry.index for entry in page.entries]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 60_000, "not JSON"),
        (b"{" + b" " * ENTRY_LIMIT_BYTES + b"}", "at most 65536 are accepted"),
        (encode(Clock(NOW_MS, OWN)), "written by the leader alone"),
        (encode(Publication(MASTER.destination.base64, OWN, 1, "00")), "written by the publisher alone"),
    ],
    ids=["cut", "binary", "array", "deep", "large", "clock", "publication"],
)
async def test_invalid_entry_is_refused_before_log(entry: bytes, reason: str) -> None:
    stage = Stage()
    answer = await founded_port(stage).submit(entry)
    assert answer.outcome is SubmitOutcome.REFUSED
    assert reason in answer.reason
    assert stage.log == []


async def test_json_object_is_committed_under_request_id() -> None:
    stage = Stage()
    answer = await founded_port(stage).submit(b'{"note":  "as it is"}')
    assert (answer.outcome, answer.index) == (SubmitOutcome.COMMITTED, 1)
    assert stage.log == [b'{"request":"submit-01-1-0-1","note":  "as it is"}']


async def test_linearizable_page_waits_for_barrier() -> None:
    stage = Stage()
    port = founded_port(stage)

    async def acknowledged_elsewhere() -> None:
        await stage.append(b"{}")

    stage.replica.barrier = acknowledged_elsewhere
    assert indexes(await port.read_log(1, 10, 0)) == []
    assert indexes(await port.read_log(1, 10, 0, linearizable=True)) == [1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotLeaderError(None), "no-leader"),
        (ServerBusyError("too many reads"), "busy"),
        (ServerStoppedError("stopped"), "stopping"),
    ],
)
async def test_linearizable_page_is_refused_if_node_cannot_catch_up(error: Exception, code: str) -> None:
    stage = Stage()

    async def fail() -> None:
        raise error

    stage.replica.barrier = fail
    for port in (founded_port(stage), port_of(stage)):
        with pytest.raises(Refused) as refused:
            await port.read_log(1, 10, 0, linearizable=True)
        assert refused.value.status == 503
        assert refused.value.code in {code, "no-leader"}


def quorumless_port(stage: Stage) -> FarmAdmin:
    """Return the port of a node that does not find a leader, although most servers run."""
    stage.replica.server.role = replace(stage.replica.server.role, leader=None)
    view = farm_view(2, leader=1)
    raft = structs.replace(view.raft, leader_id=None, leaderless_ms=60_000)
    lost = judged(structs.replace(view, raft=raft))
    assert lost.verdict.kind is VerdictKind.NO_QUORUM
    return port_of(stage, current=CurrentFarm(farm_of(stage)), view=lost)


async def test_submission_without_quorum_fails_within_two_seconds(autojump_clock: MockClock) -> None:
    stage = Stage()
    began_s = trio.current_time()
    answer = await quorumless_port(stage).submit(b"{}")
    assert trio.current_time() - began_s <= QUORUM_PATIENCE_S
    assert answer.outcome is SubmitOutcome.REFUSED
    assert answer.reason.startswith("No quorum")
    assert REACH_LEADER in answer.reason
    assert stage.log == []


async def test_linearizable_page_without_quorum_fails_fast(autojump_clock: MockClock) -> None:
    began_s = trio.current_time()
    with pytest.raises(Refused) as refused:
        await quorumless_port(Stage()).read_log(1, 10, 0, linearizable=True)
    assert trio.current_time() - began_s <= QUORUM_PATIENCE_S
    assert refused.value.code == "no-quorum"
    assert REACH_LEADER in str(refused.value)


async def test_submission_before_founding_is_refused_with_remedy() -> None:
    answer = await port_of(Stage()).submit(b"{}")
    assert answer.outcome is SubmitOutcome.REFUSED
    assert "wait if it has just started, or use a voter" in answer.reason


async def test_log_pages_are_consecutive_with_log_time(autojump_clock: MockClock) -> None:
    stage = Stage()
    for number in range(7):
        await stage.append(json.dumps({"number": number}).encode())
    await stage.append_record(Clock(NOW_MS + 9, OWN))
    port = founded_port(stage)
    pages = [await port.read_log(1, 3, 0)]
    while pages[-1].entries:
        pages.append(await port.read_log(pages[-1].next_index, 3, 0))
    assert [indexes(page) for page in pages] == [[1, 2, 3], [4, 5, 6], [7, 8], []]
    assert [page.next_index for page in pages] == [4, 7, 9, 9]
    assert {(page.commit_index, page.last_index) for page in pages} == {(8, 8)}
    assert {page.cluster_id for page in pages} == {FOUNDING.cluster_id.hex()}
    assert [entry.log_time_ms for page in pages for entry in page.entries] == [NOW_MS] * 7 + [NOW_MS + 9]


@pytest.mark.parametrize("first", [-5, 0, 1])
async def test_log_pages_start_at_index_one(first: int) -> None:
    stage = Stage()
    await stage.append(b"{}")
    assert indexes(await founded_port(stage).read_log(first, 10, 0)) == [1]
    assert indexes(await founded_port(stage).read_log(first, 0, 0)) == []


async def test_reader_at_end_waits_for_next_entry_or_timeout(autojump_clock: MockClock) -> None:
    stage = Stage()
    port = founded_port(stage)
    pages: list[LogPage] = []

    async def read() -> None:
        pages.append(await port.read_log(1, 10, 5_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(2)
        assert pages == []
        await stage.append(b"{}")
    assert (indexes(pages[0]), trio.current_time()) == ([1], 2)
    assert indexes(await port.read_log(2, 10, 5_000)) == []
    assert trio.current_time() == 7


async def test_waiting_reader_continues_after_founding(autojump_clock: MockClock) -> None:
    stage = Stage()
    current = CurrentFarm()
    port = port_of(stage, current=current)
    assert await port.read_log(4, 10, 1_000) == LogPage(1, 0, 0, 4)
    pages: list[LogPage] = []

    async def read() -> None:
        pages.append(await port.read_log(1, 10, 30_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(1)
        with current.of(farm_of(stage)):
            await stage.append(b"{}")
            await trio.testing.wait_all_tasks_blocked()
    assert indexes(pages[0]) == [1]
    assert trio.current_time() == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [(ServerBusyError("16 reads are under way"), "busy"), (ServerStoppedError("stopped"), "stopping")],
)
async def test_unreadable_log_is_a_refusal(monkeypatch: pytest.MonkeyPatch, error: Exception, code: str) -> None:
    stage = Stage()
    await stage.append(b"{}")

    async def read(*_: object) -> Sequence[Entry]:
        raise error

    monkeypatch.setattr(stage.server, "read", read)
    with pytest.raises(Refused) as refused:
        await founded_port(stage).read_log(1, 10, 0)
    assert (refused.value.status, refused.value.code) == (503, code)


async def test_cluster_reply_prefers_announced_endpoints() -> None:
    stage = Stage()
    view = farm_view(2, leader=1)
    answer = await port_of(stage).cluster()
    announced = {member.raft_id: member.endpoint for member in view.members}
    assert answer.leader_endpoint == announced[1]
    assert [voter.endpoint for voter in answer.voters] == [
        announced.get(voter.raft_id) or voter.endpoint for voter in view.raft.voters
    ]


async def test_leave_and_withdraw_are_forwarded() -> None:
    left: list[bool] = []
    port = port_of(Stage(), left)
    await port.handlers[LEAVE](Call(Request("POST", LEAVE.path), None))
    assert left == [True]
    with pytest.raises(Refused, match="this node has not made a promise yet"):
        await port.handlers[WITHDRAW](Call(Request("POST", WITHDRAW.path), None))


@pytest.mark.parametrize("has_verdict", [False, True])
async def test_probe_uses_existing_verdict(*, has_verdict: bool) -> None:
    views: list[FarmView] = []
    port = port_of(Stage())
    last = farm_view(2, leader=1).verdict

    def make_view() -> FarmView:
        views.append(farm_view(2, leader=1))
        return views[-1]

    port.make_view, port.last_verdict = make_view, lambda: last if has_verdict else None
    assert await port._verdict() == last
    assert len(views) == (0 if has_verdict else 1)
