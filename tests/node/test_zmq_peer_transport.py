"""A ØMQ Raft server's transport to its peers, between a scripted core and bare sockets."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio
import zmq
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.entry_data import no_op_entry
from consensus.core.features import Extensions
from consensus.core.model import (
    ORIGIN,
    Configuration,
    Entry,
    EntryKind,
    Index,
    LogId,
    NoOp,
    Server,
    ServerId,
    SnapshotDescription,
)
from consensus.protocols.zmq_raft.counters import PeerEvent, SocketDrop
from consensus.protocols.zmq_raft.peer.peer_link import REMEMBERED_REQUESTS, PeerTimes
from consensus.protocols.zmq_raft.peer.peer_transport import PeerTransport
from consensus.protocols.zmq_raft.sockets import SocketKind, ZmqContext, ZmqSocket, zmq_context
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import decode_request, encode_reply, encode_request
from consensus.protocols.zmq_raft.wire.mapping import request_from_wire
from consensus.server.errors import ServerBusyError

VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors" / "zmq-raft.json").read_text(encoding="utf-8"))
IDENT: Final = b"testcluster"
ANY_PORT: Final = "tcp://127.0.0.1:*"
TIMEOUT_S: Final = 60
QUICK: Final = PeerTimes(vote_ms=5, heartbeat_ms=5, chunk_ms=5, unsent_ms=5, repeats=2_000, configuration_ms=5_000)
SLOW: Final = replace(QUICK, vote_ms=60_000, heartbeat_ms=60_000, chunk_ms=60_000)
OLD: Final = Configuration((Server("1", "tcp://127.0.0.1:1"),))
HEARTBEAT: Final = wire.AppendEntriesRpc(
    message_id=7, ident=IDENT, leader="2", term=4, previous_index=6, previous_term=3, commit=5
)
CHUNK: Final = wire.InstallSnapshotRpc(
    message_id=8, ident=IDENT, leader="2", term=4, last_index=6, last_term=3, offset=0, total_bytes=4, data=b"1234"
)
VOTE: Final = wire.RequestVoteRpc(message_id=9, ident=IDENT, candidate="2", term=4, last_index=6, last_term=3)

Answer = Callable[[core.Reply | None], None]


class Script:
    """A `Receiver` that records its calls, and replies when the test does."""

    def __init__(self) -> None:
        self.received: list[tuple[ServerId, core.Request, Answer]] = []
        self.replies: list[core.Reply] = []
        self.connected: list[ServerId] = []
        self.busy = False
        self._changed = trio.Event()

    def ask(self, sender: ServerId, request: core.Request, on_reply: Answer) -> None:
        self._notify()
        if self.busy:
            raise ServerBusyError("busy")
        self.received.append((sender, request, on_reply))

    def forget(self, number: int) -> None:
        """Do nothing."""

    def deliver_reply(self, sender: ServerId, reply: core.Reply) -> None:
        assert sender == "2"
        self.replies.append(reply)
        self._notify()

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Do nothing."""

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Do nothing: never called here."""
        del peer, correlation

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """Record a link to a member."""
        assert extensions == Extensions(configurations=True)
        self.connected.append(peer)

    def peer_ended(self, peer: ServerId) -> None:
        """Do nothing: never called here."""
        del peer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a message has made the condition true."""
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()


class Wire:
    """A bare socket; `take` returns the next received message."""

    def __init__(self, context: ZmqContext, kind: SocketKind) -> None:
        self._in, self._out = trio.open_memory_channel[list[bytes]](1_000)
        self.socket = ZmqSocket(context, kind, lambda frames, _user: self._in.send_nowait(frames))

    def send(self, *frames: bytes) -> None:
        """Send a message, and require room in the queue."""
        assert self.socket.send(frames)

    async def take(self) -> list[bytes]:
        return await self._out.receive()

    @property
    def waiting(self) -> int:
        """Return the number of messages still to take."""
        return self._out.statistics().current_buffer_used


