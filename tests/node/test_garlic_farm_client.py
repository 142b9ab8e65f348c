"""A client finds the leader, and reports the outcome of each submission correctly."""

from collections.abc import Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from consensus.core.effects import Outcome
from consensus.core.model import LogId
from consensus.protocols.garlic_farm.node.client import ClientOptions, GarlicFarmClient
from consensus.protocols.garlic_farm.node.client_connection import ClientConnection
from consensus.protocols.garlic_farm.node.connection import Cancel, ClientAnswer
from consensus.protocols.garlic_farm.node.connectors import Reached
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from tests.effort import over_seeds
from tests.node.garlic_farm_stage import ALICE, BOB, CAROL, Host, Stage
from tests.node.unexpected_errors import fail_first, tracebacks


@pytest.fixture
def stage(nursery: trio.Nursery) -> Stage:
    return Stage(nursery)


async def client_of(stage: Stage, seed: int = 1, options: ClientOptions | None = None) -> GarlicFarmClient:
    client = GarlicFarmClient(
        stage.dialer(None), stage.resolve, [ALICE, BOB, CAROL], random=Random(seed), options=options
    )
    await stage.nursery.start(client.run)
    return client


def three(stage: Stage) -> tuple[Host, Host, Host]:
    """Return three servers that report Carol as leader."""
    hosts = stage.add(Host(ALICE)), stage.add(Host(BOB)), stage.add(Host(CAROL))
    for host in hosts:
        host.handler.leader = CAROL
    return hosts


@pytest.mark.parametrize("seed", range(6))
async def test_submission_to_any_server_is_committed_by_leader(stage: Stage, seed: int) -> None:
    """Raft section 8: "When a client first starts up, it connects to a randomly-chosen server"."""
    *_, carol = three(stage)
    client = await client_of(stage, seed)
    submission = await client.submit([b"one", b"two"])
    assert (submission.outcome, submission.position) == (Outcome.COMMITTED, LogId(2, 1))
    assert submission.leader == CAROL
    assert carol.handler.log == [b"one", b"two"]


async def test_submissions_are_pipelined_on_one_connection(stage: Stage) -> None:
    *_, carol = three(stage)
    client = await client_of(stage)
    await client.submit([])
    connections = stage.connections
    outcomes = []

    async def submit(number: int) -> None:
        outcomes.append((await client.submit([b"%d" % number])).outcome)

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(submit, number)
    assert outcomes == [Outcome.COMMITTED] * 200
    assert sorted(carol.handler.log) == sorted(b"%d" % number for number in range(200))
    assert stage.connections == connections


