"""The budget for incomplete or unanswered requests: waiting requests of servers, and closed connections of clients."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from consensus.net.receive_budget import FREE_BYTES, BudgetOptions, ReceiveBudget

MIB = 2**20
TUNING = BudgetOptions(servers_bytes=30 * MIB, per_server_bytes=20 * MIB, others_bytes=10 * MIB)


class ClosedConnections:
    """The names of the closed connections, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def by(self, name: str) -> partial[None]:
        """Return the callback that records the name."""
        return partial(self.names.append, name)


async def test_server_request_waits_until_room_is_released() -> None:
    budget, closed = ReceiveBudget(TUNING), ClosedConnections()
    first, second = [budget.open(name, is_server=True, close=closed.by(name)) for name in ("1", "2")]
    await budget.reserve(first, 20 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.reserve, second, 12 * MIB)
        await wait_all_tasks_blocked()
        assert budget.servers_bytes == 20 * MIB
        budget.release(first, 20 * MIB)
    assert budget.servers_bytes == 12 * MIB
    assert closed.names == []


async def test_server_beyond_its_share_delays_only_itself(autojump_clock: MockClock) -> None:
    """A hostile server sends three requests byte by byte. An append of another server still finds room."""
    del autojump_clock
    budget = ReceiveBudget(TUNING)
    hostile = [budget.open("hostile", is_server=True, close=lambda: None) for _ in range(3)]
    leader = budget.open("leader", is_server=True, close=lambda: None)
    await budget.reserve(hostile[0], 12 * MIB)
    async with trio.open_nursery() as nursery:
        for account in hostile[1:]:
            nursery.start_soon(budget.reserve, account, 12 * MIB)
        await wait_all_tasks_blocked()
        with trio.fail_after(1):
            await budget.reserve(leader, 12 * MIB)
        nursery.cancel_scope.cancel()
    for account in (*hostile, leader):
        budget.end(account)
    assert budget.servers_bytes == 0


async def test_request_larger_than_share_is_admitted_when_alone(autojump_clock: MockClock) -> None:
    del autojump_clock
    budget = ReceiveBudget(TUNING)
    account = budget.open("1", is_server=True, close=lambda: None)
    with trio.fail_after(1):
        await budget.reserve(account, 40 * MIB)


async def test_ended_connection_releases_its_room(autojump_clock: MockClock) -> None:
    budget = ReceiveBudget(TUNING)
    first, second, third = [budget.open(name, is_server=True, close=lambda: None) for name in "123"]
    await budget.reserve(first, 20 * MIB)
    with trio.move_on_after(1):
        await budget.reserve(second, 20 * MIB)
    budget.end(second)
    budget.end(first)
    with trio.fail_after(1):
        await budget.reserve(third, 20 * MIB)


def test_oldest_connection_of_largest_source_is_closed() -> None:
    budget, closed = ReceiveBudget(TUNING), ClosedConnections()
    other_client = budget.open("other_client", is_server=False, close=closed.by("other_client"))
    dripping = [budget.open("dripping", is_server=False, close=closed.by(f"dripping {n}")) for n in range(10)]
    budget.hold(other_client, 2 * MIB)
    for account in dripping:
        budget.hold(account, 2 * MIB)
    assert closed.names == [f"dripping {n}" for n in range(6)]
    assert budget.others_bytes <= TUNING.others_bytes


def test_small_requests_are_not_counted() -> None:
    budget, closed = ReceiveBudget(TUNING), ClosedConnections()
    for number in range(1000):
        budget.hold(budget.open("one source", is_server=False, close=closed.by(str(number))), FREE_BYTES)
    assert (budget.others_bytes, closed.names) == (0, [])


@pytest.mark.parametrize("held", [MIB, 9 * MIB])
def test_sole_client_is_never_closed(held: int) -> None:
    budget, closed = ReceiveBudget(BudgetOptions(others_bytes=MIB)), ClosedConnections()
    budget.hold(budget.open("alone", is_server=False, close=closed.by("alone")), held)
    assert closed.names == []
