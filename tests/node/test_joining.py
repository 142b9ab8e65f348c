"""Servers come and go by the document's own words: AddServer, JoinCluster, log packs or a snapshot, LeaveCluster."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import trio

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Outcome
from consensus.core.model import Configuration as Members
from consensus.core.model import Entry, Server, ServerId
from consensus.core.options import Options
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.client_connection import Lost
from consensus.protocols.garlic_farm.node.membership import MemberRequests, MembershipOptions
from consensus.protocols.garlic_farm.node.membership_client import ask_to_add, ask_to_remove, join
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, LogEntry, LogPack
from tests.node.loopback_group import CALM, PATIENT, Life, LoopbackGroup, Service, until
from tests.node.words_only_server import WordsOnlyServer

LONG_S = 120
ELECTING = replace(PATIENT, election_timeout_min_ms=1_000, election_timeout_max_ms=1_500)
FOURTH, FIFTH = 4, 5


@asynccontextmanager
async def group(
    path: Path, make_service: Callable[[], Service] = Service, options: Options = CALM
) -> AsyncIterator[tuple[LoopbackGroup, GarlicFarmClient, trio.Nursery]]:
    """Three servers that run, and a client that knows nothing but the document."""
    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            servers = LoopbackGroup(path, nursery, make_service=make_service, options=options, eager=True)
            for server_id in servers.ids:
                await servers.start(server_id)
            client = servers.client(offered=())
            await nursery.start(client.run)
            yield servers, client, nursery
            nursery.cancel_scope.cancel()


async def speaker(servers: LoopbackGroup, nursery: trio.Nursery, server_id: int) -> GarlicFarmClient:
    """What a server itself says, of another make: it proves who it is, and knows nothing but the document."""
    client = servers.client(offered=(), server_id=server_id)
    await nursery.start(client.run)
    return client


async def submit(client: GarlicFarmClient, commands: list[bytes]) -> None:
    for first in range(0, len(commands), 100):
        found = await client.submit(commands[first : first + 100])
        assert found.outcome is Outcome.COMMITTED, found


async def leading(servers: LoopbackGroup) -> Life:
    return servers.lives[await servers.leader()]


async def until_members(life: Life, *members: int) -> None:
    def settled() -> bool:
        raft = life.server.describe().raft
        return raft.configuration.voter_ids == set(members) and raft.change is None

    await until(settled)


async def until_level(leader: Life) -> None:
    """No member needs the leader's log any more, so that a snapshot which replaces it is for newcomers only."""

    def level() -> bool:
        raft = leader.server.describe().raft
        return all(each.match == raft.last.index for each in raft.followers)

    await until(level)


async def test_a_server_that_knows_the_document_alone_joins_by_log_packs_and_is_removed(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        # given a log of some length, and a server of another make
        before = [b"before %d" % number for number in range(1500)]
        await submit(client, before)
        stranger = WordsOnlyServer(FOURTH, tmp_path / "stranger")
        servers.strangers[FOURTH] = await nursery.start(stranger.listen)
        # when it asks to be added
        asked = await ask_to_add(client, ClusterServer(FOURTH, "tcp://127.0.0.1:4"))
        assert asked.begun, asked.reason
        # then the leader connects to it, invites it, and hands it the log in packs before it is a member
        leader = await leading(servers)
        await until_members(leader, 1, 2, 3, 4)
        assert stranger.invited_to == (1, 2, 3)
        packs = [name for name in stranger.heard if name != "AppendEntriesRequest"]
        assert packs[:2] == ["JoinClusterRequest", "SyncLogRequest"]
        # and from there on it is a follower like the others
        after = [b"after %d" % number for number in range(200)]
        await submit(client, after)
        await stranger.until(lambda: len(stranger.commands()) == len(before + after))
        assert stranger.commands() == before + after
        assert stranger.members == (1, 2, 3, 4)
        # when it asks to be removed, it is told, and the cluster goes on without it
        gone = await ask_to_remove(await speaker(servers, nursery, FOURTH), FOURTH)
        assert gone.begun, gone.reason
        await until_members(await leading(servers), 1, 2, 3)
        assert stranger.ordered_to_leave
        await submit(client, [b"without it"])
        assert (
            leader.metrics.counts[ConnectionEvent.SERVERS_ADDED]
            == leader.metrics.counts[ConnectionEvent.SERVERS_REMOVED]
            == 1
        )


async def test_a_server_that_knows_the_document_alone_joins_by_snapshot_where_the_log_is_gone(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(300)])
        leader = await leading(servers)
        await until_level(leader)
        taken = await leader.server.take_snapshot()
        assert taken is not None
        await submit(client, [b"tail"])
        stranger = WordsOnlyServer(FIFTH, tmp_path / "stranger")
        servers.strangers[FIFTH] = await nursery.start(stranger.listen)
        await ask_to_add(client, ClusterServer(FIFTH, "tcp://127.0.0.1:5"))
        await until_members(leader, 1, 2, 3, 5)
        assert "InstallSnapshotRequest" in stranger.heard
        assert stranger.start[0] >= taken.last.index
        await submit(client, [b"end"])
        await stranger.until(lambda: stranger.commands()[-1:] == [b"end"])


