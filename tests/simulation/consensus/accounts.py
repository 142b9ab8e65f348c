"""What servers owe each other: every request is answered once, at once or, if it may wait, later.

The last piece of a snapshot is answered when all of them are checked. A fetch may be parked by a leader. One per asking
replica: who asks again gave the older one up, which is answered then. A server that does not lead parks nothing. A
crash settles the accounts of the server that dies.
"""

from collections import Counter

from consensus.core.effects import Effect, Send
from consensus.core.messages import InstallSnapshot, Message, PushRequest, RequestVote, SnapshotReply
from consensus.core.position import ServerId
from consensus.core.pull_messages import BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchReply, PullRequest


class AccountError(Exception):
    """A request was answered twice, not at all, or not in its time."""


class Accounts:
    """All requests that wait for an answer, by who owes it to whom."""

    def __init__(self) -> None:
        self._owed: dict[tuple[ServerId, ServerId], Counter[int]] = {}
        self._pieces: dict[tuple[ServerId, ServerId], Counter[int]] = {}

    def received(self, server: ServerId, sender: ServerId, message: Message, effects: list[Effect]) -> None:
        """A message was taken up, with these effects; raises `AccountError`."""
        if isinstance(message, Fetch):
            self._owed.setdefault((server, sender), Counter())[message.correlation] += 1
        elif isinstance(message, InstallSnapshot):
            self._pieces.setdefault((server, sender), Counter())[message.correlation] += 1
        elif isinstance(message, RequestVote | PushRequest | BeginQuorumEpoch | EndQuorumEpoch):
            answers = sum(
                isinstance(effect, Send)
                and effect.recipient == sender
                and not isinstance(effect.message, RequestVote | PushRequest | PullRequest)
                and effect.message.correlation == message.correlation
                for effect in effects
            )
            if answers != 1:
                raise AccountError(f"{message} was answered {answers} times")

    def stepped(self, server: ServerId, effects: list[Effect], *, leads: bool) -> None:
        """A step is over; raises `AccountError`."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, FetchReply):
                owed = self._owed.setdefault((server, effect.recipient), Counter())
                owed[effect.message.correlation] -= 1
                if owed[effect.message.correlation] < 0:
                    raise AccountError(f"server {server} answers a fetch twice: {effect}")
            if isinstance(effect, Send) and isinstance(effect.message, SnapshotReply):
                owed = self._pieces.setdefault((server, effect.recipient), Counter())
                owed[effect.message.correlation] -= 1
                if owed[effect.message.correlation] < 0:
                    raise AccountError(f"server {server} answers a piece of a snapshot twice: {effect}")
        if sum(owed.total() for pair, owed in self._pieces.items() if pair[0] == server) > 1:
            raise AccountError(f"server {server} owes answers for two pieces of snapshots")
        for (debtor, creditor), owed in self._owed.items():
            if debtor == server and owed.total() > (1 if leads else 0):
                raise AccountError(f"server {server} owes server {creditor} {owed.total()} answers")

    def crashed(self, server: ServerId) -> None:
        """What it owed is lost."""
        self._owed = {pair: owed for pair, owed in self._owed.items() if pair[0] != server}
        self._pieces = {pair: owed for pair, owed in self._pieces.items() if pair[0] != server}
