"""One `Swim` under test, node 0, and scripted other nodes: node n is at `address_of(n)`.

story = Story().with_peers(1)                      node 1 joins node 0 and becomes its peer
sent = story.receive(1, story.ping(1))             node 1 pings node 0; returns the effects of that step
story.pass_time(1_000)                             serves the deadlines; returns the effects of all steps
"""

from collections.abc import Iterable
from random import Random
from typing import Self, TypeVar

from msgspec.structs import replace

from gossip.core.effects import Effect, MembershipChanged, Send
from gossip.core.events import DeadlineReached, Event, Received
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import MemberRecord
from gossip.core.messages import (
    AliveUpdate,
    DropReason,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Message,
    Payload,
    PingRequest,
    PingResponse,
    Update,
    VerdictUpdate,
)
from gossip.core.options import SwimOptions
from gossip.core.probe import NUMBER_BYTES
from gossip.core.swim import Swim
from tests.simulation.gossip_network import address_of, node_id

M = TypeVar("M", bound=Message)


def info_of(
    number: int,
    generation: int = 1,
    claim: int = 0,
    *,
    capacity: int = 8,
    metadata: bytes = b"",
    address: Address | None = None,
) -> NodeInfo:
    incarnation = Incarnation(generation, claim)
    return NodeInfo(node_id(number), address or address_of(number), incarnation, capacity, metadata)


def verdict(number: int, status: Status, by: int, generation: int = 1, claim: int = 0) -> VerdictUpdate:
    return VerdictUpdate(node_id(number), Incarnation(generation, claim), status, node_id(by))


def sent(effects: Iterable[Effect], kind: type[M]) -> list[tuple[Address, M]]:
    return [(e.target, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def changes(effects: Iterable[Effect]) -> list[tuple[NodeId, Status]]:
    return [(e.info.node_id, e.status) for e in effects if isinstance(e, MembershipChanged)]


def updates_in(effects: Iterable[Effect]) -> list[Update]:
    """Return all updates piggybacked on the pings and replies among the effects."""
    messages = [e.message for e in effects if isinstance(e, Send)]
    return [u for m in messages if isinstance(m, PingRequest | PingResponse) for u in m.payload.updates]


class Story:
    """The node under test and its clock."""

    def __init__(
        self,
        *,
        capacity: int = 8,
        options: SwimOptions | None = None,
        random_seed: int = 1,
        generation: int = 1,
        claim: int = 0,
    ) -> None:
        self.options = options or SwimOptions.lan()
        self.now = 0
        self.us = info_of(0, generation, claim, capacity=capacity)
        self.swim = Swim(self.us, self.options, Random(random_seed), 0)
        self._seq = 7_000

    def step(self, event: Event) -> list[Effect]:
        return self.swim.step(event, self.now)

    def receive(
        self, number: int, message: Message, *, token_valid: bool = False, source: Address | None = None
    ) -> list[Effect]:
        """Receive a message from node `number`. If a reply to our join lacks the receiver's generation, insert ours."""
        if isinstance(message, JoinAck | JoinNak | JoinRedirect) and not message.receiver_generation:
            message = replace(message, receiver_generation=self.us.incarnation.generation)
        return self.step(Received(source or address_of(number), message, token_valid))

    def add_peers(self, *numbers: int, capacity: int = 8) -> list[Effect]:
        effects: list[Effect] = []
        for number in numbers:
            effects += self.receive(number, JoinReq(info_of(number, capacity=capacity), b"t"), token_valid=True)
        return effects

    def with_peers(self, *numbers: int, capacity: int = 8) -> Self:
        """Add peers; return this story."""
        self.add_peers(*numbers, capacity=capacity)
        return self

    def last_ping_of(self, *numbers: int) -> bytes:
        """Pass time with replies from these peers, and return the number of the last ping to the last of them."""
        pings = sent(self.pass_time(2_000, answering=numbers), PingRequest)
        seqs = [ping.seq for target, ping in pings if target == address_of(numbers[-1])]
        return seqs[-1].to_bytes(NUMBER_BYTES)

    def receive_updates(self, number: int, *updates: Update) -> list[Effect]:
        return self.receive(number, self.ping(number, updates=updates))

    def discover(self, *numbers: int) -> None:
        """Receive the names of these nodes from node 1, to add them to the directory."""
        for number in numbers:
            self.receive_updates(1, AliveUpdate(info_of(number)))

    def ping(
        self,
        source: int,
        target: int = 0,
        *,
        ttl: int = 0,
        seq: int | None = None,
        requester: Address | None = None,
        updates: tuple[Update, ...] = (),
        room: tuple[int, int] = (8, 1),
    ) -> PingRequest:
        """Return a ping of node `source`, whose capacity and number of peers are `room`."""
        self._seq += 1
        return PingRequest(
            node_id(source),
            Incarnation(1, 0),
            node_id(target),
            Incarnation(1, 0),
            seq if seq is not None else self._seq,
            ttl,
            requester,
            Payload(updates, *room),
        )

    def reply_to(self, request: PingRequest, *, nack: bool = False, updates: tuple[Update, ...] = ()) -> PingResponse:
        """Return the reply of the target to our ping."""
        return PingResponse(
            request.source_id,
            request.target_id,
            request.target_incarnation,
            request.seq,
            request.ttl,
            nack=nack,
            payload=Payload(updates, 8, 1),
        )

    def pass_time(self, duration_ms: int, *, answering: Iterable[int] = ()) -> list[Effect]:
        """Serve deadlines for a while; the nodes in `answering` reply to our direct pings immediately."""
        end = self.now + duration_ms
        effects: list[Effect] = []
        answering = set(answering)
        while self.swim.deadline is not None and self.swim.deadline <= end:
            self.now = max(self.now, self.swim.deadline)
            stepped = self.step(DeadlineReached())
            effects += stepped
            for target, request in sent(stepped, PingRequest):
                number = int.from_bytes(request.target_id, "big")
                if number in answering and target == address_of(number):
                    effects += self.receive(number, self.reply_to(request))
        self.now = end
        return effects

    def drain_updates(self, *numbers: int) -> None:
        """Pass time until all updates are sent, so that later pings belong to probe rounds. These nodes reply."""
        self.pass_time(20_000, answering=numbers)

    def entry(self, number: int) -> MemberRecord | None:
        return self.swim._members.get(node_id(number))

    def status(self, number: int) -> Status | None:
        """Return the status of a node in our directory."""
        entry = self.entry(number)
        return entry.status if entry is not None else None

    def queued_update(self, number: int) -> Update | None:
        news = self.swim._queue.queued.get(node_id(number))
        return news.update if news is not None else None

    def peers(self) -> set[int]:
        """Return the numbers of our peers."""
        return {int.from_bytes(m.node_id, "big") for m in self.swim.describe().members if m.is_peer}

    def dropped(self, reason: DropReason) -> int:
        """Return how many messages were dropped for a reason."""
        return self.swim.describe().dropped.get(reason, 0)
