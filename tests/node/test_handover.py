"""Transfer of leadership: to a named server, from any leader, and before a clean stop."""

from dataclasses import dataclass
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from bridge.api.control import Refused
from bridge.api.view import VoterView
from bridge.node.raft.handover import EXPLAINED, STOP_PATIENCE_SECONDS, hand_over, hand_over_before_stop
from bridge.node.raft.replica import Replica
from consensus.core.effects import Role, RoleChanged, TransferEnded, TransferOutcome
from consensus.core.model import ServerId
from consensus.server.errors import ServerBusyError

VOTERS = (VoterView(1, "tcp://one", "node-1"), VoterView(2, "tcp://two", "node-2"), VoterView(3, "tcp://three"))


@dataclass
class Serving:
    """A replica that is its own server, with scripted ends of transfers."""

    outcome: TransferOutcome = TransferOutcome.DONE
    leader: int | None = 2
    leads: bool = True
    busy: bool = False
    delay_s: float = 0
    target: ServerId | str | None = "not called"

    @property
    def role(self) -> RoleChanged:
        """Return the role after a transfer."""
        return RoleChanged(Role.FOLLOWER, 7, 2)

    @property
    def server(self) -> "Serving":
        return self

    async def transfer_leadership(self, target: ServerId | None = None) -> TransferEnded:
        self.target = target
        await trio.sleep(self.delay_s)
        if self.busy:
            raise ServerBusyError("much to do")
        return TransferEnded(1, self.outcome, None if self.leader is None else self.leader)


async def hand_over_to(serving: Serving, to: str | None) -> str:
    return await hand_over(cast(Replica, serving), VOTERS, to)


@pytest.mark.parametrize(("to", "target"), [("node-2", 2), ("3", 3), (None, None)])
async def test_successor_is_given_by_name_raft_id_or_none(to: str | None, target: int | None) -> None:
    serving = Serving()
    assert await hand_over_to(serving, to) == "node-2"
    assert serving.target == target


async def test_unknown_successor_is_refused_with_known_names() -> None:
    serving = Serving()
    with pytest.raises(Refused, match="there are node-1, node-2, server 3"):
        await hand_over_to(serving, "node-9")
    assert serving.target == "not called"


@pytest.mark.parametrize("outcome", [outcome for outcome in TransferOutcome if outcome is not TransferOutcome.DONE])
async def test_failed_transfer_is_explained(outcome: TransferOutcome) -> None:
    with pytest.raises(Refused) as refused:
        await hand_over_to(Serving(outcome), None)
    assert refused.value.code == f"transfer-{outcome.value}"
    assert str(refused.value) == EXPLAINED[outcome].format(leader="node-2")


async def test_busy_server_reports_it() -> None:
    with pytest.raises(Refused, match="much to do"):
        await hand_over_to(Serving(busy=True), None)


async def test_clean_stop_of_leader_waits_for_successor_with_limit(autojump_clock: MockClock) -> None:
    assert await hand_over_before_stop(cast(Replica, Serving())) == {"leader": 2, "term": 7, "leaderName": None}
    assert not await hand_over_before_stop(cast(Replica, Serving(busy=True)))
    follower = Serving(leads=False)
    assert not await hand_over_before_stop(cast(Replica, follower))
    assert follower.target == "not called"
    before_s = trio.current_time()
    assert not await hand_over_before_stop(cast(Replica, Serving(delay_s=60)))
    assert trio.current_time() - before_s == pytest.approx(STOP_PATIENCE_SECONDS)
