"""News that rides on pings: each piece lambda * log n times, those told least first (SWIM paper, section 4.1).

A piece of news about a member replaces an older one about the same member, so the queue is bounded by the directory.
The queue lies in levels by how often a piece was told, so that the least told are found without sorting: a group that
loses a fifth of its members has hundreds of pieces in the queue, and a datagram takes twenty of them.

Sizes are estimates: the core does not know the encoding, and the wire floor shortens a payload that turns out too long.
"""

from math import ceil, log10

from gossip.core.member import CREDENTIAL_LIMIT_BYTES, NodeId, NodeInfo, Status
from gossip.core.messages import AliveUpdate, Update

_VERDICT_BYTES = 48
_INFO_BASE_BYTES = 64
_PAIR = 2
_MISFITS_LIMIT = 8
"""How many pieces too large for the rest of a datagram are passed over before it counts as full."""


def info_bytes(info: NodeInfo) -> int:
    """About how many bytes a member's description takes; an own one is not signed yet and will grow."""
    credential_bytes = len(info.credential) or CREDENTIAL_LIMIT_BYTES
    return _INFO_BASE_BYTES + len(info.address.host) + len(info.metadata) + credential_bytes


def update_bytes(update: Update) -> int:
    """About how many bytes an update takes on the wire."""
    if isinstance(update, AliveUpdate):
        return info_bytes(update.info)
    return _VERDICT_BYTES + (CREDENTIAL_LIMIT_BYTES if update.status is Status.LEFT else 0)


def subject(update: Update) -> NodeId:
    """Whom an update is about."""
    return update.info.node_id if isinstance(update, AliveUpdate) else update.node_id


class _News:
    __slots__ = ("is_alive", "sent", "size_bytes", "subject", "update")

    def __init__(self, update: Update) -> None:
        self.update = update
        self.subject = subject(update)
        self.is_alive = isinstance(update, AliveUpdate)
        self.size_bytes = update_bytes(update)
        self.sent = 0


class Dissemination:
    """The queue of news still to be told."""

    def __init__(self, multiplier: int) -> None:
        self._multiplier = multiplier
        self._news: dict[NodeId, _News] = {}
        self._levels: list[dict[NodeId, _News]] = [{}]

    def __len__(self) -> int:
        return len(self._news)

    def add(self, update: Update) -> None:
        """Tell this, and no longer what was told about the same member before."""
        news = _News(update)
        self.forget(news.subject)
        self._news[news.subject] = self._levels[0][news.subject] = news

    def forget(self, node_id: NodeId) -> None:
        """Tell nothing about this member any more."""
        news = self._news.pop(node_id, None)
        if news is not None:
            del self._levels[news.sent][node_id]

    def take(self, budget_bytes: int, group_size: int, told: NodeId | None = None) -> list[Update]:
        """What to say now to `told`: the least told first, as much as fits. Counts as sent."""
        if not self._news:
            return []
        if told is not None and group_size <= _PAIR:
            self._forget_introduction(told)
        limit = self._multiplier * ceil(log10(group_size + 1))
        taken = self._choose(budget_bytes, told)
        for news in taken:
            del self._levels[news.sent][news.subject]
            news.sent += 1
            if news.sent >= limit:
                del self._news[news.subject]
                continue
            if news.sent == len(self._levels):
                self._levels.append({})
            self._levels[news.sent][news.subject] = news
        return [news.update for news in taken]

    def _forget_introduction(self, told: NodeId) -> None:
        """In a pair nobody is left to whom the other could be introduced: kept, that would be gossip without end."""
        news = self._news.get(told)
        if news is not None and news.is_alive:
            self.forget(told)

    def _choose(self, budget_bytes: int, told: NodeId | None) -> list[_News]:
        chosen: list[_News] = []
        misfits = 0
        for level in self._levels:
            for news in level.values():
                if news.is_alive and news.subject == told:
                    continue
                if news.size_bytes > budget_bytes:
                    misfits += 1
                    if misfits > _MISFITS_LIMIT:
                        return chosen
                    continue
                budget_bytes -= news.size_bytes
                chosen.append(news)
                if budget_bytes < _VERDICT_BYTES:
                    return chosen
        return chosen
