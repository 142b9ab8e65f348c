"""Messages of a leader to a joining server: log packs, appends and heartbeats, with replies in any order.

A *log pack* is one message with many compressed entries. `trusting=True` is a server of another implementation, which
does not check its input: a *foreign* server.
"""

import pytest
from msgspec.structs import replace

from consensus.core.events import AppendNotSent
from consensus.core.messages import AppendEntries, AppendReply, InstallSnapshot, SnapshotReply
from consensus.core.model import Configuration, Entry, LogId, Server
from consensus.protocols.garlic_farm.node.joining_peers import PACKED_ENTRIES_MAX, JoiningPeer, Part
from consensus.protocols.garlic_farm.wire.messages import JoinClusterRequest, JoinClusterResponse
from tests.spec.raft_bench import THREE, TWO, Bench

LEADER = 1
MEMBERS = Configuration((Server(LEADER, "tcp://a:1"),))
RECORD_BYTES = 10


def joining_peer(*, trusting: bool = False) -> JoiningPeer:
    return JoiningPeer(None, lambda _: JoinClusterRequest(source=1, destination=4, term=3), trusting=trusting)


def joined(next_index: int = 1, *, accepted: bool = True) -> JoinClusterResponse:
    return JoinClusterResponse(source=4, destination=1, term=3, next_index=next_index, accepted=accepted)


def append(after: int, entries: int, commit: int = 10_000) -> AppendEntries:
    found = (Entry.command(3, b"x"),) * entries
    return AppendEntries(
        term=3, leader=LEADER, previous=LogId(after, 3 if after else 0), entries=found, commit=commit, correlation=7
    )


def reply(next_index: int, *, success: bool) -> AppendReply:
    return AppendReply(term=3, success=success, next_index=next_index, correlation=7)


def pack(after: int, entries: int, offset: int = 0, commit: int = 10_000) -> tuple[Part, ...]:
    return (Part(append(after, entries, commit), packed=True, offset=offset),)


def send(newcomer: JoiningPeer, request: AppendEntries) -> tuple[Part, ...]:
    """Send all parts of `request` (the connection has room for all), and return them."""
    parts = newcomer.parts(request)
    assert isinstance(parts, tuple), f"withheld: {parts} comes first"
    for part in parts:
        newcomer.sent(part, RECORD_BYTES * len(part.append.entries) if part.packed else 0)
    return parts


def test_pack_that_leaves_gap_is_withheld() -> None:
    newcomer = joining_peer()
    # before it has joined on this connection, its log is unknown
    assert newcomer.parts(append(5, 1)) == 1
    newcomer.on_join_reply(joined(next_index=3))
    assert newcomer.parts(append(5, 1)) == 3
    # at the end of its log, packs follow without waiting
    assert send(newcomer, append(2, 4)) == pack(2, 4)
    assert send(newcomer, append(6, 4)) == pack(6, 4)
    assert newcomer.parts(append(11, 1)) == 11
    assert newcomer.packs == 2


def test_late_refusal_of_heartbeat_does_not_undo_confirmed_pack() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    heartbeat, first = append(9, 0), append(0, 5)
    send(newcomer, first)
    newcomer.replied(first, reply(6, success=True))
    newcomer.replied(heartbeat, reply(1, success=False))
    assert newcomer.parts(append(5, 1)) == pack(5, 1)


def test_refusal_before_reply_to_pack_is_corrected_by_reply() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    first = append(0, 5)
    send(newcomer, first)
    newcomer.replied(append(9, 0), reply(1, success=False))
    newcomer.replied(first, reply(6, success=True))
    assert newcomer.parts(append(5, 1)) == pack(5, 1)


def test_packs_follow_snapshot_or_position_of_join_reply() -> None:
    newcomer = joining_peer()
    newcomer.on_join_reply(joined())
    newcomer.replied(*installed(100))
    assert newcomer.parts(append(100, 2)) == pack(100, 2)
    newcomer.connection_lost()
    # before the next join reply, the leader does not know whether the peer has lost confirmed entries
    assert newcomer.parts(append(102, 1)) == 101
    newcomer.on_join_reply(joined(next_index=101))
    assert newcomer.parts(append(102, 1)) == 101
    assert newcomer.parts(append(100, 3)) == pack(100, 3)


def installed(index: int) -> tuple[InstallSnapshot, SnapshotReply]:
    chunk = InstallSnapshot(
        term=3,
        leader=LEADER,
        last=LogId(index, 2),
        configuration=MEMBERS,
        offset=0,
        data=b"x",
        done=True,
        correlation=7,
    )
    return chunk, SnapshotReply(term=3, accepted=True, next_offset=1, installed=True, correlation=7)


def test_foreign_server_receives_nothing_before_acceptance() -> None:
    newcomer = joining_peer(trusting=True)
    assert newcomer.parts(append(0, 5)) == 1
    assert newcomer.parts(append(9, 0)) == 1
    assert not newcomer.may_send_snapshot()