class Bulky(Service):
    """Its snapshot is many chunks long."""

    def snapshot(self) -> Iterator[bytes]:
        """Noise, which is the same each time."""
        return iter((Random(1).randbytes(600_000),))


async def test_a_snapshot_goes_on_where_a_broken_connection_left_it(tmp_path: Path) -> None:
    async with group(tmp_path, Bulky) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(10)])
        leader = await leading(servers)
        await until_level(leader)
        assert await leader.server.take_snapshot() is not None
        stranger = WordsOnlyServer(FIFTH, tmp_path / "stranger", breaks_at={"InstallSnapshotRequest"})
        servers.strangers[FIFTH] = await nursery.start(stranger.listen)
        await ask_to_add(client, ClusterServer(FIFTH, "tcp://127.0.0.1:5"))
        await until_members(leader, 1, 2, 3, 5)
        assert stranger.breaks_at == set()
        assert stranger.counted["JoinClusterRequest"] == 2
        # every chunk came once, in order, although two connections brought them
        assert stranger.offsets == sorted(set(stranger.offsets))
        assert len(stranger.offsets) > 5
        snapshot = leader.server.describe().raft.snapshot
        assert snapshot is not None
        assert len(stranger.snapshot) == snapshot.size_bytes


async def test_log_packs_go_on_where_a_broken_connection_left_them(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        before = [b"%d" % number for number in range(2500)]
        await submit(client, before)
        stranger = WordsOnlyServer(FOURTH, tmp_path / "stranger", breaks_at={"SyncLogRequest"})
        servers.strangers[FOURTH] = await nursery.start(stranger.listen)
        await ask_to_add(client, ClusterServer(FOURTH, "tcp://127.0.0.1:4"))
        await until_members(await leading(servers), 1, 2, 3, 4)
        assert stranger.breaks_at == set()
        await stranger.until(lambda: stranger.commands() == before)


async def test_a_server_of_our_own_joins_by_the_same_words_and_then_asks_to_go(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(500)])
        life = await servers.start(FOURTH)
        own = await speaker(servers, nursery, FOURTH)
        # when it asks until its own log names it
        await join(own, life.server, ClusterServer(FOURTH, servers.endpoint(FOURTH)), Random(4))
        leader = await leading(servers)
        await until_members(leader, 1, 2, 3, 4)
        assert life.members.joining.packs > 0
        await life.server.wait_applied(leader.server.commit_index)
        assert life.executed == leader.executed
        # then asking again is accepted and changes nothing
        again = await ask_to_add(own, ClusterServer(FOURTH, servers.endpoint(FOURTH)))
        assert again.begun
        assert leader.server.describe().raft.change is None
        # and a follower asks the leader to remove it
        assert (await ask_to_remove(own, FOURTH)).begun
        await until_members(leader, 1, 2, 3)


