"""The endpoint target of the ØMQ Raft fuzz: conversations with four clients, mostly hostile.

    64 steps ─▶ a message, mutated or not │ the confirmation that is due │ a change of the log │ a pause
                  └─▶ every reply is checked against the log; at the end nothing may be left

The checks: `receive` does not raise. A reply goes to a client that sent a request with this id, and matches the log.
Entries and chunks of a snapshot equal the stored ones and follow the requested or last sent place. An update has its
index in the log. Pending requests and unconfirmed bytes remain within the options. After the last stream has expired
and the log has answered, no state is left.

The options are small, so that each limit is reached. `--count` counts conversations. trio runs tasks of the same moment
in any order, so a conversation that fails once may pass the next time.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import msgspec
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.model import LogId
from consensus.protocols.zmq_raft.counters import EndpointDrop
from consensus.protocols.zmq_raft.endpoint.client_endpoint import ClientEndpoint, EndpointOptions
from consensus.protocols.zmq_raft.endpoint.entry_streams import StreamOptions
from consensus.protocols.zmq_raft.wire import messages as wire
from consensus.protocols.zmq_raft.wire.codec import decode_reply, decode_request, encode_request
from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from tests.node.zmq_served_log import IDENT, PEERS, FakeLog, update_entry
from tests.simulation.fuzzing import FuzzError, Subject
from tests.simulation.zmq_raft_targets import LIMITS, REQUESTS, anything, mutated
from tests.wire.test_zmq_raft_codec import REQUEST_ID

STEPS: Final = 64
IDENTITIES: Final = tuple(b"\x00%d" % number for number in range(4))
IDS: Final = (b"", b"\x01", b"\x02", b"\x01\x02\x03\x04")
UPDATE_IDS: Final = tuple(REQUEST_ID[:11] + bytes((number,)) for number in range(12))
MESSAGE_BYTES: Final = 2_048
LARGEST: Final = 5_000
STREAMS: Final = StreamOptions(
    message_bytes=MESSAGE_BYTES,
    message_entries=16,
    high_watermark=6,
    streams_of_client=3,
    budget_bytes=8 * MESSAGE_BYTES,
    reads_at_once=2,
)
OPTIONS: Final = EndpointOptions(LIMITS, STREAMS, unanswered=3, unanswered_of_client=1)
MOST_BYTES: Final = STREAMS.budget_bytes + STREAMS.reads_at_once * (LARGEST + STREAMS.message_entries * 64)
MOST_UNDER_WAY: Final = STREAMS.high_watermark + 2 * OPTIONS.unanswered


class Step(msgspec.Struct, array_like=True):
    """One action: frames from a client, its due confirmation, a change of the log, or a pause."""

    kind: str
    identity: bytes = b""
    frames: list[bytes] = []
    number: int = 0


@dataclass
class DecidingLog(FakeLog):
    """A log that decides by the last byte of a request id."""

    indexes: dict[bytes, int] = field(default_factory=dict)
    """Indexes of accepted updates."""
    finals: list[Callable[[], None]] = field(default_factory=list)
    """Pending final answers."""

    def update(self, request: wire.UpdateRequest, user: str | None, answer: Callable[[wire.UpdateReply], None]) -> None:
        """Accept a quarter of the updates, and ignore a quarter."""
        del user
        request_id = request.request_id
        if request_id[-1] % 4 == 0:
            self.indexes.setdefault(request_id, len(self.indexes) + 1)
            answer(wire.UpdateAccepted(request_id))
            self.finals.append(lambda: answer(wire.UpdateCommitted(request_id, self.indexes[request_id])))
        elif request_id[-1] % 4 == 1:
            answer(wire.UpdateExpired(request_id))
        elif request_id[-1] % 4 == 2:
            answer(wire.UpdateRedirect(request_id, None))

    def change(self, request: wire.ChangeRequest, answer: Callable[[wire.ChangeReply], None]) -> None:
        """Accept half of the changes if the log is the leader's."""
        request_id = request.request_id
        if not self.is_leader:
            answer(wire.ChangeRedirect(request_id, self.leader))
        elif isinstance(request.peers, wire.MalformedPeers):
            answer(wire.ChangeRefused(request_id, request.peers.name, request.peers.message))
        elif request_id[-1] % 2:
            answer(wire.ChangeBusy(request_id))
        else:
            answer(wire.ChangeAccepted(request_id))
            self.finals.append(lambda: answer(wire.ChangeCommitted(request_id, 1)))


