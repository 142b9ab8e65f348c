"""A ØMQ Raft server's way to its peers, seen from the wire: a scripted core on one side, bare sockets on the other."""

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import trio

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
from consensus.protocols.zmq_raft.counters import PeerEvent
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
PATIENCE_S: Final = 20
QUICK: Final = PeerTimes(vote_ms=5, heartbeat_ms=5, chunk_ms=5, unsent_ms=5, repeats=2_000, configuration_ms=5_000)
AT_LEISURE: Final = replace(QUICK, vote_ms=60_000, heartbeat_ms=60_000, chunk_ms=60_000)
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
    """A `Receiver` that keeps what it hears, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[ServerId, core.Request, Answer]] = []
        self.replies: list[core.Reply] = []
        self.connected: list[ServerId] = []
        self.busy = False
        self._changed = trio.Event()

    def ask(self, sender: ServerId, request: core.Request, answered: Answer) -> None:
        """A request arrived."""
        self._tell()
        if self.busy:
            raise ServerBusyError("busy")
        self.asked.append((sender, request, answered))

    def forget(self, number: int) -> None:
        """Not used."""

    def deliver_reply(self, sender: ServerId, reply: core.Reply) -> None:
        """A reply arrived."""
        assert sender == "2"
        self.replies.append(reply)
        self._tell()

    def append_not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Not used."""

    def answer_arriving(self, peer: ServerId, correlation: int) -> None:
        """Never called here."""
        del peer, correlation

    def peer_connected(self, peer: ServerId, extensions: Extensions) -> None:
        """A member has a link."""
        assert extensions == Extensions(configurations=True)
        self.connected.append(peer)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that follows from a message."""
        while not condition():
            self._changed = trio.Event()
            await self._changed.wait()

    def _tell(self) -> None:
        self._changed.set()


class Wire:
    """A bare socket; `take` gives the next message that came."""

    def __init__(self, context: ZmqContext, kind: SocketKind) -> None:
        self._in, self._out = trio.open_memory_channel[list[bytes]](1_000)
        self.socket = ZmqSocket(context, kind, lambda frames, _user: self._in.send_nowait(frames))

    def send(self, *frames: bytes) -> None:
        """Send a message; there is room."""
        assert self.socket.send(frames)

    async def take(self) -> list[bytes]:
        """The next message."""
        return await self._out.receive()

    @property
    def waiting(self) -> int:
        """Messages that were not taken."""
        return self._out.statistics().current_buffer_used


class Stage:
    """Server 1 with a scripted core, whose only peer is server 2: a DEALER that asks and a ROUTER that is asked."""

    def __init__(self, context: ZmqContext, times: PeerTimes, own_id: str) -> None:
        self.script = Script()
        self.peer = Wire(context, SocketKind.ROUTER)
        self.asking = Wire(context, SocketKind.DEALER)
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
        self.asking.socket.connect(self.transport.bound_url)
        self.transport.members([Server("1", self.transport.bound_url), Server("2", self.peer_url)])

    async def ask(self, request: wire.PeerRequest) -> tuple[core.Request, Answer]:
        """Send a request of server 2; returns what the core was asked."""
        known = len(self.script.asked)
        self.asking.send(*encode_request(request))
        await self.script.until(lambda: len(self.script.asked) > known)
        sender, asked, answered = self.script.asked[-1]
        assert sender == "2"
        return asked, answered

    async def passed(self) -> None:
        """Wait until the core was asked all that was sent so far, by asking for a vote after it."""
        self.asking.send(*encode_request(replace(VOTE, term=99)))
        await self.script.until(lambda: any(asked.term == 99 for _, asked, _ in self.script.asked))
        self.script.asked = [each for each in self.script.asked if each[1].term != 99]


@asynccontextmanager
async def staged(times: PeerTimes = QUICK, own_id: str = "1") -> AsyncIterator[Stage]:
    with zmq_context() as context:
        stage = Stage(context, times, own_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(stage.transport.run, stage.script)
            await nursery.start(stage.peer.socket.run)
            await nursery.start(stage.asking.socket.run)
            with trio.fail_after(PATIENCE_S):
                yield stage
            nursery.cancel_scope.cancel()


def heartbeat(correlation: int, commit: int = 0) -> core.AppendEntries:
    return core.AppendEntries(
        term=4, leader="1", previous=LogId(6, 3), entries=(), commit=commit, correlation=correlation
    )


def success(next_index: int = 7) -> core.AppendReply:
    return core.AppendReply(term=4, success=True, next_index=next_index, correlation=0)


SUCCESS_FRAMES = encode_reply(wire.AppendEntriesResponse(message_id=7, term=4, success=True))


async def test_a_request_of_a_peer_is_answered_with_what_the_core_says() -> None:
    async with staged() as stage:
        asked, answered = await stage.ask(HEARTBEAT)
        assert replace(asked, correlation=0) == core.AppendEntries(
            term=4, leader="2", previous=LogId(6, 3), entries=(), commit=5, correlation=0
        )
        answered(success())
        assert await stage.asking.take() == SUCCESS_FRAMES


async def test_a_repeated_append_gets_the_same_reply_and_the_core_is_not_asked_again() -> None:
    async with staged() as stage:
        # Given: an append that was answered
        _, answered = await stage.ask(HEARTBEAT)
        answered(success())
        await stage.asking.take()
        # When: it comes twice again
        for _ in range(2):
            stage.asking.send(*encode_request(HEARTBEAT))
            # Then: the reply is the same
            assert await stage.asking.take() == SUCCESS_FRAMES
        assert len(stage.script.asked) == 1
        assert stage.transport.counters[PeerEvent.REPEATED_BY_PEER] == 2


async def test_a_repetition_of_what_the_core_works_on_is_a_sign_of_life_and_no_more() -> None:
    async with staged() as stage:
        # Given: an append with an entry, which the disk has not taken yet
        append = replace(HEARTBEAT, entries=(Entry.command(4, b"request-id-1x"),))
        _, answered = await stage.ask(append)
        # When: the leader repeats it
        asked, answered_repetition = await stage.ask(append)
        # Then: the core hears that the leader lives
        assert replace(asked, correlation=0) == core.AppendEntries(
            term=4, leader="2", previous=ORIGIN, entries=(), commit=0, correlation=0
        )
        # And: there is one reply, to the append
        answered_repetition(success(1))
        answered(success(8))
        assert await stage.asking.take() == SUCCESS_FRAMES
        await stage.passed()
        assert stage.asking.waiting == 0


async def test_what_has_no_answer_on_the_wire_is_worked_on_again_when_it_is_repeated() -> None:
    async with staged() as stage:
        # Given: an append that the core took less of than was sent
        append = replace(HEARTBEAT, entries=(Entry.command(4, b"request-id-1x"),))
        _, answered = await stage.ask(append)
        answered(success(7))
        # When: the leader repeats it, and now the core takes all
        asked, answered = await stage.ask(append)
        assert isinstance(asked, core.AppendEntries)
        assert asked.entries == append.entries
        answered(success(8))
        # Then: that is the one reply
        assert await stage.asking.take() == SUCCESS_FRAMES
        assert stage.transport.counters[PeerEvent.NO_REPLY] == 1


async def test_a_server_that_is_too_busy_does_not_answer_and_works_on_the_repetition() -> None:
    async with staged() as stage:
        stage.script.busy = True
        stage.asking.send(*encode_request(HEARTBEAT))
        await stage.script.until(lambda: PeerEvent.REQUEST_BUSY in stage.transport.counters)
        stage.script.busy = False
        _, answered = await stage.ask(HEARTBEAT)
        answered(success())
        assert await stage.asking.take() == SUCCESS_FRAMES


async def test_every_vote_is_handed_to_the_core() -> None:
    async with staged() as stage:
        for granted in (True, False):
            _, answered = await stage.ask(VOTE)
            answered(core.VoteReply(term=4, granted=granted, correlation=0))
            assert await stage.asking.take() == encode_reply(wire.RequestVoteResponse(9, 4, granted))


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
        ([*encode_request(HEARTBEAT), b"an entry that is none"], PeerEvent.MALFORMED_REQUEST),
    ],
)
async def test_strangers_and_malformed_requests_get_no_answer(frames: list[bytes], reason: PeerEvent) -> None:
    async with staged() as stage:
        stage.asking.send(*frames)
        await stage.passed()
        assert stage.script.asked == []
        assert stage.asking.waiting == 0
        assert stage.transport.counters[reason] == 1


async def test_what_is_no_message_of_a_peer_goes_to_the_clients_endpoint() -> None:
    async with staged() as stage:
        messages = [[b"\x01\x02\x03\x04", b"^", IDENT], [b"id", b"custom", IDENT, b"x"], [b"one frame"], [b"", b""]]
        for frames in messages:
            stage.asking.send(*frames)
        await stage.passed()
        assert stage.clients == messages


async def test_a_request_is_repeated_with_the_same_id_until_it_is_answered_and_delivered_once() -> None:
    async with staged() as stage:
        # Given: a heartbeat, which is lost twice
        stage.transport.send("2", heartbeat(11))
        first = await stage.peer.take()
        assert await stage.peer.take() == await stage.peer.take() == first
        assert decode_request(first[1:]) == wire.AppendEntriesRpc(
            message_id=1, ident=IDENT, leader="1", term=4, previous_index=6, previous_term=3, commit=0
        )
        # When: it is answered, as often as it came
        for _ in range(3):
            stage.peer.send(first[0], *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        # Then: the core hears it once, and the next request has the next id
        await stage.script.until(lambda: bool(stage.script.replies))
        stage.transport.send("2", heartbeat(12))
        while (second := decode_request((await stage.peer.take())[1:])).message_id == 1:  # type: ignore[union-attr]
            pass
        assert isinstance(second, wire.AppendEntriesRpc)
        assert second.message_id == 2
        assert stage.script.replies == [core.AppendReply(term=4, success=True, next_index=7, correlation=11)]


async def test_an_append_with_entries_is_sent_once_and_its_answer_counts() -> None:
    async with staged() as stage:
        # Given: an append, as a follower of the package may have taken it before its connection broke
        entry = Entry(4, EntryKind.COMMAND, bytes(11) + b"\x01update")
        stage.transport.send("2", replace(heartbeat(11), entries=(entry,)))
        identity, message_id, *_ = await stage.peer.take()
        # Then: nothing is due, however long it stays without an answer
        assert stage.transport._members[b"2"].link.due_s == math.inf
        # When: the core sends a heartbeat, because the answer is overdue
        stage.transport.send("2", heartbeat(12))
        # Then: that is what comes next, and the late answer to the append is delivered
        assert (await stage.peer.take())[1] == b"\x02" != message_id
        stage.peer.send(identity, *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        await stage.script.until(lambda: bool(stage.script.replies))
        assert [reply.correlation for reply in stage.script.replies] == [11]


async def test_a_newer_request_takes_the_place_of_the_older_whose_answer_still_counts() -> None:
    async with staged() as stage:
        # Given: a request without an answer
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        # When: the core sends another one
        stage.transport.send("2", heartbeat(12, commit=6))
        while (await stage.peer.take())[1] == b"\x01":
            pass
        # Then: only that is repeated
        assert [(await stage.peer.take())[1] for _ in range(3)] == [b"\x02"] * 3
        # And: the answer to the first is delivered, that to an unknown one is not
        for message_id in (1, 77, 2):
            stage.peer.send(
                identity, *encode_reply(wire.AppendEntriesResponse(message_id=message_id, term=4, success=True))
            )
        await stage.script.until(lambda: len(stage.script.replies) == 2)
        assert [reply.correlation for reply in stage.script.replies] == [11, 12]
        assert stage.transport.counters[PeerEvent.UNMATCHED_REPLY] == 1
        assert stage.transport.counters[PeerEvent.REQUEST_REPLACED] == 1


async def test_only_the_newest_requests_are_remembered() -> None:
    async with staged(AT_LEISURE) as stage:
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


async def test_a_request_that_is_never_answered_is_given_up() -> None:
    async with staged(replace(QUICK, repeats=3)) as stage:
        stage.transport.send("2", heartbeat(11))
        while PeerEvent.REQUEST_GIVEN_UP not in stage.transport.counters:
            await stage.peer.take() if stage.peer.waiting else await trio.lowlevel.checkpoint()
        assert stage.transport.counters.get(PeerEvent.REQUEST_REPEATED, 0) <= 3


async def test_malformed_answers_are_dropped_and_the_right_one_counts() -> None:
    async with staged(AT_LEISURE) as stage:
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        for frames in ([b""], [b"\x01"], [b"\x01", b"", b""], [b"12345"], [b"\x01", b"\x04", b"", b"", b""]):
            stage.peer.send(identity, *frames)
        stage.peer.send(identity, *encode_reply(wire.AppendEntriesResponse(message_id=1, term=4, success=True)))
        await stage.script.until(lambda: bool(stage.script.replies))
        assert stage.transport.counters[PeerEvent.MALFORMED_REPLY] == 5


async def test_requests_that_the_protocol_has_no_form_for_are_not_sent() -> None:
    async with staged() as stage:
        stage.transport.send("2", core.TimeoutNow(4, "1", 1))
        stage.transport.send("3", heartbeat(11))
        chunk = core.InstallSnapshot(
            term=4, leader="1", last=LogId(6, 3), configuration=OLD, offset=0, data=b"12", done=False, correlation=2
        )
        stage.transport.send("2", chunk)  # the snapshot was replaced meanwhile, so its size is not known
        assert stage.transport.counters == {PeerEvent.REQUEST_UNENCODABLE: 2, PeerEvent.REQUEST_TO_NON_MEMBER: 1}


async def test_a_chunk_tells_the_size_of_the_whole_snapshot() -> None:
    async with staged() as stage:
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


async def test_a_server_that_is_a_member_no_longer_is_a_stranger_and_gets_nothing() -> None:
    async with staged() as stage:
        # Given: two members, of which the first leaves
        stage.transport.members([Server("3", stage.peer_url)])
        stage.asking.send(*encode_request(HEARTBEAT))
        stage.transport.send("2", heartbeat(11))
        # When: the other speaks
        stage.asking.send(*encode_request(replace(HEARTBEAT, leader="3")))
        await stage.script.until(lambda: bool(stage.script.asked))
        # Then: only it is heard
        assert stage.script.asked[0][0] == "3"
        assert stage.script.connected == ["2", "3"]
        assert stage.transport.counters == {PeerEvent.UNKNOWN_SENDER: 1, PeerEvent.REQUEST_TO_NON_MEMBER: 1}


async def test_a_member_whose_address_is_none_is_counted_and_the_others_are_reached() -> None:
    async with staged() as stage:
        stage.transport.members([Server("9", "nowhere"), Server("2", stage.peer_url)])
        stage.transport.connect(["2", "9", "10"])
        stage.transport.send("2", heartbeat(11))
        await stage.peer.take()
        assert stage.transport.counters == {
            PeerEvent.MEMBER_WITH_BAD_ADDRESS: 1,
            PeerEvent.MEMBER_WITHOUT_ADDRESS: 1,
        }


async def test_a_snapshot_is_taken_with_the_members_that_its_sender_tells() -> None:
    async with staged() as stage:
        # When: the first chunk of a snapshot comes
        stage.asking.send(*encode_request(replace(CHUNK, total_bytes=6)))
        # Then: its sender is asked for the members first
        identity, *frames = await stage.peer.take()
        question = decode_request(frames)
        assert isinstance(question, wire.ConfigRequest)
        assert stage.script.asked == []
        members = (wire.Peer("1", "tcp://127.0.0.1:1"), wire.Peer("2", "tcp://127.0.0.1:2"))
        stage.peer.send(
            identity,
            *encode_reply(wire.ConfigReply(request_id=question.request_id, is_leader=True, leader="2", peers=members)),
        )
        await stage.script.until(lambda: bool(stage.script.asked))
        _, asked, answered = stage.script.asked[0]
        told = Configuration((Server("1", "tcp://127.0.0.1:1"), Server("2", "tcp://127.0.0.1:2")))
        assert replace(asked, correlation=0) == core.InstallSnapshot(
            term=4, leader="2", last=LogId(6, 3), configuration=told, offset=0, data=b"1234", done=False, correlation=0
        )
        answered(core.SnapshotReply(term=4, accepted=True, next_offset=4, installed=False, correlation=0))
        assert await stage.asking.take() == encode_reply(wire.InstallSnapshotResponse(8, 4))
        # And: the chunks that follow need no question
        asked, answered = await stage.ask(replace(CHUNK, message_id=10, offset=4, total_bytes=6, data=b"56"))
        assert isinstance(asked, core.InstallSnapshot)
        assert (asked.configuration, asked.done) == (told, True)
        answered(core.SnapshotReply(term=4, accepted=True, next_offset=6, installed=True, correlation=0))
        assert await stage.asking.take() == encode_reply(wire.InstallSnapshotResponse(10, 4))
        assert stage.peer.waiting == 0


async def test_no_snapshot_is_taken_before_its_sender_has_told_the_members() -> None:
    async with staged(replace(QUICK, configuration_ms=5)) as stage:
        # Given: a chunk whose sender told nothing in time
        stage.asking.send(*encode_request(CHUNK))
        await stage.peer.take()
        # When: the chunk is repeated, which the leader does until it is answered
        while not stage.peer.waiting:
            stage.asking.send(*encode_request(CHUNK))
            await trio.lowlevel.checkpoint()
        # Then: the sender is asked again, and the core gets no chunk with members of this server's own knowledge
        assert stage.transport.counters[PeerEvent.CHUNK_WITHOUT_MEMBERS]
        assert not any(isinstance(asked, core.InstallSnapshot) for _, asked, _ in stage.script.asked)
        # When: the sender tells them at last
        stage.transport._members[b"2"].link._times = QUICK
        members = (wire.Peer("7", "tcp://127.0.0.1:7"),)
        while not any(isinstance(asked, core.InstallSnapshot) for _, asked, _ in stage.script.asked):
            stage.asking.send(*encode_request(CHUNK))
            while stage.peer.waiting:
                identity, *frames = await stage.peer.take()
                question = decode_request(frames)
                assert isinstance(question, wire.ConfigRequest)
                stage.peer.send(
                    identity,
                    *encode_reply(
                        wire.ConfigReply(request_id=question.request_id, is_leader=True, leader="2", peers=members)
                    ),
                )
            await trio.lowlevel.checkpoint()
        # Then: they are the members of the snapshot
        asked = next(asked for _, asked, _ in stage.script.asked if isinstance(asked, core.InstallSnapshot))
        assert asked.configuration == Configuration((Server("7", "tcp://127.0.0.1:7"),))


def mutated(frames: list[bytes], random: Random) -> list[bytes]:
    """The frames of a message, damaged in one or two places."""
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
async def test_whatever_arrives_the_transport_goes_on(seed: int) -> None:
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
    async with staged(AT_LEISURE) as stage:
        # Given: damaged requests and replies, and a core that answers anything
        stage.transport.send("2", heartbeat(11))
        identity, *_ = await stage.peer.take()
        for _ in range(200):
            stage.asking.send(*mutated(random.choice(requests), random))
            stage.peer.send(identity, *mutated(random.choice(replies), random))
            await trio.lowlevel.checkpoint()
            while stage.script.asked:
                stage.script.asked.pop()[2](random.choice(core_replies))
        # When: a peer asks as it should
        stage.asking.send(*encode_request(replace(VOTE, message_id=77, term=99)))
        await stage.script.until(lambda: bool(stage.script.asked) and stage.script.asked[-1][1].term == 99)
        stage.script.asked[-1][2](core.VoteReply(term=99, granted=True, correlation=0))
        # Then: the peer hears what the core says
        answer = encode_reply(wire.RequestVoteResponse(77, 99, granted=True))
        while await stage.asking.take() != answer:
            pass


RECORDED_ANSWERS: Final[dict[str, core.Reply]] = {
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
"""What our core would have said in the place of the package's server."""


