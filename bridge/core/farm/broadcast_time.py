"""Whether elections leave enough time: how long a majority takes to store an entry, beside the election timeout.

Raft keeps a leader only if broadcastTime << electionTimeout (section 5.6): if a round to the majority, disks included,
takes about as long as followers wait, then every pause on the way unseats the leader. The leader has a measurement for
nothing, the time that its clock entries take to be committed. The median of several decides, so that a pause of one
disk is no alarm; a tenth of the timeout is what the paper asks for, a fifth is told to the operator.
"""

from collections import deque
from statistics import median

MEASURED = 8
SHARE = 5


class BroadcastTime:
    """The last measurements of one leader."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._limit_ms = election_timeout_ms / SHARE
        self._election_timeout_ms = election_timeout_ms
        self._taken_ms: deque[float] = deque(maxlen=MEASURED)

    def measured(self, taken_ms: float) -> None:
        """An entry was committed so long after it was proposed."""
        self._taken_ms.append(taken_ms)

    def forget(self) -> None:
        """Another server leads."""
        self._taken_ms.clear()

    @property
    def alarm(self) -> str | None:
        """What is wrong, in words; None while enough is known and nothing is."""
        if len(self._taken_ms) < MEASURED or (usual_ms := median(self._taken_ms)) <= self._limit_ms:
            return None
        return (
            f"a majority takes {usual_ms:.0f} ms to store an entry, more than a fifth of the shortest election timeout"
            f" ({self._election_timeout_ms} ms): leaders will be unseated by pauses that are none"
        )