class Conversation:
    """An endpoint, its log and the messages sent to four clients."""

    def __init__(self) -> None:
        self.log = DecidingLog([update_entry(number, 1 + number * 97 % 1_500) for number in range(1, 60)])
        self.has_room = True
        self.outcomes: set[str] = set()
        self._entries = list(self.log.entries)
        self._snapshots = dict[LogId, bytes]()
        self._requested: dict[tuple[bytes, bytes], set[type[wire.ClientRequest]]] = defaultdict(set)
        self._places: dict[tuple[bytes, bytes], set[int]] = defaultdict(set)
        self._offsets: dict[tuple[bytes, bytes], set[int]] = defaultdict(set)
        self._due: dict[bytes, list[wire.EntriesRequest]] = defaultdict(list)
        self.endpoint = ClientEndpoint(self.log, IDENT, self._reply, options=OPTIONS, custom=self._custom)

    async def play(self, steps: Sequence[Step]) -> None:
        """Run all steps, then wait until nothing is left."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.endpoint.run)
            for step in steps:
                await self._take(step)
                self._check_budget()
            for answer in self.log.finals:
                answer()
            await trio.sleep(2 * STREAMS.unconfirmed_s)
            if self.endpoint.under_way or self.endpoint._streams.budget.used_bytes or self.endpoint._streams._of_client:
                raise FuzzError(f"{self.endpoint.under_way} under way when everything is answered")
            nursery.cancel_scope.cancel()
        self.outcomes.update(self.endpoint.counts)

    async def _take(self, step: Step) -> None:
        match step.kind:
            case "send":
                self._send(step.identity, step.frames)
            case "confirm" if self._due[step.identity]:
                request = self._due[step.identity].pop(0)
                self._send(step.identity, encode_request(request))
            case "pause":
                await trio.sleep(step.number / 10)
            case "log":
                self._change_log(step.number)
            case "final" if self.log.finals:
                self.log.finals.pop(0)()
            case _:
                pass

    def _check_budget(self) -> None:
        used_bytes = self.endpoint._streams.budget.used_bytes
        if self.endpoint.under_way > MOST_UNDER_WAY or not 0 <= used_bytes <= MOST_BYTES:
            raise FuzzError(f"{self.endpoint.under_way} under way, {used_bytes} bytes unconfirmed")

    def _send(self, identity: bytes, frames: list[bytes]) -> None:
        try:
            request = decode_request(frames, LIMITS)
        except ZmqRaftError:
            pass
        else:
            if not isinstance(request, wire.RequestVoteRpc | wire.AppendEntriesRpc | wire.InstallSnapshotRpc):
                key = identity, request.request_id
                self._requested[key].add(type(request))
                if isinstance(request, wire.EntriesRequest):
                    self._places[key] |= {request.previous_index}
                    self._offsets[key] |= {0, request.snapshot_offset or 0}
        self.endpoint.receive(identity, frames, None)

    def _change_log(self, number: int) -> None:
        log = self.log
        match number % 8:
            case 0:
                log.is_leader = False
            case 1:
                self.has_room = False
            case 2:
                log.busy = number % 5
            case 3:
                upto = min(log.last_index, log.first_index + number % 20)
                log.compact(upto, bytes([number % 256]) * (number * 37 % 20_000))
                if log.snapshot:
                    self._snapshots[log.snapshot[0]] = log.snapshot[1]
            case 4:
                entry = update_entry(log.last_index + 1, LARGEST - 100 if number % 3 else 5)
                log.entries.append(entry)
                self._entries.append(entry)
            case _:
                log.is_leader = self.has_room = True

    def _custom(self, request: wire.CustomRequest, answer: Callable[[wire.CustomReply], object]) -> None:
        answer(wire.CustomReply(request.request_id, request.frames))

    def _reply(self, identity: bytes, frames: Sequence[bytes]) -> bool:
        if not self.has_room:
            return False
        key = identity, frames[0]
        for request_type in self._requested[key]:
            try:
                reply = decode_reply(request_type, frames)
            except ZmqRaftError:
                continue
            if self._is_right(key, reply):
                self.outcomes.add(type(reply).__name__)
                return True
        raise FuzzError(f"{identity!r} got the reply {frames!r} to the requests {self._requested[key]}")

    def _is_right(  # noqa: PLR0911 - one case per reply
        self, key: tuple[bytes, bytes], reply: wire.ClientReply
    ) -> bool:
        log, now = self.log, self.log.describe()
        match reply:
            case wire.ConfigReply():
                return (reply.is_leader, reply.leader, reply.peers) == (now.is_leader, now.leader, PEERS)
            case wire.LogInfoReply():
                return (reply.first_index, reply.last_index) == (now.first_index, now.last_index)
            case wire.UrlReply():
                return reply.url == log.url
            case wire.UpdateCommitted(request_id, index):
                return log.indexes.get(request_id) == index
            case wire.EntriesRedirect(_, leader):
                return not now.is_leader and leader == now.leader
            case wire.EntriesBatch(is_last=is_last, last_index=last_index, entries=entries):
                place = last_index - len(entries)
                right = place in self._places[key] or (is_last and not entries)
                self._sent(
                    key, last_index, wire.EntriesRequest(request_id=key[1], ident=IDENT, previous_index=last_index)
                )
                return right and entries == tuple(self._entries[place:last_index]) and last_index <= now.last_index
            case wire.SnapshotPiece(
                last_index=index, last_term=term, offset=offset, total_bytes=total_bytes, data=data
            ):
                state = self._snapshots.get(LogId(index, term), b"")
                end = offset + len(data)
                right = offset in self._offsets[key] or offset == total_bytes
                self._offsets[key].add(end)
                self._sent(key, index if end == total_bytes else None, self._after(key, index, end, total_bytes))
                return right and (state[offset:end], len(state)) == (data, total_bytes)
            case _:
                return True

    def _sent(self, key: tuple[bytes, bytes], place: int | None, confirmation: wire.EntriesRequest) -> None:
        if place is not None:
            self._places[key].add(place)
        self._due[key[0]].append(confirmation)

    def _after(self, key: tuple[bytes, bytes], index: int, end: int, total_bytes: int) -> wire.EntriesRequest:
        if end == total_bytes:
            return wire.EntriesRequest(request_id=key[1], ident=IDENT, previous_index=index)
        before = max((place for place in self._places[key] if place < index), default=0)
        return wire.EntriesRequest(
            request_id=key[1], ident=IDENT, previous_index=before, count=None, snapshot_offset=end
        )


class EndpointTarget(Subject[list[bytes]]):
    """An endpoint for clients, with four clients."""

    name = "endpoint"
    expected = frozenset(
        {
            *(kind.__name__ for kind in (wire.ConfigReply, wire.LogInfoReply, wire.UrlReply, wire.CustomReply)),
            *(kind.__name__ for kind in (wire.UpdateAccepted, wire.UpdateCommitted, wire.UpdateRedirect)),
            *(kind.__name__ for kind in (wire.UpdateExpired, wire.ChangeAccepted, wire.ChangeCommitted)),
            *(kind.__name__ for kind in (wire.ChangeBusy, wire.ChangeRefused, wire.ChangeRedirect)),
            *(kind.__name__ for kind in (wire.EntriesBatch, wire.SnapshotPiece, wire.EntriesRedirect)),
            EndpointDrop.MALFORMED,
            EndpointDrop.PEER_MESSAGE,
            EndpointDrop.OTHER_CLUSTER,
            EndpointDrop.STREAM_EXPIRED,
            EndpointDrop.TOO_MANY_UPDATES,
            EndpointDrop.TOO_MANY_CHANGES,
            EndpointDrop.TOO_MANY_STREAMS,
            EndpointDrop.CLIENT_STREAMS,
            EndpointDrop.UNCONFIRMED_BYTES,
        }
    )

    def make(self, random: Random) -> list[bytes]:
        """Return the steps of a conversation, one frame each."""
        return [msgspec.msgpack.encode(self._step(random)) for _ in range(STEPS)]

    def check(self, frames: list[bytes], random: Random) -> list[str]:
        """Check that every reply is right, and that nothing is left."""
        del random
        conversation = Conversation()
        steps = [msgspec.msgpack.decode(frame, type=Step) for frame in frames]
        try:
            trio.run(conversation.play, steps, clock=trio.testing.MockClock(autojump_threshold=0))
        except ExceptionGroup as group:
            error: Exception = group
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            raise error from group
        return sorted(conversation.outcomes)

    def _step(self, random: Random) -> Step:  # noqa: PLR0911 - one case per kind of step
        identity = random.choice(IDENTITIES)
        match random.randrange(16):
            case 0:
                return Step("pause", number=random.choice((0, 0, 0, 1, 30, 60)))
            case 1:
                return Step("log", number=random.randrange(1_000))
            case 2 if random.random() < 0.5:
                return Step("final")
            case 4 | 5 | 6 | 7:
                return Step("confirm", identity)
            case 8 | 9 | 10:
                return Step("send", identity, encode_request(self._entries_request(random)))
            case 3 | 11:
                request_id = random.choice(UPDATE_IDS)
                either = (wire.UpdateRequest(request_id, IDENT, b"x"), wire.ChangeRequest(request_id, IDENT, PEERS))
                return Step("send", identity, encode_request(random.choice(either)))
            case 12:
                head = [
                    random.choice(IDS + UPDATE_IDS),
                    random.choice((b"^", b"=", b"&", b"<", b"%", b"*", b"+")),
                    IDENT,
                ]
                return Step("send", identity, [*head, *(anything(random) for _ in range(random.randrange(4)))])
            case _:
                return Step("send", identity, mutated(encode_request(self._request(random)), random))

    def _entries_request(self, random: Random) -> wire.EntriesRequest:
        previous_index = random.choice((0, 0, random.randrange(70)))
        count = random.choice((None, None, None, 0, 1, 20, 2**53 - 1))
        offset = random.choice((None, None, 0, random.randrange(30_000)))
        return wire.EntriesRequest(
            request_id=random.choice(IDS),
            ident=IDENT,
            previous_index=previous_index,
            count=count,
            snapshot_offset=offset,
        )

    def _request(self, random: Random) -> wire.Request:
        request = random.choice(REQUESTS)
        match request:
            case wire.UpdateRequest() | wire.ChangeRequest():
                return replace(request, request_id=random.choice(UPDATE_IDS))
            case _ if random.random() < 0.05:
                return wire.ConfigRequest(b"\x07", b"another cluster")
            case _:
                return request
