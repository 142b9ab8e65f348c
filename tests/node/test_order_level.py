"""The feature level of an order about one server, at the leader and at a follower."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.control import CheckedAnswer, Refused
from bridge.api.control_routes import NODES_APPROVE, NODES_APPROVE_CHECK, Route
from bridge.core.log import feature_level
from bridge.core.log.feature_level import EVICTION_LEVEL, FIRST_LEVEL, SUPPORTED_LEVEL
from bridge.core.log.records import Eviction
from bridge.node.control.orders.leading import COMMIT_PATIENCE_S, commit_as_leader
from bridge.node.control.orders.order_level import OrderLevel, check_level, reach_level
from bridge.node.control.routes import Call, Request, body_of
from bridge.node.founded_farm import CurrentFarm
from bridge.node.membership import level_raising
from consensus import Outcome, ServerBusyError, ServerStoppedError
from tests.node.test_identity_admin import FakeLeader, admin, identity

LOST = 4
REMOVAL = OrderLevel("removal", LOST, EVICTION_LEVEL)
EVICTION = OrderLevel("eviction", LOST, EVICTION_LEVEL, is_eviction=True)


class OldFarm(FakeLeader):
    """Four voters at the first level; servers 2 and 3 support more; `running`: running servers except this one."""

    def __init__(self, running: Collection[int], level: int | None = FIRST_LEVEL, *, leads: bool = True) -> None:
        super().__init__(leads=leads)
        self.running = running
        self.state = replace(self.state, level=FIRST_LEVEL)
        self.announced = {2: SUPPORTED_LEVEL, 3: SUPPORTED_LEVEL, LOST: level}
        reached = {identity(each) for each in running}
        self.farm = replace(self.farm, in_contact=lambda node_id, _: node_id in reached)

    def describe(self) -> Any:
        """Return a description with recent replies of the running servers only."""
        described = super().describe()
        for each in described.raft.followers:
            each.contact_ms = 1 if each.server_id in self.running else None
        return described


@pytest.mark.parametrize("level", [FIRST_LEVEL, None])
async def test_removal_of_lost_voter_raises_level(level: int | None) -> None:
    stage = OldFarm({2, 3}, level)
    await reach_level(stage.farm, REMOVAL)
    assert stage.state.level == EVICTION_LEVEL


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    ("running", "code", "text"),
    [
        ({2, 3, LOST}, "still-runs", "node-4 announces level 1. node-4 runs, .*: update it, or stop it first"),
        ({2, LOST}, "still-runs", "update it, or stop it first"),
        ({2}, "no-majority", "Without node-4 only 2 of 4 voters answer, less than a majority"),
    ],
)
async def test_order_does_not_raise_level_if_farm_would_stop(
    running: set[int], code: str, text: str, *, leads: bool
) -> None:
    stage = OldFarm(running, leads=leads)
    with pytest.raises(Refused, match=text) as caught:
        await reach_level(stage.farm, REMOVAL)
    assert (caught.value.status, caught.value.code) == (409, code)
    assert (stage.requested, stage.state.level) == ([], FIRST_LEVEL)


async def test_follower_without_gossip_counts_connected_voters() -> None:
    stage = OldFarm((), leads=False)
    stage.linked = frozenset({2, 3})
    check_level(stage.farm, REMOVAL)


async def test_removal_of_running_voter_with_level_is_permitted() -> None:
    stage = OldFarm({2, 3, LOST}, SUPPORTED_LEVEL)
    await reach_level(stage.farm, REMOVAL)
    assert stage.state.level == EVICTION_LEVEL


@pytest.mark.parametrize("order", [REMOVAL, EVICTION])
async def test_other_old_voter_prevents_level(order: OrderLevel) -> None:
    stage = OldFarm({2, 3})
    stage.announced[2] = FIRST_LEVEL
    with pytest.raises(Refused, match=r"node-2 announces level 1\. Update these voters") as caught:
        check_level(stage.farm, order)
    assert caught.value.code == "level-too-low"


@pytest.mark.parametrize("order", [REMOVAL, EVICTION])
async def test_old_leader_does_not_raise_level_above_its_own(
    order: OrderLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A farm whose leader refuses its own entry cannot commit anything until an update."""
    for module in (feature_level, level_raising):
        monkeypatch.setattr(module, "SUPPORTED_LEVEL", FIRST_LEVEL)
    stage = OldFarm({2, 3})
    with pytest.raises(Refused, match=r"node-1 announces level 1\. Update these voters") as caught:
        await reach_level(stage.farm, order)
    assert (caught.value.code, stage.requested, stage.state.level) == ("level-too-low", [], FIRST_LEVEL)