async def test_a_server_gets_the_log_without_a_vote_in_the_same_words(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, _):
        await submit(client, [b"%d" % number for number in range(1500)])
        life, leader = await servers.start(FOURTH), await leading(servers)
        requests = leader.members.requests
        added = await requests.add_learner(Server(FOURTH, servers.endpoint(FOURTH)))
        assert added is not None
        assert added.outcome is ChangeOutcome.COMMITTED
        await life.server.wait_applied(leader.server.commit_index)
        assert life.members.joining.packs > 0
        # when it is level, it is spoken to like any other
        await until(lambda: not leader.links.joining_peers)
        packs = life.members.joining.packs
        await submit(client, [b"end"])
        await until(lambda: life.executed[-1:] == [b"end"])
        assert life.members.joining.packs == packs
        # and one that cannot be reached is not made a member
        await servers.kill(FOURTH)
        assert await until_given_up(leader, Server(FIFTH, "tcp://absent:1")) is None
        assert FIFTH not in leader.server.describe().raft.configuration.member_ids


async def until_given_up(leader: Life, newcomer: Server) -> ConfigurationResolved | None:
    impatient = MembershipOptions(invitation_s=0.3)
    requests = MemberRequests(leader.server, 1, leader.links, AnyRules(), leader.metrics, impatient)
    return await requests.add_learner(newcomer)


class AnyRules:
    """Nothing is asked of them."""

    def may_add(self, server: Server) -> str:
        """Not asked."""
        raise AssertionError(server)

    def may_remove(self, server: ServerId, configuration: Members) -> str:
        """Not asked."""
        raise AssertionError(server, configuration)


async def test_a_leader_that_falls_in_the_midst_leaves_no_half_a_member(tmp_path: Path) -> None:
    async with group(tmp_path, options=ELECTING) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(2000)])
        first = await servers.leader()
        life = await servers.start(FOURTH)
        own = servers.client()
        await nursery.start(own.run)
        assert (await ask_to_add(own, ClusterServer(FOURTH, servers.endpoint(FOURTH)))).begun
        await servers.kill(first)
        # when the newcomer goes on asking, whichever server leads now
        await join(own, life.server, ClusterServer(FOURTH, servers.endpoint(FOURTH)), Random(4))
        await servers.start(first)
        await until_members(await leading(servers), 1, 2, 3, 4)
        await submit(client, [b"end"])
        await until(lambda: life.executed[-1:] == [b"end"])
        assert len(life.executed) == len(set(life.executed)) == 2001


async def test_what_cannot_be_done_is_refused_with_a_sentence_for_the_operator(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"x"])
        leader_id = await servers.leader()
        stranger = WordsOnlyServer(FOURTH, tmp_path / "stranger", catching_up=True)
        servers.strangers[FOURTH] = await nursery.start(stranger.listen)
        refused = [
            (await ask_to_add(client, ClusterServer(2, "tcp://elsewhere:1")), "belongs to a member"),
            (await ask_to_add(client, ClusterServer(9, "tcp://absent:1")), "no server listens"),
            (await ask_to_remove(await speaker(servers, nursery, 9), 9), "it is not a member"),
            (await ask_to_remove(await speaker(servers, nursery, leader_id), leader_id), "it leads; hand leadership"),
        ]
        texts = [incident.text for incident in servers.incidents if incident.fault is Fault.REFUSED_CHANGE]
        assert not any(asked.begun for asked, _ in refused)
        assert [reason in text for (_, reason), text in zip(refused, texts, strict=True)] == [True] * len(refused)
        leader = servers.lives[leader_id]
        assert leader.metrics.counts[Fault.REFUSED_CHANGE] == len(refused)
        # and one that does not take the invitation is not added: nothing was appended
        assert (await ask_to_add(client, ClusterServer(FOURTH, "tcp://127.0.0.1:4"))).begun
        await until(lambda: leader.metrics.counts[Fault.REFUSED_CHANGE] > len(refused))
        assert leader.server.describe().raft.configuration.voter_ids == {1, 2, 3}


