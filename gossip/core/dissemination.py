"""News that rides on pings: each piece lambda * log n times, those told least first (SWIM paper, section 4.1).

A piece of news about a member replaces an older one about the same member, so the queue is bounded by the directory.
Sizes are estimates: the core does not know the encoding, and the wire floor shortens a payload that turns out too long.
"""

from math import ceil, log10

from gossip.core.member import CREDENTIAL_LIMIT_BYTES, NodeId, NodeInfo
from gossip.core.messages import AliveUpdate, Update

_VERDICT_BYTES = 48
_INFO_BASE_BYTES = 64


def info_bytes(info: NodeInfo) -> int:
    """About how many bytes a member's description takes; an own one is not signed yet and will grow."""
    credential_bytes = len(info.credential) or CREDENTIAL_LIMIT_BYTES
    return _INFO_BASE_BYTES + len(info.address.host) + len(info.metadata) + credential_bytes


def update_bytes(update: Update) -> int:
    """About how many bytes an update takes on the wire."""
    return info_bytes(update.info) if isinstance(update, AliveUpdate) else _VERDICT_BYTES


def subject(update: Update) -> NodeId:
    """Whom an update is about."""
    return update.info.node_id if isinstance(update, AliveUpdate) else update.node_id


class _News:
    __slots__ = ("sent", "update")

    def __init__(self, update: Update) -> None:
        self.update = update
        self.sent = 0


class Dissemination:
    """The queue of news still to be told."""

    def __init__(self, multiplier: int) -> None:
        self._multiplier = multiplier
        self._news: dict[NodeId, _News] = {}

    def __len__(self) -> int:
        return len(self._news)

    def add(self, update: Update) -> None:
        """Tell this, and no longer what was told about the same member before."""
        self._news.pop(subject(update), None)
        self._news[subject(update)] = _News(update)

    def forget(self, node_id: NodeId) -> None:
        """Tell nothing about this member any more."""
        self._news.pop(node_id, None)

    def take(self, budget_bytes: int, group_size: int, told: NodeId | None = None) -> list[Update]:
        """What to say now to `told`: the least told first, as much as fits. Counts as sent."""
        limit = self._multiplier * ceil(log10(group_size + 1))
        taken: list[Update] = []
        for node_id, news in sorted(self._news.items(), key=lambda item: item[1].sent):
            size = update_bytes(news.update)
            if size > budget_bytes or (node_id == told and isinstance(news.update, AliveUpdate)):
                continue
            budget_bytes -= size
            taken.append(news.update)
            news.sent += 1
            if news.sent >= limit:
                del self._news[node_id]
            if budget_bytes < _VERDICT_BYTES:
                break
        return taken