async def test_unexpected_error_ends_only_connection_of_client(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    three(stage)
    client = await client_of(stage)
    fail_first(monkeypatch, ClientConnection, "_deliver")
    assert (await client.submit([b"one"])).outcome is Outcome.UNKNOWN
    assert (await client.submit([b"two"])).outcome is Outcome.COMMITTED
    assert tracebacks(caplog) == 1


async def test_client_waits_for_election(stage: Stage, autojump_clock: MockClock) -> None:
    hosts = three(stage)
    for host in hosts:
        host.handler.leader = None
    client = await client_of(stage)
    stage.nursery.start_soon(elect, hosts)
    submission = await client.submit([b"x"])
    assert submission.outcome is Outcome.COMMITTED
    assert trio.current_time() > 1.0


@over_seeds(6)
async def test_client_continues_within_longest_delay_after_outage(
    stage: Stage, autojump_clock: MockClock, seed: int
) -> None:
    client = await client_of(stage, seed)
    returned_s = trio.current_time() + 60 + seed / 10

    async def start_servers() -> None:
        await trio.sleep_until(returned_s)
        three(stage)

    stage.nursery.start_soon(start_servers)
    submission = await client.submit([b"x"], timeout_s=90)
    assert submission.outcome is Outcome.COMMITTED
    assert returned_s <= trio.current_time() <= returned_s + ClientOptions().backoff_longest_s


async def elect(hosts: tuple[Host, ...]) -> None:
    await trio.sleep(1.0)
    for host in hosts:
        host.handler.leader = ALICE


async def test_crashed_leader_is_replaced_by_successor(stage: Stage, autojump_clock: MockClock) -> None:
    """Raft section 8: "clients then try again with randomly-chosen servers" after a crash of the leader."""
    hosts = three(stage)
    client = await client_of(stage)
    await client.submit([b"one"])
    del stage.hosts[CAROL]
    await trio.aclose_forcefully(stage.live[-1])
    for host in hosts:
        host.handler.leader = ALICE
    submission = await client.submit([b"two"])
    assert submission.outcome is Outcome.COMMITTED
    assert hosts[0].handler.log == [b"two"]


async def test_busy_leader_is_retried_without_other_servers(stage: Stage, autojump_clock: MockClock) -> None:
    alice, bob, carol = three(stage)
    client = await client_of(stage)
    await client.submit([])
    before = len(alice.handler.commands_of_clients) + len(bob.handler.commands_of_clients)
    carol.handler.client_answer = lambda _: ClientAnswer(busy=True, term=1)
    submission = await client.submit([b"x"], timeout_s=3)
    assert submission.outcome is Outcome.BUSY
    assert "server 3 leads and is busy" in submission.reason
    assert carol.handler.commands_of_clients.count((b"x",)) > 3
    assert len(alice.handler.commands_of_clients) + len(bob.handler.commands_of_clients) == before


async def test_unknown_outcome_is_reported_without_repetition(stage: Stage) -> None:
    *_, carol = three(stage)
    client = await client_of(stage)
    await client.submit([])
    carol.handler.client_answer = lambda _: None
    submission = await client.submit([b"x"])
    assert submission.outcome is Outcome.UNKNOWN
    assert "may be committed or not" in submission.reason
    assert carol.handler.commands_of_clients.count((b"x",)) == 1


async def test_unknown_outcome_is_repeated_if_repetition_is_harmless(stage: Stage, autojump_clock: MockClock) -> None:
    *_, carol = three(stage)
    client = await client_of(stage)
    await client.submit([])
    answers = iter([None, None, ClientAnswer(accepted=True, leader=CAROL, next_index=9, term=4)])
    carol.handler.client_answer = lambda _: next(answers)
    submission = await client.submit([b"x"], repeat_unknown=True)
    assert (submission.outcome, submission.position) == (Outcome.COMMITTED, LogId(8, 4))


async def test_unknown_outcome_remains_after_later_refusal(stage: Stage, autojump_clock: MockClock) -> None:
    hosts = three(stage)
    client = await client_of(stage)
    await client.submit([])
    hosts[2].handler.client_answer = lambda _: None
    hosts[0].handler.leader = hosts[1].handler.leader = None
    submission = await client.submit([b"x"], timeout_s=2, repeat_unknown=True)
    assert submission.outcome is Outcome.UNKNOWN


async def test_unanswered_submission_has_unknown_outcome(stage: Stage, autojump_clock: MockClock) -> None:
    three(stage)
    client = await client_of(stage)
    await client.submit([])
    for host in stage.hosts.values():
        host.handler.client_request = never  # type: ignore[method-assign]  # a handler that hangs
    submission = await client.submit([b"x"], timeout_s=1)
    assert submission.outcome is Outcome.UNKNOWN
    assert "has not answered in time" in submission.reason


def never(commands: tuple[bytes, ...], on_reply: Callable[[ClientAnswer | None], None]) -> Cancel:
    del commands, on_reply
    return lambda: None


async def test_elected_leader_replaces_hanging_leader(stage: Stage, autojump_clock: MockClock) -> None:
    alice, _, carol = three(stage)
    client = await client_of(stage)
    await client.submit([])
    carol.handler.client_request = never  # type: ignore[method-assign]  # a stopped process
    with trio.move_on_after(1):
        await client.submit([b"lost"])
    alice.handler.leader = ALICE
    client.leader_is(ALICE)
    assert (await client.submit([b"x"], timeout_s=1)).outcome is Outcome.COMMITTED
    assert alice.handler.log == [b"x"]


async def test_client_stopped_while_connecting_reports_it(
    stage: Stage, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    three(stage)
    scope, connect = trio.CancelScope(), stage.connect

    async def connect_too_late(address: PeerAddress) -> Reached:
        scope.cancel()
        await wait_all_tasks_blocked()
        return await connect(address)

    monkeypatch.setattr(stage, "connect", connect_too_late)
    client = GarlicFarmClient(stage.dialer(None), stage.resolve, [ALICE], random=Random(1))

    async def run(task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await client.run(task_status=task_status)

    await stage.nursery.start(run)
    submission = await client.submit([b"x"], timeout_s=0.01)
    assert submission.outcome is Outcome.NOT_LEADER
    assert "stopped while it connected" in submission.reason


async def test_submission_without_reachable_server_is_never_sent(stage: Stage, autojump_clock: MockClock) -> None:
    client = await client_of(stage)
    submission = await client.submit([b"x"], timeout_s=5)
    assert submission.outcome is Outcome.NOT_LEADER
    assert "Connection refused" in submission.reason


@over_seeds(12)
async def test_leader_of_new_term_is_tried_immediately(stage: Stage, autojump_clock: MockClock, seed: int) -> None:
    alice, bob = stage.add(Host(ALICE)), stage.add(Host(BOB))
    alice.handler.leader = bob.handler.leader = CAROL
    client = await client_of(stage, seed)

    async def elect_bob() -> None:
        await trio.sleep(3)
        for host in (alice, bob):
            host.handler.leader, host.handler.term = BOB, 2

    stage.nursery.start_soon(elect_bob)
    began = trio.current_time()
    assert (await client.submit([b"one"])).outcome is Outcome.COMMITTED
    assert bob.handler.log == [b"one"]
    # One wait before and one after the request to Carol, which does not run; none before the request to Bob.
    assert trio.current_time() <= began + 3 + 2 * ClientOptions().backoff_longest_s


async def test_servers_redirecting_in_circle_are_tried_with_pauses(stage: Stage, autojump_clock: MockClock) -> None:
    alice, bob = stage.add(Host(ALICE)), stage.add(Host(BOB))
    alice.handler.leader, bob.handler.leader = BOB, ALICE
    client = await client_of(stage)
    submission = await client.submit([b"x"], timeout_s=10)
    assert submission.outcome is Outcome.NOT_LEADER
    assert len(alice.handler.commands_of_clients) + len(bob.handler.commands_of_clients) < 40