async def _approve_successor(stage: OldFarm, route: Route[Any]) -> Any:
    metadata = SimpleNamespace(name="node-4", raft_id=None, feature_level=SUPPORTED_LEVEL)
    newcomer = SimpleNamespace(node_id=identity(9), metadata=metadata, reachable=True, key=b"")
    approver = admin(CurrentFarm(stage.farm))
    approver.member_directory = SimpleNamespace(members=lambda: (newcomer,))  # type: ignore[assignment]
    request = Request("POST", route.path, b'{"node": "node-4"}')
    call = Call(request, body_of(route, request.body))
    return await approver.handlers[route](call)


@pytest.mark.parametrize("route", [NODES_APPROVE, NODES_APPROVE_CHECK])
async def test_running_old_voter_is_not_replaced(route: Route[Any]) -> None:
    """Given an old node-4 without gossip contact, when Raft reaches it, then it counts as running."""
    stage = OldFarm({2, 3, LOST})
    stage.farm = replace(stage.farm, in_contact=lambda *_: False)
    with pytest.raises(Refused, match=r"this approval needs feature level 2.*node-4 runs"):
        await _approve_successor(stage, route)
    assert stage.requested == []


async def test_check_permits_replacement_of_lost_old_voter() -> None:
    assert isinstance(await _approve_successor(OldFarm({2, 3}), NODES_APPROVE_CHECK), CheckedAnswer)


async def test_eviction_of_running_old_voter_raises_level() -> None:
    stage = OldFarm({2, 3, LOST})
    await reach_level(stage.farm, EVICTION)
    assert stage.state.level == EVICTION_LEVEL


async def test_level_without_reply_is_unknown() -> None:
    stage = OldFarm({2, 3})
    stage.outcome = Outcome.UNKNOWN
    with pytest.raises(Refused, match="`garlicfarm status` shows whether the farm has feature level 2") as caught:
        await reach_level(stage.farm, REMOVAL)
    assert (caught.value.status, caught.value.code) == (504, "unknown")


async def _slow(_: tuple[bytes, ...]) -> Any:
    await trio.sleep_forever()


async def _busy(_: tuple[bytes, ...]) -> Any:
    raise ServerBusyError("64 proposals wait")


async def _stopped(_: tuple[bytes, ...]) -> Any:
    raise ServerStoppedError("its disk is full")


@pytest.mark.parametrize(
    ("propose", "status", "code", "text"),
    [
        (_slow, 504, "unknown", f"longer than {COMMIT_PATIENCE_S:.0f} s. The outcome is unknown: see"),
        (_stopped, 504, "unknown", "this node stops: its disk is full. The outcome is unknown: see"),
        (_busy, 503, "busy", "64 proposals wait; try again"),
    ],
)
async def test_failed_commit_reports_what_is_known(
    autojump_clock: MockClock, propose: Any, status: int, code: str, text: str
) -> None:
    del autojump_clock
    stage = OldFarm({2, 3})
    stage.propose = propose  # type: ignore[method-assign]
    with pytest.raises(Refused, match=text) as caught:
        await commit_as_leader(stage.farm, Eviction(identity(LOST), 1, ()), "see")
    assert (caught.value.status, caught.value.code) == (status, code)


@pytest.mark.parametrize("outcome", [Outcome.NOT_LEADER, Outcome.BUSY])
async def test_refused_commit_is_not_unknown(outcome: Outcome) -> None:
    stage = OldFarm({2, 3})
    stage.outcome = outcome
    with pytest.raises(Refused, match="the entry was not written; try again") as caught:
        await commit_as_leader(stage.farm, Eviction(identity(LOST), 1, ()), "see")
    assert caught.value.status == 503
