"""The helper's part of a relayed ping.

    requester ──ttl 2──▶ helper ──ttl 1──▶ [second helper] ──ttl 0──▶ target
        ▲◀────────────── answer, back along the same hops ──────────────┘│
        └◀────────────────────── and directly ──────────────────────────┘

A helper passes a request on to its target if it knows the target and ttl is at least 1; at ttl 2 or more it may give
it to one other peer instead. It passes the request on with one less, as the RFC says; a ttl above `RELAY_TTL_MAX`
counts as that. At ttl 0 it never passes anything on. It remembers (source, target, seq) -> previous hop for one period;
an answer that matches goes back there, whatever its ttl. A helper that pinged the target itself and heard nothing says
so with a nack: the requester learns that its own link works, and does not blame itself (Lifeguard).
In an overlay most helpers do not know the target; they say the same when they passed the request on in vain.

A repeated key is dropped, which also ends loops; the table is bounded, so that nobody can use it up for longer than a
period.
"""

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from gossip.core.member import Address, NodeId, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import PingRequest, PingResponse
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox

_Key = tuple[NodeId, NodeId, int]

RELAY_TTL_MAX: Final = 8
"""A higher ttl is taken as this one: one datagram of a stranger with ttl 255 would else be sent by 254 helpers."""


@dataclass(slots=True)
class _Relay:
    previous_hop: Address
    nack_at: int | None
    forget_at: int
    request: PingRequest

    @property
    def previous_node(self) -> NodeId | None:
        """The requester, or one more helper, whose id the request does not tell."""
        return self.request.source_id if self.request.requester is None else None


class Relays:
    """Requests that this node passed on for others."""

    def __init__(self, membership: Membership, outbox: Outbox, options: Options, random: Random) -> None:
        self._membership = membership
        self._outbox = outbox
        self._options = options
        self._random = random
        self._relays: dict[_Key, _Relay] = {}

    def __len__(self) -> int:
        return len(self._relays)

    @property
    def deadline(self) -> int | None:
        """When the next nack is due or an entry ends."""
        if not self._relays:
            return None
        return min(
            (relay.forget_at if relay.nack_at is None else relay.nack_at for relay in self._relays.values()),
            default=None,
        )

    def expire(self, now: int) -> None:
        """Send the nacks that are due, forget what is over."""
        for key, relay in list(self._relays.items()):
            if relay.nack_at is not None and relay.nack_at <= now:
                relay.nack_at = None
                request = relay.request
                self._outbox.send(
                    relay.previous_hop,
                    PingResponse(
                        request.source_id, request.target_id, request.target_incarnation, request.seq, 0, nack=True
                    ),
                    relay.previous_node,
                )
            if relay.forget_at <= now:
                del self._relays[key]

    def pass_on(self, source: Address, request: PingRequest, now: int) -> None:
        """A request for somebody else: towards its target, as far as ttl allows."""
        key = (request.source_id, request.target_id, request.seq)
        next_hop = self._next_hop(source, request)
        if next_hop is None:
            self._outbox.drop(DropReason.NOT_THE_TARGET)
            return
        if key in self._relays:
            self._outbox.drop(DropReason.RELAY_REPEATED)
            return
        if len(self._relays) >= self._options.relays_limit:
            self._outbox.drop(DropReason.RELAY_TABLE_FULL)
            return
        ttl = min(request.ttl, RELAY_TTL_MAX) - 1
        forwarded = replace(request, ttl=ttl, requester=request.requester or source)
        # Three quarters: the nack must be back before the requester's round ends.
        nacks = self._options.nacks and (next_hop.node_id == request.target_id or self._options.overlay)
        nack_at = now + self._options.probe_timeout_ms * 3 // 4 if nacks else None
        self._relays[key] = _Relay(source, nack_at, now + self._options.probe_period_ms, request)
        self._outbox.send(next_hop.address, forwarded, next_hop.node_id)

    def _next_hop(self, source: Address, request: PingRequest) -> Entry | None:
        if request.ttl < 1:
            return None
        target = self._membership.get(request.target_id)
        if target is not None and target.status is not Status.LEFT:
            return target
        if request.ttl < 2:  # noqa: PLR2004 - the last hop must be the target itself
            return None
        seen = {source, request.requester}
        others = [
            peer for peer in self._membership.peers() if peer.address not in seen and peer.node_id != request.source_id
        ]
        return self._random.choice(others) if others else None

    def pass_back(self, response: PingResponse) -> bool:
        """An answer to somebody else's request: one hop back. Whether it was one of ours to pass."""
        key = (response.source_id, response.target_id, response.seq)
        relay = self._relays.get(key)
        if relay is None:
            return False
        if response.nack:
            self._outbox.send(relay.previous_hop, response, relay.previous_node)
            return True
        del self._relays[key]
        self._outbox.send(relay.previous_hop, response, relay.previous_node)
        return True