def test_self_elected_server_gets_log_before_heartbeat() -> None:
    newcomer = joining_peer(trusting=True)
    # given a self-elected server whose log has one entry
    newcomer.on_join_reply(joined(next_index=2))
    # then heartbeats and appends, which could match by accident, are withheld
    assert newcomer.parts(append(1, 0)) == 1
    assert newcomer.parts(append(1, 5)) == 1
    assert newcomer.parts(append(0, 0)) == 1
    # and heartbeats are sent after the first pack
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    assert newcomer.parts(append(5, 0)) == (Part(append(5, 0)),)


def test_pack_offsets_increase_and_restart_after_snapshot() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    assert send(newcomer, append(5, 3)) == pack(5, 3, offset=5 * RECORD_BYTES)
    assert send(newcomer, append(8, 1)) == pack(8, 1, offset=8 * RECORD_BYTES)
    newcomer.replied(*installed(100))
    assert send(newcomer, append(100, 2)) == pack(100, 2)
    assert send(newcomer, append(102, 2)) == pack(102, 2, offset=2 * RECORD_BYTES)


def test_pack_for_foreign_server_has_only_committed_entries() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    # given that nothing is committed: nothing is sent, because the server would execute the entries
    assert newcomer.parts(append(0, 5, commit=0)) == 1
    # when a part is committed, that part is sent as a pack, and the rest as an append
    whole = append(0, 5, commit=3)
    head, tail = send(newcomer, whole)
    assert head == Part(replace(whole, entries=whole.entries[:3]), packed=True)
    assert tail == Part(replace(whole, previous=LogId(3, 3), entries=whole.entries[3:]))
    # and from then on all entries are sent as appends, because the server itself finds their place in its data file
    assert send(newcomer, append(5, 2)) == (Part(append(5, 2)),)


def test_foreign_server_gets_appends_after_packed_entries_max() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    assert send(newcomer, append(0, PACKED_ENTRIES_MAX)) == pack(0, PACKED_ENTRIES_MAX)
    assert send(newcomer, append(PACKED_ENTRIES_MAX, 5)) == (Part(append(PACKED_ENTRIES_MAX, 5)),)


def test_foreign_server_is_compared_after_reconnection() -> None:
    newcomer = joining_peer(trusting=True)
    newcomer.on_join_reply(joined())
    send(newcomer, append(0, 5))
    # given a connection that broke before the first pack had a reply: the content of the server's log is unknown
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=2, accepted=False))
    assert send(newcomer, append(0, 5)) == pack(0, 5)
    newcomer.replied(append(0, 5), reply(6, success=True))
    # after a reply, its content is known: the refusal of the next invitation contains the place to continue from
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=6, accepted=False))
    assert send(newcomer, append(5, 5)) == (Part(append(5, 5)),)
    # and a server that has since lost its log gets the whole log again
    newcomer.replied(append(5, 5), reply(11, success=True))
    newcomer.connection_lost()
    newcomer.on_join_reply(joined(next_index=2))
    assert newcomer.parts(append(10, 1)) == 1
    assert send(newcomer, append(0, 5)) == pack(0, 5)


class JoiningServer:
    """The server of a joining peer. It stores all appends that do not leave a gap."""

    def __init__(self, bench: Bench, newcomer: JoiningPeer) -> None:
        self.bench, self.newcomer, self.last = bench, newcomer, 0

    def catch_up(self) -> None:
        """Accept the invitation on a new connection, and catch up."""
        self.newcomer.on_join_reply(joined(next_index=self.last + 1))
        for _ in range(3):
            self.bench.expire()
            waiting = self.bench.appends(TWO)
            while waiting:
                self._take(waiting.pop(0))
                waiting += self.bench.appends(TWO)

    def _take(self, request: AppendEntries) -> None:
        parts = self.newcomer.parts(request)
        if isinstance(parts, int):
            self.bench.step(AppendNotSent(TWO, request.correlation, parts))
            return
        send(self.newcomer, request)
        success = request.previous.index <= self.last
        if success:
            self.last = max(self.last, request.previous.index + len(request.entries))
        self.newcomer.replied(request, reply(self.last + 1, success=success))
        if success:
            self.bench.matched(TWO, request)
        else:
            self.bench.refused(TWO, request, hint=self.last + 1)


@pytest.mark.parametrize("trusting", [True, False])
def test_joining_server_with_emptied_directory_gets_log_again(*, trusting: bool) -> None:
    """Heartbeats to a foreign server are withheld before the first pack; `AppendNotSent` then reports the loss."""
    bench = Bench(1, 1, voters=3)
    server = JoiningServer(bench, joining_peer(trusting=trusting))
    bench.lead()
    bench.matched(THREE, bench.appends(THREE)[0])
    server.catch_up()
    assert server.last == 3
    server.newcomer.connection_lost()
    server.last = 0
    server.catch_up()
    assert server.last == 3
    assert {follower.match for follower in bench.about.followers} == {3}
