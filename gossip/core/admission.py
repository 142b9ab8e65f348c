"""The receiver's part of a join: a peer more, a redirect, a split link, or a refusal.

    leaving, in maintenance     silence
    no valid token              a JoinNak with a token (minted by the wire floor)
    the policy says no          a JoinNak with its own domain, code and etag
    room                        JoinAck; the link is symmetrical from now on
    no room, others have        JoinRedirect to them
    nobody known has room       the link A-B becomes A-new-B: JoinAck to new, JoinRedirect(EDGE_SPLIT) to B
    new could not use two ends  JoinNak(AT_CAPACITY)

Splitting is what lets a full overlay take a joiner: everybody's number of peers stays the same, and the new one gets
two. It happens only for a source with two vacancies, so each split uses up two and splitting comes to an end.
Capacities of 2 can only form rings, perhaps several; from 3 on the overlay holds together.

A source that we hold for dead, of whose later life we know, or whom we know elsewhere under the same incarnation is not
made a peer by its word alone (the precedence rule would be broken): it is told what we hold, refutes, and asks again.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from gossip.core.effects import OfferToken
from gossip.core.local_node import LocalNode, is_plausible
from gossip.core.member import Address, NodeInfo, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import JoinAck, JoinNak, JoinRedirect, JoinReq
from gossip.core.options import Options
from gossip.core.outbox import DropReason, Outbox
from gossip.core.piggyback import Piggyback
from gossip.core.probe import Prober
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.token_bucket import TokenBucket
from gossip.core.updates import Updates
from gossip.core.user_events import UserEvents

_REDIRECT_ADDRESSES = 4
_ENDS_OF_A_SPLIT = 2

AdmissionPolicy = Callable[[NodeInfo], JoinNak | None]
"""Why a joiner whose token and auth are right is rejected all the same, or nothing."""


def admit_all(_source: NodeInfo) -> JoinNak | None:
    """Whoever holds the farm's key may join."""
    return None


class Admission:
    """Decides about JoinReqs."""

    def __init__(
        self,
        own: LocalNode,
        membership: Membership,
        updates: Updates,
        composer: Piggyback,
        prober: Prober,
        user_messages: UserEvents,
        outbox: Outbox,
        options: Options,
        random: Random,
        admit: AdmissionPolicy = admit_all,
    ) -> None:
        self.in_maintenance = False
        self._admit = admit
        self._user_events = user_messages
        self._local = own
        self._membership = membership
        self._updates = updates
        self._piggyback = composer
        self._prober = prober
        self._outbox = outbox
        self._random = random
        self._tokens = TokenBucket(options.join_rate_per_second, options.join_burst)
        self._joins = TokenBucket(options.join_rate_per_second, options.join_burst)

    def receive(self, source: Address, request: JoinReq, now: int, *, token_valid: bool) -> None:
        """Handle one JoinReq."""
        if self._local.leaving:
            self._outbox.drop(DropReason.LEAVING)
        elif self.in_maintenance:
            self._outbox.drop(DropReason.MAINTENANCE)
        elif not is_plausible(request.source):
            self._outbox.drop(DropReason.BAD_DESCRIPTION)
        elif request.source.node_id == self._local.node_id and request.source.address == self._local.info.address:
            self._outbox.drop(DropReason.OWN_MESSAGE)
        elif not (self._joins if token_valid else self._tokens).take(now):
            self._outbox.drop(DropReason.RATE_LIMITED)
        elif not token_valid:
            self._outbox.emit(OfferToken(source, request.source.node_id, request.source.incarnation.generation))
        elif request.source.node_id == self._local.node_id:
            self._updates.suspect_conflict(request.source.address)
        else:
            self._consider(source, request, now)

    def _consider(self, source: Address, request: JoinReq, now: int) -> None:
        self._user_events.sync_clock(request.clock, now)
        rejection = self._admit(request.source)
        if rejection is not None:
            self._answer(source, request.source, rejection)
            return
        entry = self._membership.get(request.source.node_id)
        if entry is None and not self._membership.has_room and not self._may_split(request):
            # Not admitted, so not recorded: refusing costs no memory.
            self._refuse(source, request)
            return
        entry = self._updates.hear_alive(request.source, now)
        if entry is None:
            self._outbox.drop(DropReason.DIRECTORY_FULL)
            return
        if (
            not entry.is_live
            or entry.info.address != request.source.address
            or entry.incarnation > request.source.incarnation
        ):
            self._outbox.drop(DropReason.STALE_JOIN)
            self._prober.correct(entry, source, now)
            return
        entry.peer_count = request.peer_count
        if self._membership.is_peer(entry.node_id) or self._membership.link(entry):
            self._welcome(source, entry)
        elif self._may_split(request):
            self._split(source, entry)
        else:
            self._refuse(source, request)

    def _may_split(self, request: JoinReq) -> bool:
        return request.source.capacity - request.peer_count >= _ENDS_OF_A_SPLIT and not self._with_room(request)

    def _with_room(self, request: JoinReq) -> list[Entry]:
        return [
            entry
            for entry in self._membership.alive()
            if entry.has_room and entry.node_id != request.source.node_id and entry.address != request.source.address
        ]

    def _welcome(self, source: Address, entry: Entry, *others: Entry) -> None:
        first = tuple(other.info for other in others)
        sample = self._piggyback.welcome_sample(entry.node_id, first)
        self._answer(source, entry.info, JoinAck(self._local.info, sample, self._user_events.clock))

    def _answer(self, target: Address, receiver: NodeInfo, answer: JoinAck | JoinNak | JoinRedirect) -> None:
        """Send it for this life of its receiver: a later one must not take a recording of it for an answer."""
        bound = replace(answer, receiver_generation=receiver.incarnation.generation)
        self._outbox.send(target, bound, receiver.node_id)

    def _refuse(self, source: Address, request: JoinReq) -> None:
        roomy = self._with_room(request)
        if not roomy:
            self._answer(source, request.source, JoinNak(DOMAIN, RefusalCode.AT_CAPACITY))
            return
        chosen = self._random.sample(roomy, min(_REDIRECT_ADDRESSES, len(roomy)))
        # The first named will probably be taken: do not send everybody there until it has told us its new figure.
        chosen[0].peer_count = (chosen[0].peer_count or 0) + 1
        addresses = tuple(entry.address for entry in chosen)
        self._answer(source, request.source, JoinRedirect(addresses, DOMAIN, RefusalCode.AT_CAPACITY))

    def _split(self, source: Address, entry: Entry) -> None:
        able = [peer for peer in self._membership.peers() if peer.status is Status.ALIVE]
        if not able:
            self._answer(source, entry.info, JoinNak(DOMAIN, RefusalCode.AT_CAPACITY))
            return
        other = self._random.choice(able)
        self._membership.unlink(other.node_id)
        self._membership.link(entry)
        self._answer(other.address, other.info, JoinRedirect((entry.address,), DOMAIN, RefusalCode.EDGE_SPLIT))
        self._welcome(source, entry, other)
