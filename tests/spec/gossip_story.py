"""One `Swim` under test, node 0, and scripted others: node n lives at `address_of(n)`.

story = Story()
story.befriend(1)                                  node 1 joins us and is our peer
sent = story.hear(1, story.ping(1))                node 1 pings us; the effects of that one step
story.pass_time(1_000)                             deadlines are served; the effects of all steps
"""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import TypeVar

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
    """The description of node `number`."""
    incarnation = Incarnation(generation, claim)
    return NodeInfo(node_id(number), address or address_of(number), incarnation, capacity, metadata)


def verdict(number: int, status: Status, by: int, generation: int = 1, claim: int = 0) -> VerdictUpdate:
    """Node `by` says how node `number` stands."""
    return VerdictUpdate(node_id(number), Incarnation(generation, claim), status, node_id(by))


def sent(effects: Iterable[Effect], kind: type[M]) -> list[tuple[Address, M]]:
    """The messages of one kind among the effects, with their targets."""
    return [(e.target, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def changes(effects: Iterable[Effect]) -> list[tuple[NodeId, Status]]:
    """The membership changes among the effects."""
    return [(e.info.node_id, e.status) for e in effects if isinstance(e, MembershipChanged)]


def told(effects: Iterable[Effect]) -> list[Update]:
    """All news that rides on the pings and answers among the effects."""
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
        """One event now."""
        return self.swim.step(event, self.now)

    def hear(
        self, number: int, message: Message, *, token_valid: bool = False, source: Address | None = None
    ) -> list[Effect]:
        """A message from node `number`; what answers a join is for this life of ours unless it names another."""
        if isinstance(message, JoinAck | JoinNak | JoinRedirect) and not message.receiver_generation:
            message = replace(message, receiver_generation=self.us.incarnation.generation)
        return self.step(Received(source or address_of(number), message, token_valid))

    def befriend(self, *numbers: int, capacity: int = 8) -> list[Effect]:
        """These nodes join us."""
        effects: list[Effect] = []
        for number in numbers:
            effects += self.hear(number, JoinReq(info_of(number, capacity=capacity), b"t"), token_valid=True)
        return effects

    def pinged(self, *numbers: int) -> bytes:
        """Let these peers be pinged in the course of time; the number of the last ping to the last of them."""
        pings = sent(self.pass_time(2_000, answering=numbers), PingRequest)
        seqs = [ping.seq for target, ping in pings if target == address_of(numbers[-1])]
        return seqs[-1].to_bytes(NUMBER_BYTES)

    def hear_news(self, number: int, *updates: Update) -> list[Effect]:
        """Node `number` pings us with news on the ping."""
        return self.hear(number, self.ping(number, updates=updates))

    def hear_of(self, *numbers: int) -> None:
        """Node 1 names these nodes, so they enter the directory."""
        for number in numbers:
            self.hear_news(1, AliveUpdate(info_of(number)))

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
        """A ping of node `source`; `room` is its capacity and number of peers."""
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

    def answer_to(self, request: PingRequest, *, nack: bool = False, updates: tuple[Update, ...] = ()) -> PingResponse:
        """What the target of a ping of ours would answer."""
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
        """Serve deadlines for a while; `answering` are the nodes that answer our direct pings at once."""
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
                    effects += self.hear(number, self.answer_to(request))
        self.now = end
        return effects

    def quiet(self, *numbers: int) -> None:
        """Let all news be told, with these nodes answering, so that later pings are those of probe rounds."""
        self.pass_time(20_000, answering=numbers)

    def entry(self, number: int) -> MemberRecord | None:
        """What we hold of a node."""
        return self.swim._members.get(node_id(number))

    def status(self, number: int) -> Status | None:
        """How a node stands with us."""
        entry = self.entry(number)
        return entry.status if entry is not None else None

    def news_about(self, number: int) -> Update | None:
        """What waits to be told about a node."""
        news = self.swim._queue.queued.get(node_id(number))
        return news.update if news is not None else None

    def peers(self) -> set[int]:
        """The numbers of our peers."""
        return {int.from_bytes(m.node_id, "big") for m in self.swim.describe().members if m.is_peer}

    def dropped(self, reason: DropReason) -> int:
        """How often something was dropped for a reason."""
        return self.swim.describe().dropped.get(reason, 0)
