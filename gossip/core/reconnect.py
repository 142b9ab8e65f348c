"""Asks those who are thought dead or gone, now and then, whether they are.

    most known members live            one of the lost every `reconnect_period_ms`, at random times about that
    as many are lost as live, or all   one of the lost every probe period: then it is rather this node that is lost

It is how the halves of a partition find each other without a human, and how a lie about somebody who was never told of
it ends: the ping brings the verdict to its subject, which refutes. The departed are asked as well as the dead, because
their verdict is hearsay, too: two halves of a group that each hold the other for departed would stay so for ever.
"""

from random import Random

from gossip.core.member import Status
from gossip.core.membership import Membership
from gossip.core.options import Options
from gossip.core.probe import Prober


class Reconnect:
    """When somebody lost is asked next."""

    def __init__(self, membership: Membership, prober: Prober, options: Options, random: Random, now: int) -> None:
        self._membership = membership
        self._prober = prober
        self._options = options
        self._random = random
        self.deadline = now + options.reconnect_period_ms

    def expire(self, now: int) -> None:
        """Ask one of the lost, if it is time and there is one."""
        if now < self.deadline:
            return
        live = self._membership.live_count
        if len(self._membership) - live < max(live, 1):
            self.deadline = now + self._random.randrange(1, 2 * self._options.reconnect_period_ms)
        else:
            self.deadline = now + self._options.probe_period_ms
        lost = [*self._membership.sample(1, Status.DEAD), *self._membership.sample(1, Status.LEFT)]
        if lost:
            self._prober.ping(lost[0] if len(lost) == 1 else self._random.choice(lost), now)
