"""Handlers of the requests about one node, its farm and its log.

A request for events or entries contains a position (`bridge.api.trace`), so the node does not keep state for a slow
reader. A request for the view builds it from the present state of the node.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import msgspec
import trio
from msgspec.structs import replace

from bridge.api import control_routes as routes
from bridge.api.control import (
    WAIT_LIMIT_MS,
    CheckedAnswer,
    ClusterAnswer,
    CommandAnswer,
    ConfirmedAnswer,
    EventAnswer,
    HealthAnswer,
    LeaderAnswer,
    LeavingAnswer,
    LogTimeAnswer,
    QueryAnswer,
    ReadyAnswer,
    Refused,
    ServerClock,
    SubmitAnswer,
    SubmitOutcome,
    WithdrawnAnswer,
)
from bridge.api.log import PAGE_LIMIT_BYTES, LogPage, fitting, log_entry
from bridge.api.requests import CommandRequest, ConfirmClusterRequest, EventRequest, QueryRequest, TransferRequest
from bridge.api.trace import EventPage
from bridge.api.view import FarmView, VerdictKind, VerdictView, VoterView
from bridge.core.log.kinds import kind_of
from bridge.core.log.records import Removal
from bridge.core.membership.admission import server_name
from bridge.node.control.operator_commands import OperatorCommands
from bridge.node.control.orders.leading import check_can_lead, lead
from bridge.node.control.orders.order_level import OrderLevel, check_level, reach_level
from bridge.node.control.routes import Answer, Call, Handlers, json_answer
from bridge.node.control.stream import STREAM_TYPE, EventStream
from bridge.node.events.durations import Durations
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import NO_SERVER, CurrentFarm, FoundedFarm
from bridge.node.membership.user_messages import UserMessages
from bridge.node.raft.handover_orders import order_handover
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import entry_refusal
from bridge.wire.log.entries import decode, is_plainly_foreign
from consensus import Entry, ServerBusyError, ServerStoppedError
from consensus.sessions import RequestId, parse_request_id

PAGE_LIMIT = 1000
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOME_STATUS = {
    SubmitOutcome.COMMITTED: 200,
    SubmitOutcome.REFUSED: 409,
    SubmitOutcome.BUSY: 503,
    SubmitOutcome.UNKNOWN: 504,
    SubmitOutcome.EXPIRED: 410,
}
QUORUM_PATIENCE_S = 2.0
"""Longest wait of a request for a leader, in seconds."""


@dataclass(eq=False, kw_only=True)
class FarmAdmin:
    """The handlers of one node."""

    make_view: Callable[[], FarmView]
    encode_view: Callable[[], bytes]
    trace: EventLog
    leave: Callable[[], None]
    withdrawal_refusal: Callable[[], str | None]
    withdraw: Callable[[], Awaitable[str | None]]
    confirm: Callable[[bytes], Awaitable[str | None]]
    messages: UserMessages
    current_farm: CurrentFarm
    stuck: Callable[[], tuple[str, ...]]
    """Returns the failures of this process that a restart would repair, as text."""
    durations: Durations
    last_verdict: Callable[[], VerdictView | None]
    """Returns the verdict of the node's last check, for health probes: building a view for each is too expensive."""

    @property
    def handlers(self) -> Handlers:
        """The handlers, by route."""
        return {
            routes.VIEW: self._view_document,
            routes.CLUSTER: lambda _: self.cluster(),
            routes.LOG: self._log,
            routes.EVENTS: lambda call: self.read_events(*_page(call.numbers)),
            routes.METRICS: self._metrics,
            routes.HEALTHZ: self._health,
            routes.READYZ: self._readiness,
            routes.STREAM: self._stream,
            routes.LOG_TIME: self._log_time,
            routes.SUBMIT: self._submit_entry,
            routes.COMMANDS: self._command,
            routes.COMMANDS_CHECK: self._check_command,
            routes.EVENT: self._send_event,
            routes.QUERY: self._query,
            routes.LEAVE: self._begin_leaving,
            routes.WITHDRAW: self._withdraw_promise,
            routes.WITHDRAW_CHECK: self._check_withdrawal,
            routes.CONFIRM_CLUSTER: self._confirm_cluster,
            routes.TRANSFER: self._transfer,
        }

    async def view(self) -> FarmView:
        """Return the present view of the farm."""
        return self.make_view()

    async def _view_document(self, _: Call[None]) -> Answer:
        return Answer(200, self.encode_view())

    async def _metrics(self, _: Call[None]) -> Answer:
        # Imported here: the library needs 2.4 MB, and only a scraped node needs it. The import is slow, so it runs in a
        # thread and does not block the event loop.
        module = await trio.to_thread.run_sync(import_module, "bridge.node.control.metrics")
        exposition: Callable[..., bytes] = module.exposition
        return Answer(200, exposition(await self.view(), self.durations), METRICS_TYPE)

    async def _health(self, _: Call[None]) -> Answer:
        """Report if this process works. If it does not, a restart would help."""
        reasons = self.stuck()
        document = HealthAnswer(not reasons, reasons, await self._verdict())
        return json_answer(document, 503 if reasons else 200)

    async def _readiness(self, _: Call[None]) -> Answer:
        verdict = await self._verdict()
        return json_answer(ReadyAnswer(verdict.ready, verdict), 200 if verdict.ready else 503)

    async def _verdict(self) -> VerdictView:
        return self.last_verdict() or (await self.view()).verdict

    async def _stream(self, call: Call[None]) -> Answer:
        if call.request.method == "HEAD":
            return Answer(200, b"", STREAM_TYPE)
        stream = EventStream(
            view=self.view,
            read_events=self.read_events,
            cursor=max(1, call.numbers["from"]),
            read_log=self.read_log,
            log_entries=call.numbers["log"],
        )
        return Answer(200, b"", STREAM_TYPE, next_part=stream.next)

    async def _log(self, call: Call[None]) -> LogPage:
        first, limit, wait_ms = _page(call.numbers)
        return await self.read_log(first, limit, wait_ms, linearizable=call.numbers["linearizable"] > 0)

    async def _submit_entry(self, call: Call[None]) -> Answer:
        answer = await self.submit(_entry(call.request.body), _request_id(call.texts.get("request")))
        return json_answer(answer, OUTCOME_STATUS[answer.outcome])

    async def _check_command(self, call: Call[CommandRequest]) -> CheckedAnswer:
        await self._checked(call.body)
        return CheckedAnswer()

    async def _send_event(self, call: Call[EventRequest]) -> EventAnswer:
        return EventAnswer(call.body.name, self.messages.send(call.body.name, call.body.payload))

    async def _query(self, call: Call[QueryRequest]) -> QueryAnswer:
        return await self.messages.ask(call.body.name, call.body.payload, call.body.timeout_ms / 1000)

    async def _confirm_cluster(self, call: Call[ConfirmClusterRequest]) -> ConfirmedAnswer:
        _require(await self.confirm(bytes.fromhex(call.body.cluster_id)), "not-confirmed")
        return ConfirmedAnswer(call.body.cluster_id)

    async def _transfer(self, call: Call[TransferRequest]) -> LeaderAnswer:
        return LeaderAnswer(await self.transfer(call.body.to))

    async def cluster(self) -> ClusterAnswer:
        """Return the leader and the voters."""
        view = self.make_view()
        raft = view.raft
        return ClusterAnswer(
            cluster=view.farm.cluster,
            cluster_id=view.farm.cluster_id,
            raft_id=view.node.raft_id,
            term=raft.term,
            commit_index=raft.commit_index,
            leader_id=raft.leader_id,
            leader_name=raft.leader_name,
            leader_endpoint=raft.leader_endpoint,
            voters=tuple(VoterView(voter.raft_id, voter.endpoint, voter.name) for voter in raft.voters),
        )

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        """Return committed entries from `first` on; without any, wait for one for at most `wait_ms`.

        Only entries applied by this node are shown: their log time is known. With `linearizable`, the call first
        waits until this node has applied all entries acknowledged before the call.
        """
        start = max(first, 1)
        if linearizable:
            await self.catch_up()
        with trio.move_on_after(wait_ms / 1000), suppress(ServerStoppedError):
            await (await self.current_farm.founded()).replica.server.wait_applied(start)
        farm = self.current_farm.farm
        if farm is None:
            return LogPage(first_index=1, last_index=0, commit_index=0, next_index=start)
        server, applied_state = farm.replica.server, farm.applied_state
        about = server.describe()
        applied, kept = about.applied, about.raft.log_start.index + 1
        # Entries that only a snapshot contains are skipped; the reader sees this in the page's first index.
        start = max(start, kept)
        readable = max(0, min(limit, applied - start + 1))
        entries = await self._read(farm.replica, start, readable) if readable else ()
        shown = fitting(
            log_entry(start + offset, entry, applied_state.moments.time_at(start + offset))
            for offset, entry in enumerate(entries)
        )
        return LogPage(
            first_index=kept,
            last_index=about.raft.last.index,
            commit_index=applied,
            next_index=start + len(shown),
            entries=shown,
            cluster_id=farm.known.founding.cluster_id.hex(),
        )

    async def catch_up(self) -> None:
        """Apply all entries acknowledged before the call; raise `Refused` with the reason if that fails."""
        farm = self.current_farm.farm
        if farm is None:
            raise Refused(503, "no-leader", NO_SERVER)
        lost = await self._quorum_lost(farm.replica)
        if lost is not None:
            raise Refused(503, "no-quorum", lost)
        await farm.catch_up(self._no_quorum)

    async def _read(self, replica: Replica, first: int, limit: int) -> tuple[Entry, ...]:
        try:
            return await replica.server.read(first, limit, PAGE_LIMIT_BYTES)
        except ServerBusyError as error:
            raise Refused(503, "busy", f"too many readers at a time ({error}); try again in a moment") from error
        except ServerStoppedError as error:
            raise Refused(503, "stopping", f"this node stops: {error}") from error

    async def read_events(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Return events of the trace from `cursor` on; without any, wait for one for at most `wait_ms`."""
        return await self.trace.wait(cursor, limit, wait_ms)

    async def submit(self, entry: bytes, request: RequestId | None = None) -> SubmitAnswer:
        """Have one application entry (a JSON object) committed, here or by the leader, and applied at most once."""
        refusal = entry_refusal(entry)
        if refusal is not None:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=refusal)
        farm = self.current_farm.farm
        if farm is None:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=NO_SERVER)
        refusal = self._removal_refusal(farm, entry)
        if refusal is not None:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=refusal)
        return await self._submit(farm, entry, request)

    async def _submit(self, farm: FoundedFarm, entry: bytes, request: RequestId | None = None) -> SubmitAnswer:
        lost = await self._quorum_lost(farm.replica)
        if lost is not None:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=lost)
        answer = await farm.submitting.submit(entry, request)
        lost = self._no_quorum() if answer.outcome in {SubmitOutcome.REFUSED, SubmitOutcome.UNKNOWN} else None
        return answer if lost is None else replace(answer, reason=lost)

    def _no_quorum(self) -> str | None:
        """Return the reason and the remedy if nothing can be committed now; otherwise None."""
        verdict = self.make_view().verdict
        return f"{verdict.text}. Do: {verdict.advice}" if verdict.kind is VerdictKind.NO_QUORUM else None

    async def _quorum_lost(self, replica: Replica) -> str | None:
        """Wait a short time for an election; without a leader after that, return the reason and the remedy.

        Building a view takes longer in a larger farm, so this method builds a view only without a leader.
        """
        with trio.move_on_after(QUORUM_PATIENCE_S):
            while replica.server.role.leader is None:
                await replica.role_changes()
        return self._no_quorum() if replica.server.role.leader is None else None

    def _commands(self, farm: FoundedFarm) -> OperatorCommands:
        submit = partial(self._submit, farm)
        return OperatorCommands(self.make_view(), farm.applied_state, submit, farm.signer.node_id)

    def _removal_refusal(self, farm: FoundedFarm, entry: bytes) -> str | None:
        record = None if is_plainly_foreign(entry) else decode(entry)
        if not isinstance(record, Removal):
            return None
        return self._commands(farm).removal_refusal(record)

    async def _command(self, call: Call[CommandRequest]) -> CommandAnswer:
        """Have an operator's command committed; raise `Refused` with the reason if it is ineffective."""
        command = call.body
        commands, need = await self._checked(command)
        if need is not None:
            # Each step takes time and changes the farm's state, so the command is checked again.
            farm = self.current_farm.required()
            await lead(farm, self.transfer)
            await self._checked(command)
            await reach_level(farm, need)
            commands = await self._current_commands()
        return await commands.grant(command)

    async def _checked(self, command: CommandRequest) -> tuple[OperatorCommands, OrderLevel | None]:
        """Return the commands, and the level that a removal must first reach, if any; raise `Refused`."""
        commands = await self._current_commands()
        _, record, _ = commands.check(command)
        farm, level = self.current_farm.required(), kind_of(record).level
        if not isinstance(record, Removal) or farm.state.level >= level:
            return commands, None
        need = OrderLevel("removal", record.server_id, level)
        check_can_lead(farm)
        check_level(farm, need)
        return commands, need

    async def _current_commands(self) -> OperatorCommands:
        """Return the commands; a follower first applies all entries acknowledged before this call."""
        farm = self.current_farm.required()
        if not farm.replica.leads:
            await self.catch_up()
        return self._commands(farm)

    async def _log_time(self, _: Call[None]) -> LogTimeAnswer:
        """Return the farm's time, and the servers' clocks for comparison."""
        farm = self.current_farm.required()
        applied_state, state = farm.applied_state, farm.state
        judgment = applied_state.judge_clocks(farm.replica.server_id)
        offsets_ms: Mapping[int, int] = {} if judgment is None else judgment.offsets_ms
        voters = {each for majority in state.clocks.majorities for each in majority}
        return LogTimeAnswer(
            log_time_ms=state.log_time_ms,
            majority_ms=None if judgment is None else judgment.majority_ms,
            latest_ms=state.clocks.limit_ms(farm.replica.server.role.term, applied_state.farm.tuning.period_ms),
            agreed=judgment is not None and judgment.agreed,
            clocks=tuple(
                ServerClock(each, server_name(state.admitted, each), each in voters, offsets_ms.get(each))
                for each in sorted(voters | offsets_ms.keys())
            ),
        )

    async def _begin_leaving(self, _: Call[None]) -> LeavingAnswer:
        self.leave()
        return LeavingAnswer(leaving=True)

    async def transfer(self, to: str | None) -> str:
        """Transfer leadership to the given node, or to the most up-to-date voter; return the leader's name."""
        farm, raft = self.current_farm.required(), self.make_view().raft
        return await order_handover(farm.replica, farm.signer, raft.voters, to, raft.election_timeout_ms)

    async def _check_withdrawal(self, _: Call[None]) -> CheckedAnswer:
        _require(self.withdrawal_refusal(), "not-withdrawn")
        return CheckedAnswer()

    async def _withdraw_promise(self, _: Call[None]) -> WithdrawnAnswer:
        _require(await self.withdraw(), "not-withdrawn")
        return WithdrawnAnswer(withdrawn=True)


def _require(refusal: str | None, code: str) -> None:
    """Raise `Refused` if there is a reason for it."""
    if refusal is not None:
        raise Refused(409, code, refusal)


def _request_id(text: str | None) -> RequestId | None:
    named = None if text is None else parse_request_id(text)
    if text is not None and named is None:
        what = "CLIENT-BORN-SEQUENCE: a name of 1 to 64 bytes, a committed index seen before, a number from 1 on"
        raise Refused(400, "bad-query", f"request is {text[:100]!r}, not {what}")
    return named


def _page(numbers: Mapping[str, int]) -> tuple[int, int, int]:
    return max(1, numbers["from"]), min(numbers["limit"], PAGE_LIMIT), min(numbers["wait"], WAIT_LIMIT_MS)


def _entry(body: bytes) -> bytes:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(400, "bad-entry", f"an entry is one JSON object; this is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Refused(400, "bad-entry", f"an entry is one JSON object; this is JSON of type {type(found).__name__}")
    return body