class Stage:
    """Server 1 with a scripted core. Its only peer, server 2, sends by a DEALER and receives by a ROUTER."""

    def __init__(self, context: ZmqContext, times: PeerTimes, own_id: str) -> None:
        self.script = Script()
        self.peer = Wire(context, SocketKind.ROUTER)
        self.requester = Wire(context, SocketKind.DEALER)
        self.clients: list[list[bytes]] = []
        self.snapshot: SnapshotDescription | None = None
        self.transport = PeerTransport(
            context,
            own_id,
            IDENT,
            ANY_PORT,
            lambda _identity, frames: self.clients.append(frames),
            snapshot=lambda: self.snapshot,
            times=times,
        )
        self.peer_url = self.peer.socket.bind(ANY_PORT)
        self.requester.socket.connect(self.transport.bound_url)
        self.transport.members([Server("1", self.transport.bound_url), Server("2", self.peer_url)])

    async def ask(self, request: wire.PeerRequest) -> tuple[core.Request, Answer]:
        """Send a request of server 2, and return the request that the core received."""
        earlier = len(self.script.received)
        self.requester.send(*encode_request(request))
        await self.script.until(lambda: len(self.script.received) > earlier)
        sender, received, on_reply = self.script.received[-1]
        assert sender == "2"
        return received, on_reply

    async def process_all(self) -> None:
        """Wait until the core has received all earlier messages, by a vote request after them."""
        self.requester.send(*encode_request(replace(VOTE, term=99)))
        await self.script.until(lambda: any(received.term == 99 for _, received, _ in self.script.received))
        self.script.received = [each for each in self.script.received if each[1].term != 99]


def unrepeated(stage: Stage) -> Mapping[PeerEvent | SocketDrop, int]:
    """Return the counters without repetitions, which a busy machine may cause."""
    return {each: count for each, count in stage.transport.counters.items() if each is not PeerEvent.REQUEST_REPEATED}