async def test_a_leader_that_knows_the_document_alone_brings_a_server_of_ours_up(tmp_path: Path) -> None:
    """It tells no terms: the newcomer knows them from what it was given before, and says where to go on otherwise."""
    async with group(tmp_path) as (servers, _, nursery):
        life = await servers.start(FOURTH)
        client = await speaker(servers, nursery, STRANGE)
        # given a newcomer that was not invited: a pack is out of turn, and costs the connection
        assert await client.call(FOURTH, packed(0, 2, b"a")) is Lost.UNANSWERED
        assert [each.text for each in servers.incidents if each.fault is Fault.OUT_OF_TURN] == [
            "connection from 127.0.0.1 closed: a log pack of term 5 from server 9, which has not invited this server"
        ]
        # when it is invited, and given the log in packs
        invitation = wire.JoinClusterRequest(
            source=STRANGE,
            destination=FOURTH,
            term=5,
            last_log_term=0,
            last_log_index=3,
            commit_index=3,
            entries=(LogEntry(5, THEIRS),),
        )
        assert await said(client, invitation) == (True, 1)
        assert await said(client, packed(0, 2, THEIRS, b"a")) == (True, 3)
        assert await said(client, packed(2, 3, b"b")) == (True, 4)
        await life.server.wait_applied(3)
        assert life.executed == [b"a", b"b"]
        # then a pack at a place whose term it cannot know is refused, with the place that is wanted
        assert await said(client, packed(7, 8, b"c")) == (False, 4)
        # a second invitation goes on where the first has come to
        assert await said(client, invitation) == (True, 4)
        # its leader may tell it to leave; no other server can
        assert await said(
            client,
            wire.LeaveClusterRequest(
                source=STRANGE, destination=FOURTH, term=5, last_log_term=0, last_log_index=3, commit_index=3
            ),
        ) == (True, 4)
        other = await speaker(servers, nursery, 8)
        assert await said(
            other,
            wire.LeaveClusterRequest(
                source=8, destination=FOURTH, term=5, last_log_term=0, last_log_index=3, commit_index=3
            ),
        ) == (False, 4)


async def test_a_member_that_hears_its_leader_takes_no_invitation(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"x"])
        leader, follower = await leading(servers), servers.lives[1].server
        await until(lambda: follower.describe().raft.last == leader.server.describe().raft.last)
        assert follower.role.leader is not None
        before = follower.describe().raft
        strange = await speaker(servers, nursery, STRANGE)
        accepted, _ = await said(
            strange,
            wire.JoinClusterRequest(
                source=STRANGE,
                destination=1,
                term=99,
                last_log_term=0,
                last_log_index=3,
                commit_index=3,
                entries=(LogEntry(99, THEIRS),),
            ),
        )
        assert not accepted
        after = follower.describe().raft
        assert (after.term, after.last, after.voted_for) == (before.term, before.last, before.voted_for)


STRANGE = 9
THEIRS = Configuration(1, 0, (ClusterServer(STRANGE, "tcp://127.0.0.1:9"),))


def packed(after: int, commit: int, *values: Configuration | bytes) -> wire.SyncLogRequest:
    entries = tuple(Entry.command(5, each) if isinstance(each, bytes) else LogEntry(5, each) for each in values)
    pack = LogEntry(5, LogPack(0, entries))
    return wire.SyncLogRequest(
        source=STRANGE,
        destination=FOURTH,
        term=5,
        last_log_term=0,
        last_log_index=after,
        commit_index=commit,
        entries=(pack,),
    )


async def said(client: GarlicFarmClient, request: wire.Request) -> tuple[bool, int]:
    reply = await client.call(request.destination, request)
    assert isinstance(reply, wire.ANSWERS[type(request)])
    return reply.accepted, reply.next_index
