"""Member changes by messages of the protocol document: AddServer, JoinCluster, log packs, snapshot, LeaveCluster."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import trio
from msgspec.structs import replace

from consensus.core.effects import ChangeOutcome, ConfigurationResolved, Outcome
from consensus.core.model import Configuration as Members
from consensus.core.model import Entry, Server, ServerId
from consensus.core.options import Options
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.client_connection import Lost
from consensus.protocols.garlic_farm.node.membership import MemberRequests, MembershipOptions
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.values import ClusterServer, Configuration, LogEntry, LogPack
from tests.node.loopback_group import CALM, PATIENT, LoopbackGroup, Run, Service, until
from tests.node.membership_client import join, request_addition, request_removal
from tests.node.raw_offset_server import RawOffsetServer

LONG_S = 120
ELECTING = replace(PATIENT, election_timeout_min_ms=1_000, election_timeout_max_ms=1_500)
FOURTH, FIFTH = 4, 5


@asynccontextmanager
async def group(
    path: Path, make_service: Callable[[], Service] = Service, options: Options = CALM
) -> AsyncIterator[tuple[LoopbackGroup, GarlicFarmClient, trio.Nursery]]:
    """Run three servers, and a client without extensions."""
    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            servers = LoopbackGroup(path, nursery, make_service=make_service, options=options, eager=True)
            for server_id in servers.ids:
                await servers.start(server_id)
            client = servers.client(offered=())
            await nursery.start(client.run)
            yield servers, client, nursery
            nursery.cancel_scope.cancel()


async def client_as_server(servers: LoopbackGroup, nursery: trio.Nursery, server_id: int) -> GarlicFarmClient:
    """Return a client without extensions that proves its identity as this server."""
    client = servers.client(offered=(), server_id=server_id)
    await nursery.start(client.run)
    return client


async def submit(client: GarlicFarmClient, commands: list[bytes]) -> None:
    for first in range(0, len(commands), 100):
        found = await client.submit(commands[first : first + 100])
        assert found.outcome is Outcome.COMMITTED, found


async def leading(servers: LoopbackGroup) -> Run:
    return servers.runs[await servers.leader()]


async def until_members(run: Run, *members: int) -> None:
    def settled() -> bool:
        raft = run.server.describe().raft
        return raft.configuration.voter_ids == set(members) and raft.change is None

    await until(settled)


async def until_level(leader: Run) -> None:
    """Wait until each member has the whole log, so that only a new server will need the next snapshot."""

    def level() -> bool:
        raft = leader.server.describe().raft
        return all(each.match == raft.last.index for each in raft.followers)

    await until(level)


async def test_own_server_joins_by_document_messages_and_leaves(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(500)])
        run = await servers.start(FOURTH)
        own = await client_as_server(servers, nursery, FOURTH)
        # when it repeats the request until its own log contains it
        await join(own, run.server, ClusterServer(FOURTH, servers.endpoint(FOURTH)), Random(4))
        leader = await leading(servers)
        await until_members(leader, 1, 2, 3, 4)
        assert run.members.joining.packs > 0
        await run.server.wait_applied(leader.server.commit_index)
        assert run.executed == leader.executed
        # then a repeated request is accepted without a change
        again = await request_addition(own, ClusterServer(FOURTH, servers.endpoint(FOURTH)))
        assert again.has_begun
        assert leader.server.describe().raft.change is None
        # and a follower sends the leader a request for its removal
        assert (await request_removal(own, FOURTH)).has_begun
        await until_members(leader, 1, 2, 3)


async def test_learner_receives_log_by_document_messages(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, _):
        await submit(client, [b"%d" % number for number in range(1500)])
        run, leader = await servers.start(FOURTH), await leading(servers)
        requests = leader.members.requests
        added = await requests.add_learner(Server(FOURTH, servers.endpoint(FOURTH)))
        assert added is not None
        assert added.outcome is ChangeOutcome.COMMITTED
        await run.server.wait_applied(leader.server.commit_index)
        assert run.members.joining.packs > 0
        # when it has the whole log, it receives appends like any other follower
        await until(lambda: not leader.links.joining_peers)
        packs = run.members.joining.packs
        await submit(client, [b"end"])
        await until(lambda: run.executed[-1:] == [b"end"])
        assert run.members.joining.packs == packs
        # and an unreachable server does not become a member
        await servers.kill(FOURTH)
        assert await add_unreachable_learner(leader, Server(FIFTH, "tcp://absent:1")) is None
        assert FIFTH not in leader.server.describe().raft.configuration.member_ids


async def add_unreachable_learner(leader: Run, newcomer: Server) -> ConfigurationResolved | None:
    short_invitation = MembershipOptions(invitation_s=0.3)
    requests = MemberRequests(leader.server, 1, leader.links, UncalledRules(), leader.metrics, short_invitation)
    return await requests.add_learner(newcomer)


class UncalledRules:
    """Rules that must not be called."""

    def may_add(self, server: Server) -> str:
        """Fail: it must not be called."""
        raise AssertionError(server)

    def may_remove(self, server: ServerId, configuration: Members) -> str:
        """Fail: it must not be called."""
        raise AssertionError(server, configuration)


async def test_join_completes_after_loss_of_leader(tmp_path: Path) -> None:
    async with group(tmp_path, options=ELECTING) as (servers, client, nursery):
        await submit(client, [b"%d" % number for number in range(2000)])
        first = await servers.leader()
        run = await servers.start(FOURTH)
        own = servers.client()
        await nursery.start(own.run)
        assert (await request_addition(own, ClusterServer(FOURTH, servers.endpoint(FOURTH)))).has_begun
        await servers.kill(first)
        # when the new server repeats the request at each new leader
        await join(own, run.server, ClusterServer(FOURTH, servers.endpoint(FOURTH)), Random(4))
        await servers.start(first)
        await until_members(await leading(servers), 1, 2, 3, 4)
        await submit(client, [b"end"])
        await until(lambda: run.executed[-1:] == [b"end"])
        assert len(run.executed) == len(set(run.executed)) == 2001


async def test_impossible_change_is_refused_with_sentence(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"x"])
        leader_id = await servers.leader()
        other = RawOffsetServer(FOURTH, catching_up=True)
        servers.plain[FOURTH] = await nursery.start(other.listen)
        refused = [
            (await request_addition(client, ClusterServer(2, "tcp://elsewhere:1")), "belongs to a member"),
            (await request_addition(client, ClusterServer(9, "tcp://absent:1")), "no server listens"),
            (await request_removal(await client_as_server(servers, nursery, 9), 9), "it is not a member"),
            (
                await request_removal(await client_as_server(servers, nursery, leader_id), leader_id),
                "it leads; hand leadership",
            ),
        ]
        texts = [incident.text for incident in servers.incidents if incident.fault is Fault.REFUSED_CHANGE]
        assert not any(change.has_begun for change, _ in refused)
        assert [reason in text for (_, reason), text in zip(refused, texts, strict=True)] == [True] * len(refused)
        leader = servers.runs[leader_id]
        assert leader.metrics.counts[Fault.REFUSED_CHANGE] == len(refused)
        # and a server that rejects the invitation is not added: nothing was appended
        assert (await request_addition(client, ClusterServer(FOURTH, "tcp://127.0.0.1:4"))).has_begun
        await until(lambda: leader.metrics.counts[Fault.REFUSED_CHANGE] > len(refused))
        assert leader.server.describe().raft.configuration.voter_ids == {1, 2, 3}


async def test_document_leader_transfers_log_to_own_server(tmp_path: Path) -> None:
    """The leader's packs lack terms.

    The new server takes them from earlier messages, or replies with the place to continue from.
    """
    async with group(tmp_path) as (servers, _, nursery):
        run = await servers.start(FOURTH)
        client = await client_as_server(servers, nursery, OTHER_LEADER)
        # given a new server without an invitation: a pack is out of turn, and closes the connection
        assert await client.call(FOURTH, packed(0, 2, b"a")) is Lost.UNANSWERED
        assert [each.text for each in servers.incidents if each.fault is Fault.OUT_OF_TURN] == [
            "connection from 127.0.0.1 closed: a log pack of term 5 from server 9, which has not invited this server"
        ]
        # when it is invited, and receives the log in packs
        invitation = wire.JoinClusterRequest(
            source=OTHER_LEADER,
            destination=FOURTH,
            term=5,
            last_log_term=0,
            last_log_index=3,
            commit_index=3,
            entries=(LogEntry(5, THEIRS),),
        )
        assert await reply_to(client, invitation) == (True, 1)
        assert await reply_to(client, packed(0, 2, THEIRS, b"a")) == (True, 3)
        assert await reply_to(client, packed(2, 3, b"b")) == (True, 4)
        await run.server.wait_applied(3)
        assert run.executed == [b"a", b"b"]
        # then a pack at a place of unknown term is refused, with the expected place
        assert await reply_to(client, packed(7, 8, b"c")) == (False, 4)
        # a second invitation continues at the end of the received log
        assert await reply_to(client, invitation) == (True, 4)
        # its leader may order the new server to leave; other servers cannot
        assert await reply_to(
            client,
            wire.LeaveClusterRequest(
                source=OTHER_LEADER, destination=FOURTH, term=5, last_log_term=0, last_log_index=3, commit_index=3
            ),
        ) == (True, 4)
        other = await client_as_server(servers, nursery, 8)
        assert await reply_to(
            other,
            wire.LeaveClusterRequest(
                source=8, destination=FOURTH, term=5, last_log_term=0, last_log_index=3, commit_index=3
            ),
        ) == (False, 4)


async def test_follower_of_live_leader_refuses_invitation(tmp_path: Path) -> None:
    async with group(tmp_path) as (servers, client, nursery):
        await submit(client, [b"x"])
        leader, follower = await leading(servers), servers.runs[1].server
        await until(lambda: follower.describe().raft.last == leader.server.describe().raft.last)
        assert follower.role.leader is not None
        before = follower.describe().raft
        other_leader = await client_as_server(servers, nursery, OTHER_LEADER)
        accepted, _ = await reply_to(
            other_leader,
            wire.JoinClusterRequest(
                source=OTHER_LEADER,
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


OTHER_LEADER = 9
THEIRS = Configuration(1, 0, (ClusterServer(OTHER_LEADER, "tcp://127.0.0.1:9"),))


def packed(after: int, commit: int, *values: Configuration | bytes) -> wire.SyncLogRequest:
    entries = tuple(Entry.command(5, each) if isinstance(each, bytes) else LogEntry(5, each) for each in values)
    pack = LogEntry(5, LogPack(0, entries))
    return wire.SyncLogRequest(
        source=OTHER_LEADER,
        destination=FOURTH,
        term=5,
        last_log_term=0,
        last_log_index=after,
        commit_index=commit,
        entries=(pack,),
    )


async def reply_to(client: GarlicFarmClient, request: wire.Request) -> tuple[bool, int]:
    reply = await client.call(request.destination, request)
    assert isinstance(reply, wire.ANSWERS[type(request)])
    return reply.accepted, reply.next_index
