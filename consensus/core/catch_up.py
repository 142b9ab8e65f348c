"""A new server catches up before it votes, in rounds (thesis section 4.2.1).

    round    everything that the leader's log held when the round began has been stored by the new server

While it catches up, entries go on arriving, so it is never quite there. But each round carries only what arrived during
the one before. When a round lasts no longer than an election timeout, little enough is left: the new server may vote,
and the time until it can help to commit is shorter than one that clients live through anyway. After a bounded number of
rounds it is given up, and so it is when it does not get further for a while: a server that votes and cannot keep pace
would cost the group the failure that it was meant to survive.
"""

from dataclasses import dataclass

from consensus.core.configuration import ChangeRefusal
from consensus.core.model import Index, Milliseconds
from consensus.core.options import Options
from consensus.core.replication.standing import Standing


@dataclass(slots=True)
class CatchUp:
    """One new server's way to the end of the leader's log. `goal` is where the present round ends.

    A learner that becomes a voter may have stood still for long, so its patience begins with `asked_ms`.
    """

    goal: Index
    asked_ms: Milliseconds
    began_ms: Milliseconds
    round_number: int = 1
    caught_up: bool = False

    def check(self, standing: Standing, last_index: Index, now: Milliseconds, options: Options) -> ChangeRefusal | None:
        """Take note of how far the server has come; returns why it is given up, if it is."""
        while not self.caught_up and standing.match >= self.goal:
            if now - self.began_ms <= options.election_timeout_min_ms:
                self.caught_up = True
            elif self.round_number == options.catch_up_rounds:
                return ChangeRefusal.CATCH_UP_TOO_SLOW
            else:
                self.round_number += 1
                self.goal = last_index
                self.began_ms = now
        if not self.caught_up and now >= self.deadline(standing, options):
            return ChangeRefusal.CATCH_UP_STALLED
        return None

    def deadline(self, standing: Standing, options: Options) -> Milliseconds:
        """When the server is given up unless it gets further."""
        return max(self.asked_ms, standing.advanced_ms) + options.catch_up_stall_ms
