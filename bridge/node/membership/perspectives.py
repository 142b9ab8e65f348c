"""The perspectives of all nodes: each node replies to the query `view` with a short form of its view.

    VerdictWatch ──view──▶ OwnPerspective ──▶ the reply to other nodes
    GET /v1/views ──▶ Perspectives ══ query by gossip ══▶ every other node

Each node prepares its reply when it checks its verdict, so a query does not build a view. Only the commit index in the
reply is current: in a healthy farm, checks are so rare that every node would otherwise seem to lag. A node sends one
query at a time, and uses the result for `FRESH_S`. So all its readers cost the farm one small query in this time. If a
node stops replying, its last reply is still shown, with its age.
"""

from collections.abc import Callable
from typing import Final

import trio
from msgspec.structs import replace

from bridge.api.control import Refused
from bridge.api.observations.perspectives import Extract, PerspectivesAnswer, extract, perspective
from bridge.api.view import FarmView
from bridge.node.membership.user_messages import UserMessages
from bridge.wire.membership.short_view import (
    VIEW_QUERY,
    ShortView,
    ShortViewError,
    read_short_view,
    write_short_view,
)

FRESH_S: Final = 5.0
REPLY_S: Final = 2.0
"""Seconds that a query waits for replies; nodes of older versions do not reply."""


class OwnPerspective:
    """The short form of this node's last view."""

    def __init__(self, applied_index: Callable[[], int] = lambda: 0) -> None:
        self._applied_index = applied_index
        self.extract: Extract | None = None
        """The last short view and names; None before the first check."""

    def take(self, view: FarmView) -> None:
        """Keep the short form of a view."""
        self.extract = extract(view)

    def answer(self) -> str:
        """Return the reply to the query of another node; empty before the first check."""
        if self.extract is None:
            return ""
        short = self.extract.short
        return write_short_view(replace(short, commit_index=max(short.commit_index, self._applied_index())))


class Perspectives:
    """The last replies of all nodes, by NodeId in hexadecimal."""

    def __init__(
        self, own: OwnPerspective, messages: UserMessages, clock_ms: Callable[[], int], look: Callable[[], FarmView]
    ) -> None:
        """Set the sources; `look` builds the view of this node."""
        self._own = own
        self._look = look
        self._messages = messages
        self._clock_ms = clock_ms
        self._querying = trio.Lock()
        self._queried_at: float | None = None
        self._taken_at_ms = 0
        self._replies: dict[str, tuple[ShortView, float]] = {}
        """The reply and its time by the node's monotonic clock, in seconds."""
        self._respondents: frozenset[str] = frozenset()

    async def all(self) -> PerspectivesAnswer:
        """Return the last reply of each node; query the nodes if the last query is older than `FRESH_S`.

        Raise `Refused` without gossip, and before this node's first view.
        """
        async with self._querying:
            if self._queried_at is None or trio.current_time() - self._queried_at >= FRESH_S:
                await self._query()
        own = self._own.extract
        if own is None:
            raise Refused(503, "starting", "the node has not made its first view; try again in a moment")
        now_s = trio.current_time()
        nodes = []
        for node_id, name in own.members:
            seen, at_s = self._replies.get(node_id, (None, now_s))
            age_ms = None if seen is None else int((now_s - at_s) * 1000)
            nodes.append(perspective(own, (node_id, name), seen, age_ms, answered=node_id in self._respondents))
        return PerspectivesAnswer(self._taken_at_ms, tuple(nodes))

    async def _query(self) -> None:
        found = await self._messages.ask(VIEW_QUERY, "", REPLY_S)
        self._queried_at, self._taken_at_ms = trio.current_time(), self._clock_ms()
        # The view of the last check may be older than the replies, and lack the names of a new farm's servers.
        if self._own.extract is not None:
            self._own.take(self._look())
        respondents = set()
        for each in found.answers:
            try:
                reply = read_short_view(each.payload)
            except ShortViewError:
                continue
            respondents.add(each.id)
            self._replies[each.id] = (reply, self._queried_at)
        self._respondents = frozenset(respondents)
        present = {node_id for node_id, _ in self._own.extract.members} if self._own.extract else set()
        for former in self._replies.keys() - present:
            del self._replies[former]
