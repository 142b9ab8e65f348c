"""User events and queries: small messages that operators send to all nodes by gossip, as in serf.

    garlicfarm event ─▶ this node ══ gossip ══▶ every other node ─▶ its trace (`user-event`) ─▶ `garlicfarm events`
    garlicfarm query ─▶ this node ══ gossip ══▶ every other node ─▶ its reply ─▶ this node, until all have replied
                                                                                 or the timeout

A node replies to the queries `ping` (with its name), `version`, `rtt` (with its measured round-trip times), `clock` and
`view` (with its view in short). The query `clock` is for nodes that create a farm, `view` for the comparison of all
nodes. A node does not reply to other queries. Its trace shows answered and unanswered queries (`query`), except `clock`
and `view`.

Gossip seals a message with the farm's key, but without its sender's signature, so the claimed sender is not
trustworthy. Therefore a message only changes the trace of a node, and only replies in the name of a known member count.
An event or a query has a name of at most 32 printable characters and a payload of at most 512 bytes.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

import trio
from msgspec import Struct

from bridge.api.control import QueryAnswer, QueryAnswerView, Refused
from bridge.api.events import QUERY, USER_EVENT
from bridge.api.printable import printable
from bridge.api.trace import Scalar
from bridge.node.events.event_log import EventLog
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.membership_provider import MembershipProvider
from gossip import BusyError, Group, NodeId, Query, UserEvent

RESERVED_PREFIX: Final = "gossip:"
"""Prefix of names of messages that gossip itself sends."""


class UserMessages(Struct, eq=False, kw_only=True):
    """The messages of one node's operators and of other nodes.

    `answers` has the functions that make replies by query, and `quiet` the queries that nodes send themselves.
    """

    provider: MembershipProvider
    member_directory: MemberDirectory
    trace: EventLog
    answers: Mapping[str, Callable[[], str]]
    quiet: Collection[str] = ()

    # -- messages of this node's operators -----------------------------------------------------------------------------

    def send(self, name: str, payload: str) -> int:
        """Send a user event to all nodes, and return the number of other running nodes; raise `Refused`."""
        group, body = self._group(name), payload.encode()
        try:
            group.send_event(name, body)
        except (BusyError, ValueError) as error:
            raise _refusal(error) from error
        self._note_event(name, body, group.node_id)
        return len(self.member_directory.reachable())

    async def ask(self, name: str, payload: str, timeout_s: float) -> QueryAnswer:
        """Send a query; return when every running node has replied, or after the timeout."""
        group, body = self._group(name), payload.encode()
        found = {group.node_id: own} if (own := self._answer(name)) is not None else {}
        directory = self.member_directory
        awaited = directory.reachable()
        try:
            async with group.query(name, body, timeout_s) as answers:
                if name not in self.quiet:
                    self._note_query(name, body, group.node_id, answered=own is not None)
                with trio.move_on_after(timeout_s), suppress(trio.EndOfChannel):
                    while not found.keys() >= awaited:
                        answer = await answers.receive()
                        responder = NodeId(answer.responder)
                        if directory.metadata_of(responder) is not None:
                            found.setdefault(responder, answer.body)
        except (BusyError, ValueError) as error:
            raise _refusal(error) from error
        name_of = directory.name_of
        views = (QueryAnswerView(name_of(node_id), node_id.hex(), _text(body)) for node_id, body in found.items())
        silent = sorted(name_of(NodeId(node_id)) for node_id in awaited - found.keys())
        return QueryAnswer(name, tuple(sorted(views, key=lambda each: (each.node, each.id))), tuple(silent))

    def _group(self, name: str) -> Group:
        if not isinstance(self.provider, Group):
            text = 'with transport = "i2p" gossip does not carry messages: query the other nodes one by one'
            raise Refused(409, "no-gossip", text)
        if name.startswith(RESERVED_PREFIX):
            raise Refused(400, "bad-request", f"names that begin with {RESERVED_PREFIX} are for gossip itself")
        return self.provider

    # -- messages of other nodes ---------------------------------------------------------------------------------------

    def event_received(self, event: UserEvent) -> None:
        """Append another node's user event to the trace."""
        self._note_event(event.name, event.body, event.message_id.origin)

    def query_received(self, query: Query) -> None:
        """Reply to another node's query if this node supports it; append it to the trace, except `clock` and `view`."""
        answer = self._answer(query.name)
        if answer is not None and isinstance(self.provider, Group):
            try:
                self.provider.answer(query, answer)
            except BusyError:
                answer = None
        if query.name not in self.quiet:
            self._note_query(query.name, query.body, query.message_id.origin, answered=answer is not None)

    def _answer(self, name: str) -> bytes | None:
        answer = self.answers.get(name)
        return None if answer is None else answer().encode()

    def _note_event(self, name: str, body: bytes, sender: NodeId) -> None:
        facts = {"name": printable(name), "payload": _text(body), "from": self.member_directory.name_of(sender)}
        self.trace.append(USER_EVENT, facts)

    def _note_query(self, name: str, body: bytes, sender: NodeId, *, answered: bool) -> None:
        sender_name = self.member_directory.name_of(sender)
        facts: dict[str, Scalar] = {"name": printable(name), "payload": _text(body), "from": sender_name}
        self.trace.append(QUERY, {**facts, "answered": answered})


def _text(body: bytes) -> str:
    """Return the body of a message as one printable line."""
    return printable(body.decode(errors="backslashreplace"))


def _refusal(error: Exception) -> Refused:
    return Refused(503, "busy", str(error)) if isinstance(error, BusyError) else Refused(400, "bad-request", str(error))
