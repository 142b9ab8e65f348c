"""Requests of clients, served by this server: entries to append, and indexes for reads.

    entries ──▶ submit ──▶ committed ──▶ (one belongs to a session) wait until it is applied ──▶ executed │ expired
                       └──▶ another server leads, busy, unknown
    index   ──▶ core ──▶ a majority has confirmed that this server leads ──▶ the index

An acknowledgment means *committed*, and for most entries this is enough. But the table of sessions may refuse a
request when its entry is applied, if the request's session has expired. Such a request must not be acknowledged. So the
client of a request in a session gets its reply only after this server has applied the entry. The number of waiting
requests is limited; beyond the limit the outcome is *unknown*, and the connection is closed.
"""

from collections.abc import Callable
from typing import Protocol, assert_never

from consensus.core.effects import Outcome, ProposalResolved, ReadReady, ReadRefusal, ReadRefused, Role
from consensus.protocols.garlic_farm.node.connection import Cancel, ClientAnswer, client_answer, nothing_to_cancel
from consensus.protocols.garlic_farm.node.membership import refuse
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.server import ConsensusServer
from consensus.sessions.table import RequestId

OnReply = Callable[[ClientAnswer | None], None]

WAITING_MAX = 4096


class SessionStateMachine(Protocol):
    """A state machine that keeps a table of sessions."""

    def request_of(self, command: bytes) -> RequestId | None:
        """Return the request that a command names, if any."""

    def was_executed(self, request: RequestId) -> bool:
        """Return True if the table contains this request."""


class ClientRequests:
    """The handler of clients' requests to the server with the id `own_id`."""

    def __init__(self, server: ConsensusServer, own_id: int, sessioned: SessionStateMachine | None = None) -> None:
        self._server = server
        self._own_id = own_id
        self._sessioned = sessioned
        self._waiting = 0

    def client_request(self, commands: tuple[bytes, ...], on_reply: OnReply) -> Cancel:
        """Append `commands`; without commands, the reply only contains the leader."""
        if not commands:
            on_reply(self._who_leads())
            return nothing_to_cancel
        server, sessioned = self._server, self._sessioned
        try:
            if sessioned is None:
                return server.submit(commands, lambda found: on_reply(client_answer(found, server.role))).abandon
            callback = _AnswerCallback(on_reply)
            proposal = server.submit(commands, lambda found: self._found(found, sessioned, commands, callback))
        except ValueError as error:
            raise GarlicFarmError(Fault.TOO_LARGE, str(error)) from error

        def cancel() -> None:
            callback.on_reply = None
            proposal.abandon()

        return cancel

    def read_index(self, on_reply: OnReply) -> Cancel:
        """Request the read index: a state at this index includes every entry acknowledged before."""
        server = self._server
        try:
            number = server.request_read(lambda found: on_reply(self._read_answer(found)))
        except ServerBusyError:
            role = self._server.role
            on_reply(ClientAnswer(leader=role.leader, busy=role.role is Role.LEADER, term=role.term))
            return nothing_to_cancel
        except ServerStoppedError as error:
            raise GarlicFarmError(Fault.BUSY, str(error)) from error
        return lambda: server.forget(number)

    def membership_request(
        self, request: wire.MembershipRequest, on_reply: Callable[[wire.Reply | None], None]
    ) -> Cancel:
        """Refuse: the members of this server do not change by requests. `Members` serves such requests."""
        on_reply(refuse(request, self._server, self._own_id))
        return nothing_to_cancel

    def _who_leads(self) -> ClientAnswer:
        role = self._server.role
        leads = role.role is Role.LEADER
        next_index = self._server.describe().raft.last.index + 1 if leads else 0
        return ClientAnswer(accepted=leads, leader=role.leader, next_index=next_index, term=role.term)

    def _found(
        self,
        found: ProposalResolved,
        sessioned: SessionStateMachine,
        commands: tuple[bytes, ...],
        callback: "_AnswerCallback",
    ) -> None:
        answer = client_answer(found, self._server.role)
        committed = answer is not None and found.outcome is Outcome.COMMITTED
        named = [command for command in commands if committed and sessioned.request_of(command) is not None]
        if answer is None or not named:
            callback.give(answer)
            return
        if self._waiting >= WAITING_MAX:
            callback.give(None)
            return

        def applied() -> None:
            self._waiting -= 1
            # `request_of` is called again, since the number of a request may depend on recently applied entries.
            requests = map(sessioned.request_of, named)
            executed = all(request is not None and sessioned.was_executed(request) for request in requests)
            callback.give(answer if executed else self._expired(answer))

        self._waiting += 1
        self._server.applying.when_applied(answer.next_index - 1, applied)

    @staticmethod
    def _expired(answer: ClientAnswer) -> ClientAnswer:
        return ClientAnswer(next_index=answer.next_index, term=answer.term, expired=True)

    def _read_answer(self, found: ReadReady | ReadRefused | None) -> ClientAnswer | None:
        term = self._server.role.term
        match found:
            case ReadReady(_, index):
                return ClientAnswer(accepted=True, leader=self._own_id, next_index=index + 1, term=term)
            case ReadRefused(_, ReadRefusal.NOT_LEADER, leader):
                return ClientAnswer(leader=leader, term=term)
            case ReadRefused():
                return ClientAnswer(busy=True, term=term)
            case None:
                return None
            case _:
                assert_never(found)


class _AnswerCallback:
    def __init__(self, on_reply: OnReply) -> None:
        self.on_reply: OnReply | None = on_reply

    def give(self, answer: ClientAnswer | None) -> None:
        if self.on_reply is not None:
            self.on_reply(answer)
