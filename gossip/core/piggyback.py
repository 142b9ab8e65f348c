"""Fills the payload of one ping or answer, most urgent first, within the budget of a datagram.

1. the notice: what we hold against the receiver itself, so that it can refute (Lifeguard's buddy notice)
2. our own description, if the other end holds an older one
3. news, told least first
4. user messages: what applications say
5. in answers: a sample of the living and one verdict we remember, which repairs what piggybacking missed
"""

from gossip.core.dissemination import Dissemination, info_bytes, update_bytes
from gossip.core.keyring_exchange import KeyringExchange
from gossip.core.local_node import LocalNode
from gossip.core.member import NodeId, NodeInfo, Status
from gossip.core.membership import Entry, Membership
from gossip.core.messages import AliveUpdate, Payload, Update, UserMessage, VerdictUpdate
from gossip.core.options import Options
from gossip.core.user_events import UserEvents, user_message_bytes


def notice(entry: Entry, own_id: NodeId) -> Update:
    """What we hold about a member, to be told to itself or to others."""
    if entry.status is Status.ALIVE:
        return AliveUpdate(entry.info)
    if entry.status is Status.LEFT:
        return VerdictUpdate(entry.node_id, entry.incarnation, Status.LEFT, entry.node_id, entry.departure)
    return VerdictUpdate(entry.node_id, entry.incarnation, entry.status, own_id)


class Piggyback:
    """Composes payloads out of the queue of news and the directory."""

    def __init__(
        self,
        own: LocalNode,
        membership: Membership,
        news: Dissemination,
        user_messages: UserEvents,
        keys: KeyringExchange,
        options: Options,
    ) -> None:
        self._local = own
        self._membership = membership
        self._news = news
        self._user_events = user_messages
        self._keys = keys
        self._options = options
        self.now = 0
        """The time of the step under way."""

    def question(self, entry: Entry | None, first: tuple[Update, ...] = ()) -> Payload:
        """The payload of a ping to `entry`."""
        return self._compose(entry, list(first), with_sample=False)

    def bare(self, entry: Entry) -> Payload:
        """The payload of a relayed ping: the notice only, since helpers carry it at their own cost."""
        updates = (notice(entry, self._local.node_id),) if self._is_owed_notice(entry) else ()
        return Payload(updates, self._local.info.capacity, self._membership.peer_count)

    def answer(self, entry: Entry | None, first: tuple[Update, ...], *, with_own: bool) -> Payload:
        """The payload of a ping's answer to `entry`."""
        updates = list(first)
        if with_own:
            updates.append(AliveUpdate(self._local.info))
        return self._compose(entry, updates, with_sample=True)

    def welcome_sample(self, but: NodeId, first: tuple[NodeInfo, ...] = ()) -> tuple[NodeInfo, ...]:
        """The members named in a JoinAck, beside this node's own description."""
        budget = self._options.payload_budget_bytes - info_bytes(self._local.info)
        chosen = list(first)
        budget -= sum(info_bytes(info) for info in first)
        named = {info.node_id for info in first}
        for entry in self._sample(but):
            size = info_bytes(entry.info)
            if size <= budget and entry.node_id not in named:
                chosen.append(entry.info)
                budget -= size
        return tuple(chosen)

    def _compose(self, entry: Entry | None, updates: list[Update], *, with_sample: bool) -> Payload:
        told = entry.node_id if entry is not None else None
        if entry is not None and entry.status is not Status.ALIVE and not updates and self._is_owed_notice(entry):
            updates.append(notice(entry, self._local.node_id))
        budget = self._options.payload_budget_bytes - sum(map(update_bytes, updates))
        # Kept free for what is remembered: a group that is never out of news would else repair nothing.
        remembered = self._remembered(told) if with_sample else []
        budget -= sum(map(update_bytes, remembered))
        news = self._news.take(budget, self._membership.group_size, told)
        if news:
            budget -= sum(map(update_bytes, news))
            updates.extend([update for update in news if update not in updates] if updates else news)
        user_messages: tuple[UserMessage, ...] = ()
        if len(self._user_events) > 0:
            user_messages = self._user_events.take(budget, self._membership.group_size, told)
            budget -= sum(map(user_message_bytes, user_messages))
        sample: tuple[NodeInfo, ...] = ()
        if with_sample:
            updates.extend(remembered)
            sample = self._fitting(self._sample(told), budget)
        own = self._local.info
        return Payload(
            tuple(updates), own.capacity, self._membership.peer_count, sample, user_messages, self._keys.digest
        )

    @staticmethod
    def _fitting(entries: list[Entry], budget_bytes: int) -> tuple[NodeInfo, ...]:
        chosen: list[NodeInfo] = []
        for entry in entries:
            info = entry.info
            size_bytes = info_bytes(info)
            if size_bytes <= budget_bytes:
                chosen.append(info)
                budget_bytes -= size_bytes
        return tuple(chosen)

    def _is_owed_notice(self, entry: Entry) -> bool:
        if entry.status is Status.SUSPECT:
            return self._options.buddy_notice
        return entry.status is not Status.ALIVE

    def _sample(self, but: NodeId | None) -> list[Entry]:
        """Whom to name. In an overlay only those for whom this node can vouch by itself."""
        if self._options.overlay:
            return self._membership.vouched(self._options.sample_size, self.now - self._options.directory_age_ms, but)
        return self._membership.sample(self._options.sample_size, Status.ALIVE, but)

    def _remembered(self, but: NodeId | None) -> list[Update]:
        """One dead and one departed member, for those who missed the news.

        The dead one is told as suspect: where it is thought alive, it may well be, as after a healed partition, and
        must get its time to refute before half a group is buried on the other half's word.
        """
        if not self._membership.has_tombstones:
            return []
        updates: list[Update] = [
            notice(entry, self._local.node_id) for entry in self._membership.sample(1, Status.LEFT, but)
        ]
        updates.extend(
            VerdictUpdate(entry.node_id, entry.incarnation, Status.SUSPECT, self._local.node_id)
            for entry in self._membership.sample(1, Status.DEAD, but)
        )
        return updates
