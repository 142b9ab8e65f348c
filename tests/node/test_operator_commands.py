"""Commands of operators through a node: names and addresses are resolved, and the state machine grants or refuses."""

import json
from typing import Any, cast

import pytest
from msgspec import structs
from msgspec.structs import replace

from bridge.api.control import Refused, SubmitAnswer, SubmitOutcome
from bridge.api.control_routes import COMMANDS
from bridge.api.requests import CommandRequest
from bridge.api.view import FarmView, PublishingView, VoterView
from bridge.core.log.feature_level import FIRST_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Admission, Approval, CostFactor, Exclusion, Force, Level, Record, Removal
from bridge.node.control.operator_commands import OperatorCommands
from bridge.node.control.routes import body_of
from bridge.wire.log.entries import decode
from tests.authored import signed
from tests.node.farm_stage import LEAF, MASTER, NODE_IDS, Stage, clock_now_ms, rival_report
from tests.operator_views import farm_view

MASTER_ADDRESS, LEAF_ADDRESS = MASTER.destination.address, LEAF.address
pytestmark = pytest.mark.usefixtures("machine_clock")


class CommandNode:
    """A stage with a farm of three voters in its log, and a node that receives commands."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.outcome: SubmitAnswer | None = None
        self.view: FarmView = farm_view()

    async def found(self) -> None:
        """Admit four identities, three of them voters; server 2 has reported and publishes."""
        for number, each in enumerate((*NODE_IDS, b"newcomer"), start=1):
            await self.stage.append(signed(Admission(each, f"node-{number}", server_id=number)))
        await self.stage.append(signed(Level(2, "0.1.0")))
        await self.stage.append_record(rival_report())
        voters = tuple(VoterView(each, "tcp://x:1", f"node-{each}") for each in (1, 2, 3, 4))
        self.view = replace(
            self.view,
            farm=replace(self.view.farm, expect=3),
            raft=replace(self.view.raft, voters=voters, learners=(), leader_id=1),
            publishing=(PublishingView(MASTER_ADDRESS, 2, "node-2", "score 900"),),
        )

    async def submit(self, entry: bytes) -> SubmitAnswer:
        """Submit like the node: reply when the entry is applied."""
        if self.outcome is not None:
            return self.outcome
        await self.stage.append(self.stage.signer.sign_for_operator(entry))
        return SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=len(self.stage.log), term=1)

    async def grant(self, command: Any) -> str:
        body = command if isinstance(command, bytes) else json.dumps(command).encode()
        request = cast("CommandRequest", body_of(COMMANDS, body))
        return (await OperatorCommands(self.view, self.stage.applied_state, self.submit).grant(request)).text

    async def refusal(self, command: Any) -> tuple[int, str, str]:
        """Return status, code and text of a refusal."""
        with pytest.raises(Refused) as caught:
            await self.grant(command)
        return caught.value.status, caught.value.code, str(caught.value)

    @property
    def last(self) -> Record:
        return decode(self.stage.log[-1])


@pytest.fixture
async def node() -> CommandNode:
    made = CommandNode()
    await made.found()
    return made


async def test_leaf_is_named_by_address_or_destination(node: CommandNode) -> None:
    for name in (LEAF_ADDRESS, LEAF_ADDRESS.removesuffix(".b32.i2p"), LEAF.base64):
        text = await node.grant({"cost": {"hash": name, "factor": 1.5}})
        assert text == f"{LEAF_ADDRESS} has the factor 1.5"
        assert node.last == CostFactor(hash_of(LEAF.base64), 1.5)


async def test_unreported_leaf_is_excluded_in_advance(node: CommandNode) -> None:
    other = "a" * 52
    assert "no server reports this leaf now" in await node.grant({"exclusion": {"hash": other, "excluded": True}})
    assert node.last == Exclusion(other, excluded=True)
    assert await node.grant({"exclusion": {"hash": other, "excluded": False}}) == f"{other}.b32.i2p is listed again"
    status, code, _ = await node.refusal({"exclusion": {"hash": other, "excluded": False}})
    assert (status, code) == (409, "not-excluded")


async def test_refusal_of_state_machine_has_its_reason(node: CommandNode) -> None:
    command = {"exclusion": {"hash": LEAF_ADDRESS, "excluded": True}}
    status, code, text = await node.refusal(command)
    assert (status, code) == (409, "command-refused")
    assert "no leaf would remain" in text
    status, _, text = await node.refusal({"cost": {"hash": LEAF_ADDRESS, "factor": 11}})
    assert (status, text) == (409, "the factor 11 is not within 0.1 to 10")


async def test_master_is_forced_by_its_address(node: CommandNode) -> None:
    assert (await node.grant({"force": {"master": MASTER_ADDRESS}})).startswith(
        f"node-2 publishes {MASTER_ADDRESS} again"
    )
    assert node.last == Force(MASTER.destination.base64)
    status, code, text = await node.refusal({"force": {"master": LEAF_ADDRESS}})
    assert (status, code) == (404, "no-such-master")
    assert MASTER_ADDRESS in text


async def test_master_without_publisher_is_not_forced(node: CommandNode) -> None:
    [shown] = node.view.publishing
    node.view = replace(node.view, publishing=(replace(shown, publisher_id=None, reason="no server can publish"),))
    before = len(node.stage.log)
    status, code, text = await node.refusal({"force": {"master": MASTER_ADDRESS}})
    assert (status, code) == (409, "no-publisher")
    assert "no server can publish" in text
    assert len(node.stage.log) == before


async def test_server_is_removed_by_name_or_id_and_may_return(node: CommandNode) -> None:
    for name in ("node-3", "3", NODE_IDS[2].hex()):
        assert await node.grant({"removal": {"server": name, "removed": True}}) == "node-3 is removed from the group"
        assert node.last == Removal(3, removed=True)
        assert await node.grant({"removal": {"server": name, "removed": False}}) == "node-3 may join again"
    status, code, text = await node.refusal({"removal": {"server": "node-9", "removed": True}})
    assert (status, code) == (404, "no-such-server")
    assert "node-1, node-2, node-3, node-4" in text


async def test_name_selects_successor_of_retired_identity(node: CommandNode) -> None:
    await node.stage.append(signed(Approval(b"restored", "node-3", replaces=NODE_IDS[2], server_id=5)))
    assert (
        node.stage.applied_state.state.admitted[5].name == node.stage.applied_state.state.admitted[3].name == "node-3"
    )
    await node.grant({"removal": {"server": "node-3", "removed": True}})
    assert node.last == Removal(5, removed=True)
    await node.grant({"removal": {"server": "3", "removed": True}})
    assert node.last == Removal(3, removed=True)


async def test_name_selects_older_identity_that_took_it_over(node: CommandNode) -> None:
    await node.stage.append(signed(Approval(NODE_IDS[1], "node-3", replaces=NODE_IDS[2], server_id=2)))
    await node.grant({"removal": {"server": "node-3", "removed": True}})
    assert node.last == Removal(2, removed=True)


async def test_removal_of_leader_mentions_transfer(node: CommandNode) -> None:
    text = await node.grant({"removal": {"server": "node-1", "removed": True}})
    assert text == "node-1 hands over leadership and is then removed"


async def test_removal_below_minimum_is_refused_before_log(node: CommandNode) -> None:
    node.view = replace(node.view, raft=replace(node.view.raft, voters=node.view.raft.voters[:3]))
    before = len(node.stage.log)
    status, code, text = await node.refusal({"removal": {"server": "node-3", "removed": True}})
    assert (status, code) == (409, "too-few-voters")
    assert "first run `garlicfarm invite new`" in text
    assert len(node.stage.log) == before
    # Given a learner, which gets a vote before the removed server leaves
    learner = VoterView(4, "tcp://x:1", "node-4")
    node.view = replace(node.view, raft=replace(node.view.raft, learners=(learner,)))
    text = await node.grant({"removal": {"server": "node-3", "removed": True}})
    assert text == "node-3 is removed from the group, after another server has got its vote"


async def test_repeated_removal_and_unneeded_return_are_refused(node: CommandNode) -> None:
    await node.grant({"removal": {"server": "node-4", "removed": True}})
    node.view = replace(node.view, raft=replace(node.view.raft, voters=node.view.raft.voters[:3]))
    assert (await node.refusal({"removal": {"server": "node-4", "removed": True}}))[1] == "removed-already"
    assert (await node.refusal({"removal": {"server": "node-3", "removed": False}}))[1] == "not-removed"


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (SubmitOutcome.REFUSED, 409),
        (SubmitOutcome.BUSY, 503),
        (SubmitOutcome.UNKNOWN, 504),
        (SubmitOutcome.EXPIRED, 410),
    ],
)
async def test_uncommitted_command_is_not_granted(node: CommandNode, outcome: SubmitOutcome, status: int) -> None:
    node.outcome = SubmitAnswer(outcome=outcome, reason="no leader")
    found = await node.refusal({"cost": {"hash": LEAF_ADDRESS, "factor": 2}})
    assert found == (status, outcome.value, "no leader")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'"force"',
        b"\xff",
        b'{"force":{}}',
        b'{"weather":{}}',
        b'{"cost":{"hash":"x","factor":"2"}}',
        b'{"cost":{"hash":"x","factor":2,"why":1}}',
        b'{"exclusion":{"hash":"x","excluded":true},"force":{"master":"x"}}',
        b'{"force":' + b"[" * 50_000,
    ],
)
async def test_malformed_command_error_lists_forms(node: CommandNode, body: bytes) -> None:
    status, code, text = await node.refusal(body)
    assert (status, code) == (400, "bad-request")
    assert '{"removal": {"server": SERVER, "removed": true}}' in text


async def test_command_above_feature_level_is_refused() -> None:
    node = CommandNode()
    await node.stage.append_record(rival_report())
    before = len(node.stage.log)
    status, code, _ = await node.refusal({"cost": {"hash": LEAF_ADDRESS, "factor": 2}})
    assert (status, code) == (409, "level-too-low")
    assert len(node.stage.log) == before


async def test_removal_is_permitted_below_its_feature_level(node: CommandNode) -> None:
    farm = node.stage.applied_state.farm
    farm.state = replace(farm.state, level=FIRST_LEVEL)
    body = b'{"removal": {"server": "node-4", "removed": true}}'
    request = cast("CommandRequest", body_of(COMMANDS, body))
    _, record, _ = OperatorCommands(node.view, node.stage.applied_state, node.submit).check(request)
    assert record == Removal(4, removed=True)


async def test_master_is_refused_as_leaf(node: CommandNode) -> None:
    for command in (
        {"exclusion": {"hash": MASTER_ADDRESS, "excluded": True}},
        {"cost": {"hash": MASTER_ADDRESS, "factor": 2}},
    ):
        assert (await node.refusal(command))[:2] == (409, "a-master")


async def test_order_of_client_key_about_a_master_is_undone(node: CommandNode) -> None:
    """A client key may write such entries, because only the node of an operator's command refuses them."""
    master = MASTER_ADDRESS.removesuffix(".b32.i2p")
    await node.stage.append(signed(Exclusion(master, excluded=True)))
    await node.stage.append(signed(CostFactor(master, 2.0)))
    await node.grant({"exclusion": {"hash": master, "excluded": False}})
    await node.grant({"cost": {"hash": master, "factor": 1}})
    weights = node.stage.applied_state.state.weights
    assert master not in weights.excluded
    assert master not in weights.costs


