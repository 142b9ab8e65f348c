"""Checks that every request gets exactly one answer: immediately, or later if it may wait.

The last chunk of a snapshot is answered after all chunks are checked. A leader may delay the reply to one fetch per
replica: a newer fetch of the replica ends the older one, with a reply. Other servers do not delay replies to fetches. A
crash cancels all requests pending at the crashed server. Requests of clients and operators are answered at most once.
"""

from collections import Counter
from typing import Final

from consensus.core.effects import Answer, Effect, Send
from consensus.core.messages import (
    AppendRequest,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    FetchRequest,
    FetchSnapshot,
    FetchSnapshotReply,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
)
from consensus.core.model import ServerId

_MAX_READS = 64
_WAITING: Final[dict[type[Message], type[Message]]] = {
    Fetch: FetchReply,
    FetchSnapshot: FetchSnapshotReply,
    InstallSnapshot: SnapshotReply,
}
"""Requests whose answer may wait, and the type of the answer."""
_ANSWERS = frozenset(_WAITING.values())


class AccountError(Exception):
    """A request was answered twice, not at all, or too late."""


class Accounts:
    """All pending requests, by server, requester and type of answer."""

    def __init__(self) -> None:
        self._owed: dict[tuple[ServerId, ServerId, type[Message]], Counter[int]] = {}
        self._pending: dict[tuple[type[Answer], int], ServerId] = {}

    def received(self, server: ServerId, sender: ServerId, message: Message, effects: list[Effect]) -> None:
        """Record a received message and check its immediate answers; raises `AccountError`."""
        kind = _WAITING.get(type(message))
        if kind is not None:
            self._owed.setdefault((server, sender, kind), Counter())[message.correlation] += 1
        elif isinstance(message, RequestVote | AppendRequest | BeginQuorumEpoch | EndQuorumEpoch):
            answers = sum(
                isinstance(effect, Send)
                and effect.recipient == sender
                and not isinstance(effect.message, RequestVote | AppendRequest | FetchRequest)
                and effect.message.correlation == message.correlation
                for effect in effects
            )
            if answers != 1:
                raise AccountError(f"{message} has {answers} answers")

    def request_sent(self, server: ServerId, answer: type[Answer], number: int) -> None:
        """Record a request of a client or an operator."""
        self._pending[answer, number] = server

    def record_answer(self, server: ServerId, answer: type[Answer], number: int) -> None:
        """Check an answer to a client or an operator; raises `AccountError`."""
        if self._pending.pop((answer, number), None) != server:
            raise AccountError(f"server {server} gives an answer that no call waits for: {answer.__name__} {number}")

    def stepped(self, server: ServerId, effects: list[Effect], *, leads: bool) -> None:
        """Check the answers of a step, and the pending requests after it; raises `AccountError`."""
        for effect in effects:
            if isinstance(effect, Send) and type(effect.message) in _ANSWERS:
                owed = self._owed.setdefault((server, effect.recipient, type(effect.message)), Counter())
                owed[effect.message.correlation] -= 1
                if owed[effect.message.correlation] < 0:
                    raise AccountError(f"server {server} answers a request twice: {effect}")
                if not owed[effect.message.correlation]:
                    del owed[effect.message.correlation]
        debts = {pair: sum(owed.values()) for pair, owed in self._owed.items() if pair[0] == server and owed}
        if sum(debt for (_, _, kind), debt in debts.items() if kind is SnapshotReply) > 1:
            raise AccountError(f"server {server} has two unanswered chunks of snapshots")
        for (_, creditor, kind), debt in debts.items():
            limit = {SnapshotReply: 1, FetchReply: int(leads), FetchSnapshotReply: _MAX_READS * leads}[kind]
            if debt > limit:
                raise AccountError(
                    f"server {server} has {debt} unanswered requests of server {creditor} for a {kind.__name__}"
                )

    def crashed(self, server: ServerId) -> None:
        """Drop the pending requests of a crashed server."""
        self._owed = {pair: owed for pair, owed in self._owed.items() if pair[0] != server}
        self._pending = {number: owner for number, owner in self._pending.items() if owner != server}
