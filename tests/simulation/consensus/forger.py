"""An attacker with a key who forges messages with far higher terms, in the name of any server.

A forged message ends at the end of its recipient's log and claims that all of it is committed. A server that accepts it
at its own term, not at the forged one, commits entries without a majority. Nothing else is forged: Raft trusts its
voters, and a forger that knows the current term is a voter. Forged messages of a leader go only to a server with a term
above 0. At term 0 a server accepts any leader, so the transport must authenticate it. A server without a vote in the
newest committed configuration does not receive a forged message, because other servers do not adopt its term. With a
forged term, this server could not work until the voters reached that term, so an operator would have to replace it.
"""

from collections.abc import Callable
from random import Random

from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    Message,
    RefusalReason,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from consensus.core.model import MAX_NUMBER, LogId, ServerId
from consensus.protocols.kafka.wire.limits import MAX_EPOCH
from tests.simulation.consensus.checker import Checker
from tests.simulation.consensus.network import Network
from tests.simulation.consensus.profile import Profile
from tests.simulation.consensus.stage import Stage

TERMS = (2**30, 2**48, MAX_NUMBER - 1, MAX_NUMBER)
EPOCHS = (2**24, 2**30, MAX_EPOCH - 1, MAX_EPOCH)
"""Terms on Kafka's wire, with 31 bits."""
_FORGED_EPOCHS_MAX = 60
"""Maximum number of forgeries; more could use up the terms of 31 bits, by `TERM_STEP_MAX` each."""


class Forger:
    """All forgeries of one history; none in most worlds, and none after healing."""

    def __init__(
        self,
        random: Random,
        profile: Profile,
        stage: Stage,
        network: Network,
        checker: Checker,
        trace: Callable[[str], None],
    ) -> None:
        self._random = random
        self._profile = profile
        self._stage = stage
        self._network = network
        self._checker = checker
        self._trace = trace
        self._terms = TERMS if profile.kafka is None else EPOCHS
        self._forged_max = MAX_NUMBER if profile.kafka is None else _FORGED_EPOCHS_MAX
        self.forged = 0

    def begin(self) -> None:
        """Schedule the first forgery."""
        if self._profile.forged_ms:
            self._stage.after(self._profile.forged_ms, self._forge)

    def _forge(self) -> None:
        if not self._stage.trouble or self.forged >= self._forged_max:
            return
        random, machines = self._random, self._stage.machines
        recipient, sender = random.choice(list(machines)), random.choice(list(machines))
        run = machines[recipient].run
        if run is not None and sender != recipient and recipient in self._checker.configuration.voter_ids:
            about = run.core.describe()
            message = random.choice(_forgeries(sender, recipient, about.last, random.choice(self._terms)))
            if about.term or not isinstance(message, AppendEntries | BeginQuorumEpoch | FetchReply):
                self.forged += 1
                self._trace(f"{self._stage.now} forged {type(message).__name__} {sender} -> {recipient}")
                self._network.send_alone(sender, recipient, message)
        self._stage.after(1 + int(random.expovariate(1 / self._profile.forged_ms)), self._forge)


def _forgeries(sender: ServerId, recipient: ServerId, last: LogId, term: int) -> tuple[Message, ...]:
    """Return each message of each strategy; a core drops messages of the wrong strategy as implausible."""
    commit = MAX_NUMBER
    return (
        RequestVote(term=term, candidate=sender, last=LogId(MAX_NUMBER, term), correlation=1),
        RequestVote(term=term, candidate=sender, last=LogId(MAX_NUMBER, term), correlation=1, transfer=True),
        VoteReply(term=term, granted=True, correlation=1),
        AppendEntries(term=term, leader=sender, previous=last, entries=(), commit=commit, correlation=1),
        AppendReply(term=term, success=True, next_index=last.index + 1, correlation=1),
        TimeoutNow(term, sender, 1),
        Fetch(term=term, replica=sender, position=last, commit=commit, max_wait_ms=100, max_bytes=1_000, correlation=1),
        FetchReply(term=term, leader=sender, commit=commit, correlation=1, error=RefusalReason.NOT_LEADER),
        BeginQuorumEpoch(term=term, leader=sender, correlation=1),
        EndQuorumEpoch(term=term, leader=sender, preferred=(recipient,), correlation=1),
    )