async def test_name_that_is_not_an_address_is_refused(node: CommandNode) -> None:
    for command, listed in (
        ({"cost": {"hash": "example.i2p", "factor": 2}}, "leaves"),
        ({"force": {"master": "example.i2p"}}, "masters"),
    ):
        status, code, text = await node.refusal(command)
        assert (status, code) == (400, "bad-hash")
        assert "'example.i2p'" in text
        assert text.endswith(f"`garlicfarm farm` lists the {listed}")


async def test_operator_corrects_log_time_far_ahead() -> None:
    node = CommandNode()
    await node.found()
    node.view = replace(node.view, node=replace(node.view.node, raft_id=1))
    stage = node.stage
    own = structs.replace(rival_report(), server_id=1, request=None)
    await stage.append_record(own)
    with pytest.raises(Refused, match="up to 55 s ahead it waits for them automatically"):
        await node.grant({"correction": {}})
    stage.applied_state.farm.state = structs.replace(stage.applied_state.state, log_time_ms=clock_now_ms() + 1_000_000)
    text = await node.grant({"correction": {}})
    assert text.startswith("log time goes back by ")
    assert text.endswith(" s, to the clocks of a majority of the voters")
    assert abs(stage.applied_state.state.log_time_ms - clock_now_ms()) < 5_000
    assert stage.applied_state.moments.time_at(len(stage.log)) == stage.applied_state.state.log_time_ms
    assert stage.events("log-time-corrected") == 1


async def test_log_time_correction_needs_reports_of_majority() -> None:
    node = CommandNode()
    await node.found()
    with pytest.raises(Refused, match="no majority of the voters reported recently"):
        await node.grant({"correction": {}})
