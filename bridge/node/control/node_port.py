"""What stands behind the control endpoint: one node's answers about itself, its farm and its log.

Reading goes by position (`bridge.api.control`), so a slow reader holds nothing here. The view is made anew for each
question out of what the cores say at that moment; the same view feeds the terminal, `--json` and the metrics.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import trio
from msgspec.structs import replace

from bridge.api.control import (
    ClusterAnswer,
    CommandAnswer,
    LogTimeAnswer,
    Refused,
    ServerClock,
    SubmitAnswer,
    SubmitOutcome,
)
from bridge.api.log import LogPage, log_entry
from bridge.api.trace import EventPage
from bridge.api.view import FarmView, VerdictKind, VerdictView, VoterView
from bridge.core.log.records import Removal
from bridge.core.membership.admission import server_name
from bridge.node.control.key_admin import KeyPort
from bridge.node.control.operator_commands import OperatorCommands
from bridge.node.events.durations import Durations
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import NO_SERVER, CurrentFarm, FoundedFarm
from bridge.node.membership.user_messages import UserMessages
from bridge.node.raft.handover_orders import order_handover
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import entry_refusal
from bridge.wire.log.entries import decode, is_plainly_foreign
from consensus import Entry, Histogram, NotLeaderError, ServerBusyError, ServerStoppedError
from consensus.sessions import RequestId

PAGE_LIMIT_BYTES = 4 * 1024 * 1024
QUORUM_PATIENCE_S = 2.0
"""Without a quorum an order waits so long for one. A client gives up after 5 s on a node that does not answer."""


class NodePort:
    """The node, as far as the control endpoint needs it."""

    _durations: Durations | None = None
    _last_verdict: Callable[[], VerdictView | None] | None = None

    def __init__(
        self,
        *,
        make_view: Callable[[], FarmView],
        trace: EventLog,
        leave: Callable[[], None],
        withdraw: Callable[[], Awaitable[str | None]],
        confirm: Callable[[bytes], Awaitable[str | None]],
        keys: KeyPort,
        messages: UserMessages,
        current: CurrentFarm,
        stuck: Callable[[], tuple[str, ...]] = tuple,
        durations: Durations | None = None,
        last_verdict: Callable[[], VerdictView | None] | None = None,
    ) -> None:
        self._make_view = make_view
        self._trace = trace
        self._leave = leave
        self._withdraw = withdraw
        self._confirm = confirm
        self.keys = keys
        self.messages = messages
        self._current = current
        self._stuck = stuck
        self._durations = durations
        self._last_verdict = last_verdict

    async def view(self) -> FarmView:
        """The view of this moment."""
        return self._make_view()

    async def verdict(self) -> VerdictView:
        """The verdict of the node's last look at itself, about a second old: probes must not cost a view each."""
        known = None if self._last_verdict is None else self._last_verdict()
        return (await self.view()).verdict if known is None else known

    def stuck(self) -> tuple[str, ...]:
        """What does not work in this process and would after a restart, in words."""
        return self._stuck()

    def durations(self) -> Durations:
        """How long things took since the process started."""
        return self._durations or Durations(Histogram())

    async def cluster(self) -> ClusterAnswer:
        """Who leads and who votes."""
        view = self._make_view()
        endpoints: dict[int | None, str | None] = {member.raft_id: member.endpoint for member in view.members}
        raft = view.raft
        return ClusterAnswer(
            cluster=view.farm.cluster,
            cluster_id=view.farm.cluster_id,
            raft_id=view.node.raft_id,
            term=raft.term,
            commit_index=raft.commit_index,
            leader_id=raft.leader_id,
            leader_name=raft.leader_name,
            leader_endpoint=endpoints.get(raft.leader_id) or raft.leader_endpoint,
            voters=tuple(
                VoterView(voter.raft_id, endpoints.get(voter.raft_id) or voter.endpoint, voter.name)
                for voter in raft.voters
            ),
        )

    async def read_log(self, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> LogPage:
        """Committed entries from `first` on; if there are none yet, wait for one for at most `wait_ms`.

        Only entries that this node has applied are shown: their log time is known. `linearizable`: it has first applied
        everything that was acknowledged before the call.
        """
        start = max(first, 1)
        if linearizable:
            await self._catch_up()
        with trio.move_on_after(wait_ms / 1000), suppress(ServerStoppedError):
            await (await self._current.founded()).replica.server.wait_applied(start)
        farm = self._current.farm
        if farm is None:
            return LogPage(first_index=1, last_index=0, commit_index=0, next_index=start)
        server, applied_state = farm.replica.server, farm.applied_state
        about = server.describe()
        applied, kept = about.applied, about.raft.log_start.index + 1
        # What a snapshot covers and the log no longer holds is skipped; the page says where it begins.
        start = max(start, kept)
        readable = max(0, min(limit, applied - start + 1))
        entries = await self._read(farm.replica, start, readable) if readable else ()
        shown = tuple(
            log_entry(start + offset, entry, applied_state.log_time_at(start + offset))
            for offset, entry in enumerate(entries)
        )
        return LogPage(
            first_index=kept,
            last_index=about.raft.last.index,
            commit_index=applied,
            next_index=start + len(shown),
            entries=shown,
        )

    async def _catch_up(self) -> None:
        replica = self._current.replica()
        if replica is None:
            raise Refused(503, "no-leader", NO_SERVER)
        lost = await self._quorum_lost(replica)
        if lost is not None:
            raise Refused(503, "no-quorum", lost)
        try:
            await replica.read_barrier()
        except NotLeaderError as error:
            text = "no leader has confirmed in time what is committed; read without `linearizable`, or try again"
            raise Refused(503, "no-leader", self._no_quorum() or text) from error
        except ServerBusyError as error:
            raise Refused(503, "busy", f"{error}; try again in a moment") from error
        except ServerStoppedError as error:
            raise Refused(503, "stopping", f"this node stops: {error}") from error

    async def _read(self, replica: Replica, first: int, limit: int) -> tuple[Entry, ...]:
        try:
            return await replica.server.read(first, limit, PAGE_LIMIT_BYTES)
        except ServerBusyError as error:
            raise Refused(503, "busy", f"too many readers at a time ({error}); try again in a moment") from error
        except ServerStoppedError as error:
            raise Refused(503, "stopping", f"this node stops: {error}") from error

    async def read_events(self, cursor: int, limit: int, wait_ms: int) -> EventPage:
        """Events of the trace from `cursor` on, waiting likewise."""
        return await self._trace.wait(cursor, limit, wait_ms)

    async def submit(self, entry: bytes, request: RequestId | None = None) -> SubmitAnswer:
        """Have one application entry (a JSON object) committed, here or by the leader, and applied at most once."""
        refusal = entry_refusal(entry)
        if refusal is not None:
            return SubmitAnswer(outcome=SubmitOutcome.REFUSED, reason=refusal)
        farm = self._current.farm
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
        """Why nothing can be committed now and what to do about it, if so."""
        verdict = self._make_view().verdict
        return f"{verdict.text}. Do: {verdict.advice}" if verdict.kind is VerdictKind.NO_QUORUM else None

    async def _quorum_lost(self, replica: Replica) -> str | None:
        """The same after a short wait, because a farm elects leaders; None while a leader is known.

        The view, which grows with the farm, is only made while there is no leader.
        """
        with trio.move_on_after(QUORUM_PATIENCE_S):
            while replica.server.role.leader is None:
                await replica.role_changes()
        return self._no_quorum() if replica.server.role.leader is None else None

    def _commands(self, farm: FoundedFarm) -> OperatorCommands:
        submit = partial(self._submit, farm)
        return OperatorCommands(self._make_view(), farm.applied_state, submit, farm.signer.node_id)

    def _removal_refusal(self, farm: FoundedFarm, entry: bytes) -> str | None:
        record = None if is_plainly_foreign(entry) else decode(entry)
        if not isinstance(record, Removal):
            return None
        return self._commands(farm).removal_refusal(record)

    async def command(self, body: bytes) -> CommandAnswer:
        """Have what an operator asks for committed; `Refused` says why it came to nothing."""
        farm = self._current.required()
        return await self._commands(farm).grant(body)

    async def check_command(self, body: bytes) -> None:
        """`Refused` says why `command` would be refused now; nothing is committed."""
        farm = self._current.required()
        OperatorCommands(self._make_view(), farm.applied_state, partial(self._submit, farm)).check(body)

    async def log_time(self) -> LogTimeAnswer:
        """The farm's time, and the servers' clocks beside it."""
        farm = self._current.required()
        applied_state, state = farm.applied_state, farm.state
        judgement = applied_state.judge_clocks(farm.replica.server_id)
        offsets_ms: Mapping[int, int] = {} if judgement is None else judgement.offsets_ms
        voters = {each for majority in state.clocks.majorities for each in majority}
        return LogTimeAnswer(
            log_time_ms=state.log_time_ms,
            majority_ms=None if judgement is None else judgement.majority_ms,
            latest_ms=state.clocks.limit_ms(farm.replica.server.role.term, applied_state.farm.tuning.period_ms),
            agreed=judgement is not None and judgement.agreed,
            clocks=tuple(
                ServerClock(each, server_name(state.admitted, each), each in voters, offsets_ms.get(each))
                for each in sorted(voters | offsets_ms.keys())
            ),
        )

    async def leave(self) -> None:
        """Begin to leave the farm and stop."""
        self._leave()

    async def transfer(self, to: str | None) -> str:
        """Hand leadership to the node of that name or Raft id, or to the most caught up; returns the new leader."""
        farm, raft = self._current.required(), self._make_view().raft
        return await order_handover(farm.replica, farm.signer, raft.voters, to, raft.election_timeout_ms)

    async def withdraw(self) -> str | None:
        """Take back this node's promise to found the farm; a text says why it cannot be."""
        return await self._withdraw()

    async def confirm_cluster(self, cluster_id: bytes) -> str | None:
        """Take this cluster for the node's farm; a text says why it cannot be."""
        return await self._confirm(cluster_id)