@pytest.mark.parametrize(
    "recorded", [each for each in VECTORS["peers"] if "request" in each], ids=lambda each: str(each["name"])
)
async def test_a_recorded_request_of_the_package_gets_the_recorded_answer(recorded: dict[str, Any]) -> None:
    async with staged(AT_LEISURE, own_id="9") as stage:
        frames = [bytes.fromhex(frame) for frame in recorded["request"]]
        sender = frames[3].decode()
        stage.transport.members([Server(sender, stage.peer_url)])
        stage.transport.send(sender, heartbeat(11))  # it is sent as soon as there is a connection
        await stage.peer.take()
        stage.asking.send(*frames)
        if isinstance(decode_request(frames), wire.InstallSnapshotRpc):
            identity, *question = await stage.peer.take()
            members = (wire.Peer("9", stage.transport.bound_url),)
            stage.peer.send(
                identity,
                *encode_reply(wire.ConfigReply(request_id=question[0], is_leader=True, leader="2", peers=members)),
            )
        await stage.script.until(lambda: bool(stage.script.asked))
        stage.script.asked[0][2](RECORDED_ANSWERS[recorded["name"]])
        assert [frame.hex() for frame in await stage.asking.take()] == recorded["frames"]


@pytest.mark.parametrize(
    "recorded",
    [
        each
        for each in VECTORS["peers"]
        if " request" in each["name"] and not any("..." in frame for frame in each["frames"])
    ],
    ids=lambda each: str(each["name"]),
)
async def test_what_the_package_sends_is_sent_in_the_same_bytes_but_for_the_id(recorded: dict[str, Any]) -> None:
    frames = [bytes.fromhex(frame) for frame in recorded["frames"]]
    request = decode_request(frames)
    assert isinstance(request, wire.PeerRequest)
    asked = request_from_wire(request, 1, OLD)
    async with staged(AT_LEISURE) as stage:
        if isinstance(request, wire.InstallSnapshotRpc):
            last = LogId(request.last_index, request.last_term)
            stage.snapshot = SnapshotDescription(last, OLD, request.total_bytes, 0)
        stage.transport.send("2", asked)
        assert (await stage.peer.take())[2:] == frames[1:]