@asynccontextmanager
async def running_stage(times: PeerTimes = QUICK, own_id: str = "1") -> AsyncIterator[Stage]:
    with zmq_context() as context:
        stage = Stage(context, times, own_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(stage.transport.run, stage.script)
            await nursery.start(stage.peer.socket.run)
            await nursery.start(stage.requester.socket.run)
            with trio.fail_after(TIMEOUT_S):
                yield stage
            nursery.cancel_scope.cancel()


async def test_connections_may_open_until_they_count_as_lost() -> None:
    """On a slow network, a handshake takes longer than the default of the sockets."""
    async with running_stage(replace(QUICK, lost_ms=20_000)) as stage:
        [member] = stage.transport._members.values()
        for each in (stage.transport._router, member.link._socket):
            assert each._socket.get(zmq.HANDSHAKE_IVL) == 20_000


def heartbeat(correlation: int, commit: int = 0) -> core.AppendEntries:
    return core.AppendEntries(
        term=4, leader="1", previous=LogId(6, 3), entries=(), commit=commit, correlation=correlation
    )


def success(next_index: int = 7) -> core.AppendReply:
    return core.AppendReply(term=4, success=True, next_index=next_index, correlation=0)


SUCCESS_FRAMES = encode_reply(wire.AppendEntriesResponse(message_id=7, term=4, success=True))


async def test_request_of_peer_gets_reply_of_core() -> None:
    async with running_stage() as stage:
        received, on_reply = await stage.ask(HEARTBEAT)
        assert replace(received, correlation=0) == core.AppendEntries(
            term=4, leader="2", previous=LogId(6, 3), entries=(), commit=5, correlation=0
        )
        on_reply(success())
        assert await stage.requester.take() == SUCCESS_FRAMES


async def test_repeated_append_gets_same_reply_without_core() -> None:
    async with running_stage() as stage:
        # Given: an append with a reply
        _, on_reply = await stage.ask(HEARTBEAT)
        on_reply(success())
        await stage.requester.take()
        # When: it is repeated twice
        for _ in range(2):
            stage.requester.send(*encode_request(HEARTBEAT))
            # Then: the reply is the same
            assert await stage.requester.take() == SUCCESS_FRAMES
        assert len(stage.script.received) == 1
        assert stage.transport.counters[PeerEvent.REPEATED_BY_PEER] == 2


async def test_repeat_of_pending_append_counts_as_contact() -> None:
    async with running_stage() as stage:
        # Given: an append with an entry that the disk has not stored yet
        append = replace(HEARTBEAT, entries=(Entry.command(4, b"request-id-1x"),))
        _, on_reply = await stage.ask(append)
        # When: the leader repeats it
        received, answered_repeat = await stage.ask(append)
        # Then: the core gets it as contact with the leader
        assert replace(received, correlation=0) == core.AppendEntries(
            term=4, leader="2", previous=ORIGIN, entries=(), commit=0, correlation=0
        )
        # And: there is one reply, to the append
        answered_repeat(success(1))
        on_reply(success(8))
        assert await stage.requester.take() == SUCCESS_FRAMES
        await stage.process_all()
        assert stage.requester.waiting == 0


async def test_append_without_reply_processed_again_on_repeat() -> None:
    async with running_stage() as stage:
        # Given: an append that the core stored only in part
        append = replace(HEARTBEAT, entries=(Entry.command(4, b"request-id-1x"),))
        _, on_reply = await stage.ask(append)
        on_reply(success(7))
        # When: the leader repeats it, and now the core stores all
        received, on_reply = await stage.ask(append)
        assert isinstance(received, core.AppendEntries)
        assert received.entries == append.entries
        on_reply(success(8))
        # Then: there is one reply, to the repeat
        assert await stage.requester.take() == SUCCESS_FRAMES
        assert stage.transport.counters[PeerEvent.NO_REPLY] == 1


async def test_busy_server_processes_repeat() -> None:
    async with running_stage() as stage:
        stage.script.busy = True
        stage.requester.send(*encode_request(HEARTBEAT))
        await stage.script.until(lambda: PeerEvent.REQUEST_BUSY in stage.transport.counters)
        stage.script.busy = False
        _, on_reply = await stage.ask(HEARTBEAT)
        on_reply(success())
        assert await stage.requester.take() == SUCCESS_FRAMES


async def test_repeated_vote_request_passed_to_core() -> None:
    async with running_stage() as stage:
        for granted in (True, False):
            _, on_reply = await stage.ask(VOTE)
            on_reply(core.VoteReply(term=4, granted=granted, correlation=0))
            assert await stage.requester.take() == encode_reply(wire.RequestVoteResponse(9, 4, granted))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (encode_request(replace(HEARTBEAT, ident=b"other")), PeerEvent.PEER_OF_OTHER_CLUSTER),
        (encode_request(replace(HEARTBEAT, leader="3")), PeerEvent.UNKNOWN_SENDER),
        (encode_request(replace(HEARTBEAT, leader="1")), PeerEvent.UNKNOWN_SENDER),
        (encode_request(HEARTBEAT)[:5], PeerEvent.MALFORMED_REQUEST),
        (encode_request(HEARTBEAT)[:2], PeerEvent.MALFORMED_REQUEST),
        ([b"\x07", b"+", IDENT, b"2", b"", b"\x06", b"\x03", b"\x05"], PeerEvent.MALFORMED_REQUEST),
        ([b"1234", b"+", IDENT, b"2", b"\x04", b"\x06", b"\x03", b"\x05"], PeerEvent.MALFORMED_REQUEST),
        ([*encode_request(HEARTBEAT), b"invalid entry"], PeerEvent.MALFORMED_REQUEST),
    ],
)
async def test_unknown_sender_or_malformed_request_dropped(frames: list[bytes], reason: PeerEvent) -> None:
    async with running_stage() as stage:
        stage.requester.send(*frames)
        await stage.process_all()
        assert stage.script.received == []
        assert stage.requester.waiting == 0
        assert stage.transport.counters[reason] == 1


async def test_other_messages_passed_to_client_endpoint() -> None:
    async with running_stage() as stage:
        messages = [[b"\x01\x02\x03\x04", b"^", IDENT], [b"id", b"custom", IDENT, b"x"], [b"one frame"], [b"", b""]]
        for frames in messages:
            stage.requester.send(*frames)
        await stage.process_all()
        assert stage.clients == messages


