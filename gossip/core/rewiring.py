"""Sews an overlay together again after a partition.

While a group is split, each half fills the links that it lost among its own members. Once they hear of each other
again every node may be at capacity: news crosses by the occasional probe of the directory, but not one link does, and
the next failure could cut the halves apart for good. So a node at capacity that sees a dead member revive gives up two
links, with a probability that makes about two nodes of the group do so per revived member:

    Y1 - X - Y2   and   Z - W      become      Y1 - Y2   and   Z - X - W

Y1 and Y2 are told to link with each other, X joins Z, which splits one of its links for it (see `admission`).
Everybody's number of peers stays what it was.
"""

from random import Random

from gossip.core.join import Joining
from gossip.core.member import Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import JoinRedirect
from gossip.core.outbox import Outbox
from gossip.core.refusal import DOMAIN, RefusalCode
from gossip.core.token_bucket import TokenBucket

_LINKS = 2
_PER_SECOND = 1
_BURST = 1


class Rewiring:
    """Exchanges links for such as lead to revived members."""

    def __init__(self, membership: Membership, joining: Joining, outbox: Outbox, random: Random) -> None:
        self._membership = membership
        self._joining = joining
        self._outbox = outbox
        self._random = random
        self._rate = TokenBucket(_PER_SECOND, _BURST)

    def revived(self, entry: Entry, now: int) -> None:
        """A member that was dead in our view lives."""
        membership = self._membership
        if membership.has_room or membership.is_peer(entry.node_id) or not entry.is_live:
            return
        if (
            self._random.random() * membership.live_count >= _LINKS
            or not self._joining.has_free
            or not self._rate.take(now)
        ):
            return
        able = [peer for peer in membership.peers() if peer.status is Status.ALIVE]
        if len(able) < _LINKS:
            return
        one, other = self._random.sample(able, _LINKS)
        for peer, partner in ((one, other), (other, one)):
            membership.unlink(peer.node_id)
            redirect = JoinRedirect(
                (partner.address,),
                DOMAIN,
                RefusalCode.EDGE_SPLIT,
                receiver_generation=peer.info.incarnation.generation,
            )
            self._outbox.send(peer.address, redirect, peer.node_id)
        self._joining.go(entry.address, now)
