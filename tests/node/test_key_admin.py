"""The key commands of an operator through a node: install, use and remove keys, also with unreachable nodes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from msgspec.structs import replace

from bridge.api.control import FarmKeyState, Refused
from bridge.api.view import AlarmView, FarmView, Phase, RaftRole, ServerRole, VoterView
from bridge.core.formation.member import MemberStatus, NodeMetadata, RoleHint
from bridge.node.control.key_admin import GossipKeyAdmin
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import CurrentFarm
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import save_farm_key
from bridge.wire.keys.farm_key import new_farm_key, parse_farm_key
from bridge.wire.membership.metadata import encode_metadata
from consensus import NotLeaderError
from gossip.core.keyring import key_id
from gossip.node.group import Group
from tests.node.gossip_farm import in_simulated_time, next_event, running_farm, until_all_see_all
from tests.node.gossip_network import MemoryNetwork
from tests.node.partial_farm import partial_farm
from tests.operator_views import farm_view


@dataclass
class Stage:
    """Two agents, and the key admin of the first agent."""

    agents: list[Group]
    admin: GossipKeyAdmin
    farm_keys: FarmKeys
    trace: EventLog
    network: MemoryNetwork
    view: FarmView
    current: CurrentFarm = field(default_factory=CurrentFarm)


def all_alive(view: FarmView) -> FarmView:
    return replace(view, members=tuple(replace(each, status=MemberStatus.ALIVE) for each in view.members), alarms=())


@asynccontextmanager
async def staged(directory: Path) -> AsyncIterator[Stage]:
    farm_key = new_farm_key(2)
    save_farm_key(directory / "farm.key", farm_key)
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agents = await farm.start_many(2, keyring=farm_key.key_ring)
        agents[1].set_metadata(encode_metadata(NodeMetadata(cluster="farm", name="boris", role=RoleHint.ELIGIBLE)))
        await until_all_see_all(agents)
        trace = EventLog("alice", lambda: 0)
        farm_keys = FarmKeys(directory / "farm.key", farm_key, lambda: agents[0].keyring)
        member_directory = MemberDirectory(agents[0].node_id, "alice", agents[0].members)
        stage = Stage(agents, None, farm_keys, trace, network, all_alive(farm_view()))  # type: ignore[arg-type] # next line

        async def catch_up() -> None:
            await stage.current.required().catch_up()

        stage.admin = GossipKeyAdmin(
            agents[0], member_directory, farm_keys, lambda: stage.view, trace, stage.current, catch_up
        )
        while not any(each.info.metadata for each in agents[0].members()):
            await next_event(agents[0])
        member_directory.refresh()
        yield stage


@in_simulated_time
async def test_stepwise_rotation_updates_file_and_trace_without_keys(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        admin = stage.admin
        before = await admin.listing()
        assert (before.members, before.epoch, before.file_epoch, before.refused) == (2, 1, 1, False)
        new = await admin.install()
        await admin.use(new, force=False)
        await admin.remove(before.primary, force=False)
        after = await admin.listing()
        assert [(each.key_id, each.state, each.opened_by, each.sealed_by) for each in after.keys] == [
            (new, FarmKeyState.PRIMARY, 2, 2),
            (before.primary, FarmKeyState.REMOVED, 0, 0),
        ]
        stage.view = without_role(Phase.FORMING, running=2)
        exported = parse_farm_key(await admin.export())
        assert key_id(exported.gossip_keys[0]).hex() == new
        assert exported.key_ring.merge(stage.farm_keys.filed.key_ring).primary == exported.gossip_keys[0]
        events = stage.trace.recent(10)
        assert [each.kind for each in events] == ["key-installed", "key-used", "key-removed", "keys-exported"]
        assert exported.gossip_keys[0].hex() not in str(events)


@in_simulated_time
async def test_unresponsive_member_blocks_next_step_by_name(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.network.cut_off.add(stage.agents[1].info.address)
        new = await stage.admin.install()
        stage.admin._room.survey_timeout_s = 0.1  # the survey runs before the member is declared dead
        listing = await stage.admin.listing()
        assert listing.silent == ("boris",)
        assert listing.keys[1].missing == ("boris",)
        with pytest.raises(Refused, match=r"boris did not confirm that key .* installed") as refused:
            await stage.admin.use(new, force=False)
        assert (refused.value.status, refused.value.code) == (409, "not-everywhere")
        await stage.admin.use(new, force=True)


@in_simulated_time
async def test_removal_is_refused_while_voter_or_member_is_down(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        old = (await stage.admin.listing()).primary
        await stage.admin.use(await stage.admin.install(), force=False)
        members = stage.view.members
        left = replace(members[4], status=MemberStatus.LEFT)
        observer = replace(members[3], status=MemberStatus.DEAD, name="attic", raft_id=None)
        superseded = replace(observer, name="renewed", address=members[0].address)
        foreign_node = replace(observer, node_id="99" * 8, name="not of this farm", server_role=ServerRole.NONE)
        evicted = replace(observer, node_id="98" * 8, name="stolen", evicted=True)
        voters_down_and_dead = (*members[:3], left, observer, superseded, foreign_node, evicted)
        voters = (*stage.view.raft.voters, VoterView(9, "10.0.0.9:7669", "also stolen", evicted=True))
        stage.view = replace(stage.view, members=voters_down_and_dead, raft=replace(stage.view.raft, voters=voters))
        listing = await stage.admin.listing()
        assert listing.absent == ("attic", "node-4", "node-5"), "foreign and evicted nodes do not count"
        with pytest.raises(Refused, match="no key has the id 'bad'"):
            await stage.admin.remove("bad", force=False)
        with pytest.raises(Refused, match="attic, node-4, node-5 are down") as refused:
            await stage.admin.remove(old, force=False)
        await stage.admin.check_removal(old, force=True)
        assert "garlicfarm keys export" in str(refused.value)
        await stage.admin.remove(old, force=True)
        assert (await stage.admin.listing()).keys[1].state is FarmKeyState.REMOVED


@in_simulated_time
async def test_node_without_majority_refuses_forced_key_changes(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        own, *others = stage.view.members
        voters = len(stage.view.raft.voters)
        new = await stage.admin.install()
        for alive in (1, voters // 2, voters // 2 + 1):
            down = (replace(each, status=MemberStatus.DEAD) for each in others[alive - 1 :])
            stage.view = replace(stage.view, members=(own, *others[: alive - 1], *down))
            if 2 * alive > voters:
                await stage.admin.use(new, force=True)
                continue
            for refused in (
                stage.admin.install(),
                stage.admin.use(new, force=True),
                stage.admin.remove(new, force=True),
            ):
                with pytest.raises(Refused, match=rf"reaches only {alive} of {voters} voters") as refusal:
                    await refused
                assert refusal.value.code == "no-majority"
            assert len((await stage.admin.listing()).keys) == 2


def without_role(phase: Phase, *, running: int, is_created: bool = False) -> FarmView:
    """Return the view of a node without a log, in a farm of three; `running` nodes are alive, itself included."""
    view = all_alive(farm_view(servers=3))
    roleless = tuple(
        replace(
            each,
            status=MemberStatus.ALIVE if number < running else MemberStatus.DEAD,
            raft_id=each.raft_id if is_created and number else None,
            server_role=ServerRole.NONE,
        )
        for number, each in enumerate(view.members)
    )
    raft = replace(view.raft, role=RaftRole.NONE, voters=(), learners=())
    return replace(view, node=replace(view.node, phase=phase, raft_id=None), members=roleless, raft=raft)


def learner(*, running: int) -> FarmView:
    """Return the view of a learner and three voters; `running` of the voters are alive."""
    view = all_alive(farm_view(4, servers=3))
    own = replace(view.members[0], node_id="4" * 16, name="node-4", raft_id=4, server_role=ServerRole.LEARNER)
    down = (replace(each, status=MemberStatus.DEAD) for each in view.members[running:])
    return replace(view, members=(*view.members[:running], *down, own))


@pytest.mark.parametrize(
    ("view", "refusal"),
    [
        (learner(running=1), "reaches only 1 of 3 voters"),
        (learner(running=2), None),
        (without_role(Phase.OBSERVER, running=3), "run the command at a server"),
        (without_role(Phase.FOUNDED, running=3), "wait until the farm admits this node"),
        (without_role(Phase.DISCOVERING, running=3, is_created=True), "run the command at a server"),
        (without_role(Phase.DISCOVERING, running=1), "reaches only 1 of 3 nodes that create the farm"),
        (without_role(Phase.FORMING, running=2), None),
    ],
)
@in_simulated_time
async def test_node_without_vote_needs_majority_for_keys(tmp_path: Path, view: FarmView, refusal: str | None) -> None:
    async with staged(tmp_path) as stage:
        stage.view = view
        if refusal is None:
            assert await stage.admin.install()
            return
        key = (await stage.admin.listing()).primary
        for step in (stage.admin.install(), stage.admin.use(key, force=True), stage.admin.remove(key, force=True)):
            with pytest.raises(Refused, match=refusal) as refused:
                await step
            assert refused.value.code == "no-majority"


@in_simulated_time
async def test_node_with_removed_keys_changes_and_exports_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.view = replace(stage.view, alarms=(AlarmView("key-retired", "refused", "copy the key"),))
        listing = await stage.admin.listing()
        assert listing.refused
        for step in (
            stage.admin.install,
            stage.admin.export,
            lambda: stage.admin.use(listing.primary, force=True),
            lambda: stage.admin.remove(listing.primary, force=True),
        ):
            with pytest.raises(Refused, match="query another node of the farm"):
                await step()


@in_simulated_time
async def test_invalid_step_is_refused_with_reason(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        primary = (await stage.admin.listing()).primary
        for step, reason in (
            (stage.admin.use("00000000", force=False), "no key has the id '00000000'"),
            (stage.admin.check_removal("00000000", force=False), "no key has the id '00000000'"),
            (stage.admin.remove(primary, force=False), "in use"),
        ):
            with pytest.raises(Refused, match=reason):
                await step


class Server:
    """Replica, server and identities of a server; its log has a new era."""

    leads = True
    """True also if another server leads and this former leader does not know it yet."""

    def __init__(self, failure: Exception | None) -> None:
        self.server = self.identities = self
        self.state = SimpleNamespace(rekeying=SimpleNamespace(era=1))
        self._failure = failure

    async def read_barrier(self) -> int:
        await trio.lowlevel.checkpoint()
        if self._failure is not None:
            raise self._failure
        return 1

    async def wait_era(self) -> None:
        await trio.sleep_forever()


@pytest.mark.parametrize(
    ("failure", "text"), [(NotLeaderError(2), "no leader has confirmed"), (None, "has not stored the new key within")]
)
@in_simulated_time
async def test_outdated_key_is_not_exported(tmp_path: Path, failure: Exception | None, text: str) -> None:
    async with staged(tmp_path) as stage:
        node = Server(failure)
        with (
            stage.current.of(partial_farm(node, replica=node, identities=node)),
            pytest.raises(Refused, match=text) as refused,
        ):
            await stage.admin.export()
        assert refused.value.status == 503
        assert ("--unconfirmed" in str(refused.value)) == (failure is not None)


@in_simulated_time
async def test_unconfirmed_key_is_exported_without_leader(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        node = Server(NotLeaderError(2))
        node.wait_era = trio.lowlevel.checkpoint  # type: ignore[method-assign] # all keys are stored
        with stage.current.of(partial_farm(node, replica=node, identities=node)):
            exported = parse_farm_key(await stage.admin.export(unconfirmed=True))
        assert exported == stage.farm_keys.exported
        [event] = stage.trace.recent(10)
        assert (event.kind, event.data) == ("keys-exported", {"epoch": 1, "unconfirmed": True})


@in_simulated_time
async def test_unstored_key_is_not_exported_unconfirmed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        node = Server(NotLeaderError(2))
        with (
            stage.current.of(partial_farm(node, replica=node, identities=node)),
            pytest.raises(Refused, match="has not stored the new key within"),
        ):
            await stage.admin.export(unconfirmed=True)


@pytest.mark.parametrize("phase", [Phase.OBSERVER, Phase.FOUNDED])
@in_simulated_time
async def test_node_without_server_exports_no_key(tmp_path: Path, phase: Phase) -> None:
    async with staged(tmp_path) as stage:
        stage.view = without_role(phase, running=3)
        with pytest.raises(Refused, match=r"not a server of a farm yet.* use a voter"):
            await stage.admin.export()
        assert await stage.admin.export(unconfirmed=True)