async def test_request_repeated_with_same_id_until_reply() -> None:
    async with running_stage() as stage:
        # Given: an unanswered heartbeat, repeated twice
        stage.transport.send("2", heartbeat(11))
        first = await stage.peer.take()
        assert await stage.peer.take() == await stage.peer.take() == first
        assert decode_request(first[1:]) == wire.AppendEntriesRpc(
            message_id=1, ident=IDENT, leader="1", term=4, previous_index=6, previous_term=3, commit=0
        )
        # When: each of its copies is answered
        for _ in range(3):
            stage.peer.send(first[0], *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        # Then: the core gets one reply, and the next request has the next id
        await stage.script.until(lambda: bool(stage.script.replies))
        stage.transport.send("2", heartbeat(12))
        while (second := decode_request((await stage.peer.take())[1:])).message_id == 1:  # type: ignore[union-attr]
            pass
        assert isinstance(second, wire.AppendEntriesRpc)
        assert second.message_id == 2
        assert stage.script.replies == [core.AppendReply(term=4, success=True, next_index=7, correlation=11)]


async def test_append_with_entries_sent_once_and_late_reply_counts() -> None:
    async with running_stage() as stage:
        # Given: an append that a follower of the package may have stored before its connection broke
        entry = Entry(4, EntryKind.COMMAND, bytes(11) + b"\x01update")
        stage.transport.send("2", replace(heartbeat(11), entries=(entry,)))
        identity, message_id, *_ = await stage.peer.take()
        # Then: the transport never repeats the append, even without a reply
        assert stage.transport._members[b"2"].link.due_s == math.inf
        # When: the core sends a heartbeat, because the reply is overdue
        stage.transport.send("2", heartbeat(12))
        # Then: the heartbeat comes next, and the late reply to the append is delivered
        assert (await stage.peer.take())[1] == b"\x02" != message_id
        stage.peer.send(identity, *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        await stage.script.until(lambda: bool(stage.script.replies))
        assert [reply.correlation for reply in stage.script.replies] == [11]


async def test_newer_request_replaces_older_whose_reply_counts() -> None:
    async with running_stage() as stage:
        # Given: a request without a reply
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        # When: the core sends another request
        stage.transport.send("2", heartbeat(12, commit=6))
        while (await stage.peer.take())[1] == b"\x01":
            pass
        # Then: only the newer request is repeated
        assert [(await stage.peer.take())[1] for _ in range(3)] == [b"\x02"] * 3
        # And: the reply to the first is delivered, a reply to an unknown request is not
        for message_id in (1, 77, 2):
            stage.peer.send(
                identity, *encode_reply(wire.AppendEntriesResponse(message_id=message_id, term=4, success=True))
            )
        await stage.script.until(lambda: len(stage.script.replies) == 2)
        assert [reply.correlation for reply in stage.script.replies] == [11, 12]
        assert stage.transport.counters[PeerEvent.UNMATCHED_REPLY] == 1
        assert stage.transport.counters[PeerEvent.REQUEST_REPLACED] == 1


async def test_replies_to_newest_requests_delivered() -> None:
    async with running_stage(SLOW) as stage:
        sent = REMEMBERED_REQUESTS + 2
        stage.transport.send("2", heartbeat(1))
        identity, *_ = await stage.peer.take()
        for correlation in range(2, sent + 1):
            stage.transport.send("2", heartbeat(correlation))
        for message_id in range(1, sent + 1):
            stage.peer.send(
                identity, *encode_reply(wire.AppendEntriesResponse(message_id=message_id, term=4, success=True))
            )
        await stage.script.until(lambda: len(stage.script.replies) == REMEMBERED_REQUESTS)
        assert [reply.correlation for reply in stage.script.replies] == list(range(3, sent + 1))


async def test_unanswered_request_dropped_after_repeats() -> None:
    async with running_stage(replace(QUICK, repeats=3)) as stage:
        stage.transport.send("2", heartbeat(11))
        while PeerEvent.REQUEST_GIVEN_UP not in stage.transport.counters:
            await stage.peer.take() if stage.peer.waiting else await trio.lowlevel.checkpoint()
        assert stage.transport.counters.get(PeerEvent.REQUEST_REPEATED, 0) <= 3


async def test_malformed_replies_dropped_before_valid_reply() -> None:
    async with running_stage(SLOW) as stage:
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        for frames in ([b""], [b"\x01"], [b"\x01", b"", b""], [b"12345"], [b"\x01", b"\x04", b"", b"", b""]):
            stage.peer.send(identity, *frames)
        stage.peer.send(identity, *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        await stage.script.until(lambda: bool(stage.script.replies))
        assert stage.transport.counters[PeerEvent.MALFORMED_REPLY] == 5


async def test_unencodable_requests_not_sent() -> None:
    async with running_stage() as stage:
        stage.transport.send("2", core.TimeoutNow(4, "1", 1))
        stage.transport.send("3", heartbeat(11))
        chunk = core.InstallSnapshot(
            term=4, leader="1", last=LogId(6, 3), configuration=OLD, offset=0, data=b"12", done=False, correlation=2
        )
        stage.transport.send("2", chunk)  # the snapshot was replaced, so its size is unknown
        assert unrepeated(stage) == {PeerEvent.REQUEST_UNENCODABLE: 2, PeerEvent.REQUEST_TO_NON_MEMBER: 1}


async def test_chunk_contains_size_of_whole_snapshot() -> None:
    async with running_stage() as stage:
        stage.snapshot = SnapshotDescription(LogId(6, 3), OLD, 5, 0)
        stage.transport.send(
            "2",
            core.InstallSnapshot(
                term=4, leader="1", last=LogId(6, 3), configuration=OLD, offset=0, data=b"12", done=False, correlation=2
            ),
        )
        assert decode_request((await stage.peer.take())[1:]) == wire.InstallSnapshotRpc(
            message_id=1,
            ident=IDENT,
            leader="1",
            term=4,
            last_index=6,
            last_term=3,
            offset=0,
            total_bytes=5,
            data=b"12",
        )


async def test_removed_member_treated_as_unknown_sender() -> None:
    async with running_stage() as stage:
        # Given: a member replaced by another, and a request of the removed one
        stage.transport.members([Server("3", stage.peer_url)])
        stage.requester.send(*encode_request(HEARTBEAT))
        stage.transport.send("2", heartbeat(11))
        # When: the new member sends a request
        stage.requester.send(*encode_request(replace(HEARTBEAT, leader="3")))
        await stage.script.until(lambda: bool(stage.script.received))
        # Then: the core gets only this request
        assert stage.script.received[0][0] == "3"
        assert stage.script.connected == ["2", "3"]
        assert unrepeated(stage) == {PeerEvent.UNKNOWN_SENDER: 1, PeerEvent.REQUEST_TO_NON_MEMBER: 1}


async def test_member_with_invalid_address_counted_and_skipped() -> None:
    async with running_stage() as stage:
        stage.transport.members([Server("9", "nowhere"), Server("2", stage.peer_url)])
        stage.transport.connect(["2", "9", "10"])
        stage.transport.send("2", heartbeat(11))
        await stage.peer.take()
        assert unrepeated(stage) == {PeerEvent.MEMBER_WITH_BAD_ADDRESS: 1, PeerEvent.MEMBER_WITHOUT_ADDRESS: 1}


async def test_snapshot_received_with_members_from_its_sender() -> None:
    async with running_stage() as stage:
        # When: the first chunk of a snapshot arrives
        stage.requester.send(*encode_request(replace(CHUNK, total_bytes=6)))
        # Then: the server first requests the members from its sender
        identity, *frames = await stage.peer.take()
        request = decode_request(frames)
        assert isinstance(request, wire.ConfigRequest)
        assert stage.script.received == []
        members = (wire.Peer("1", "tcp://127.0.0.1:1"), wire.Peer("2", "tcp://127.0.0.1:2"))
        stage.peer.send(
            identity,
            *encode_reply(wire.ConfigReply(request_id=request.request_id, is_leader=True, leader="2", peers=members)),
        )
        await stage.script.until(lambda: bool(stage.script.received))
        _, received, on_reply = stage.script.received[0]
        configuration = Configuration((Server("1", "tcp://127.0.0.1:1"), Server("2", "tcp://127.0.0.1:2")))
        assert replace(received, correlation=0) == core.InstallSnapshot(
            term=4,
            leader="2",
            last=LogId(6, 3),
            configuration=configuration,
            offset=0,
            data=b"1234",
            done=False,
            correlation=0,
        )
        on_reply(core.SnapshotReply(term=4, accepted=True, next_offset=4, installed=False, correlation=0))
        assert await stage.requester.take() == encode_reply(wire.InstallSnapshotResponse(8, 4))
        # And: further chunks do not cause a request
        received, on_reply = await stage.ask(replace(CHUNK, message_id=10, offset=4, total_bytes=6, data=b"56"))
        assert isinstance(received, core.InstallSnapshot)
        assert (received.configuration, received.done) == (configuration, True)
        on_reply(core.SnapshotReply(term=4, accepted=True, next_offset=6, installed=True, correlation=0))
        assert await stage.requester.take() == encode_reply(wire.InstallSnapshotResponse(10, 4))
        assert stage.peer.waiting == 0


async def test_snapshot_refused_until_sender_returns_members() -> None:
    async with running_stage(replace(QUICK, configuration_ms=5)) as stage:
        # Given: a chunk whose sender did not return the members in time
        stage.requester.send(*encode_request(CHUNK))
        await stage.peer.take()
        # When: the chunk is repeated, as a leader does until it gets a reply
        while not stage.peer.waiting:
            stage.requester.send(*encode_request(CHUNK))
            await trio.lowlevel.checkpoint()
        # Then: the server requests the members again, and never passes a chunk with its own members to the core
        assert stage.transport.counters[PeerEvent.CHUNK_WITHOUT_MEMBERS]
        assert not any(isinstance(received, core.InstallSnapshot) for _, received, _ in stage.script.received)
        # When: the sender finally returns the members
        stage.transport._members[b"2"].link._times = QUICK
        members = (wire.Peer("7", "tcp://127.0.0.1:7"),)
        while not any(isinstance(received, core.InstallSnapshot) for _, received, _ in stage.script.received):
            stage.requester.send(*encode_request(CHUNK))
            while stage.peer.waiting:
                identity, *frames = await stage.peer.take()
                request = decode_request(frames)
                assert isinstance(request, wire.ConfigRequest)
                stage.peer.send(
                    identity,
                    *encode_reply(
                        wire.ConfigReply(request_id=request.request_id, is_leader=True, leader="2", peers=members)
                    ),
                )
            await trio.lowlevel.checkpoint()
        # Then: the snapshot has these members
        received = next(
            received for _, received, _ in stage.script.received if isinstance(received, core.InstallSnapshot)
        )
        assert received.configuration == Configuration((Server("7", "tcp://127.0.0.1:7"),))


def mutated(frames: list[bytes], random: Random) -> list[bytes]:
    """Return the frames of a message, damaged in one or two places."""
    frames = list(frames)
    for _ in range(random.randint(1, 2)):
        place = random.randrange(len(frames))
        match random.randrange(5):
            case 0:
                frames[place] = random.randbytes(random.randrange(12))
            case 1:
                frames.insert(place, random.randbytes(random.randrange(30)))
            case 2:
                frames[place] = b"\xff" * random.randint(1, 9)
            case 3:
                frames[place] = frames[place][:-1]
            case _ if len(frames) > 1:
                del frames[place]
    return frames


@pytest.mark.parametrize("seed", range(3))
async def test_transport_survives_damaged_messages(seed: int) -> None:
    random = Random(seed)
    entries = (Entry.command(4, b"request-id-1x"), no_op_entry(4, NoOp()))
    requests = [encode_request(each) for each in (HEARTBEAT, replace(HEARTBEAT, entries=entries), CHUNK, VOTE)]
    core_replies: list[core.Reply | None] = [
        success(0),
        success(2**63),
        core.AppendReply(term=2**60, success=False, next_index=-5, correlation=0),
        core.VoteReply(term=2**60, granted=True, correlation=0),
        core.SnapshotReply(term=4, accepted=False, next_offset=2**60, installed=False, correlation=0),
        core.SnapshotReply(term=5, accepted=True, next_offset=2, installed=True, correlation=0),
        None,
    ]
    replies = [
        encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=False, conflict_index=2)),
        encode_reply(
            wire.ConfigReply(
                request_id=b"\1\0\0\0", is_leader=True, leader="2", peers=(wire.Peer("2", "tcp://127.0.0.1:2"),)
            )
        ),
    ]
    async with running_stage(SLOW) as stage:
        # Given: damaged requests and replies, and a core with arbitrary replies
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        for _ in range(200):
            stage.requester.send(*mutated(random.choice(requests), random))
            stage.peer.send(identity, *mutated(random.choice(replies), random))
            await trio.lowlevel.checkpoint()
            while stage.script.received:
                stage.script.received.pop()[2](random.choice(core_replies))
        # When: a peer sends a valid request
        stage.requester.send(*encode_request(replace(VOTE, message_id=77, term=99)))
        await stage.script.until(lambda: bool(stage.script.received) and stage.script.received[-1][1].term == 99)
        stage.script.received[-1][2](core.VoteReply(term=99, granted=True, correlation=0))
        # Then: the peer gets the core's reply
        answer = encode_reply(wire.RequestVoteResponse(77, 99, granted=True))
        while await stage.requester.take() != answer:
            pass


RECORDED_REPLIES: Final[dict[str, core.Reply]] = {
    "RequestVote response (denied)": core.VoteReply(term=1, granted=False, correlation=0),
    "RequestVote response (granted)": core.VoteReply(term=1, granted=True, correlation=0),
    "AppendEntries response (success)": core.AppendReply(term=1, success=True, next_index=1, correlation=0),
    "AppendEntries response (conflict index)": core.AppendReply(term=1, success=False, next_index=1, correlation=0),
    "AppendEntries response (failure, no conflict frame)": core.AppendReply(
        term=2, success=False, next_index=7, correlation=0
    ),
    "InstallSnapshot response (ok)": core.SnapshotReply(
        term=1, accepted=True, next_offset=0, installed=False, correlation=0
    ),
}
"""Replies of our core that correspond to the recorded replies of the package's server."""


@pytest.mark.parametrize(
    "recorded", [each for each in VECTORS["peers"] if "request" in each], ids=lambda each: str(each["name"])
)
async def test_recorded_request_of_package_gets_recorded_reply(recorded: dict[str, Any]) -> None:
    async with running_stage(SLOW, own_id="9") as stage:
        frames = [bytes.fromhex(frame) for frame in recorded["request"]]
        sender = frames[3].decode()
        stage.transport.members([Server(sender, stage.peer_url)])
        stage.transport.send(sender, heartbeat(11))  # sent as soon as there is a connection
        await stage.peer.take()
        stage.requester.send(*frames)
        if isinstance(decode_request(frames), wire.InstallSnapshotRpc):
            identity, *request = await stage.peer.take()
            members = (wire.Peer("9", stage.transport.bound_url),)
            stage.peer.send(
                identity,
                *encode_reply(wire.ConfigReply(request_id=request[0], is_leader=True, leader="2", peers=members)),
            )
        await stage.script.until(lambda: bool(stage.script.received))
        stage.script.received[0][2](RECORDED_REPLIES[recorded["name"]])
        assert [frame.hex() for frame in await stage.requester.take()] == recorded["frames"]


@pytest.mark.parametrize(
    "recorded",
    [
        each
        for each in VECTORS["peers"]
        if " request" in each["name"] and not any("..." in frame for frame in each["frames"])
    ],
    ids=lambda each: str(each["name"]),
)
async def test_recorded_request_sent_in_same_bytes_except_id(recorded: dict[str, Any]) -> None:
    frames = [bytes.fromhex(frame) for frame in recorded["frames"]]
    request = decode_request(frames)
    assert isinstance(request, wire.PeerRequest)
    received = request_from_wire(request, 1, OLD)
    async with running_stage(SLOW) as stage:
        if isinstance(request, wire.InstallSnapshotRpc):
            last = LogId(request.last_index, request.last_term)
            stage.snapshot = SnapshotDescription(last, OLD, request.total_bytes, 0)
        stage.transport.send("2", received)
        assert (await stage.peer.take())[2:] == frames[1:]
