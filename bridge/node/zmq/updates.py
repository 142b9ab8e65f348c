"""Updates by ØMQ Raft clients, which the farm applies once for each *reqid* (the client's request id).

    update ─▶ permitted? ──no──▶ expired: final, so the client stops
           ─▶ in progress here? ──▶ accepted
           ─▶ by the table of reqids: in the log ──▶ committed, at the index of the first copy
                                      too old, or too far ahead ──▶ expired
           ─▶ accepted ─▶ entry with the reqid, signed if it acts on the farm ─▶ `Submitting`, which finds the leader
                                      ─▶ committed at an index │ its fate is unknown, or no leader: "no leader known"

The protocol does not define a refusal. A client ends a request only after the reply "expired", and repeats it after any
other failure. So the reply to updates that can never succeed is "expired". Such updates are invalid JSON objects,
entries reserved for the leader or beyond the key's scopes, and all updates at a read-only endpoint. The node's counters
distinguish them.

"No leader known" makes the client wait and repeat the same reqid, here or elsewhere. The table of reqids in the farm's
state (`bridge.core.state.reqids`) then finds the first copy from any node. The age of a reqid is measured by log time.
If this node's share of the table is full, clients also wait: old reqids leave the table as log time advances.

Log time moves once or twice in a reporting period, and only with a leader. So a client also waits if its reqid is too
far ahead of log time, but not of this machine's clock.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, assert_never

from bridge.api.alarms import ZMQ_UPDATES
from bridge.api.control import SubmitAnswer, SubmitOutcome
from bridge.core.log.feature_level import REQIDS_LEVEL
from bridge.core.state.reqids import AHEAD_S, ReqidStatus, second_of
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import clock_ms
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.raft.client_scopes import needed_scope
from bridge.node.raft.submitting import SubmittedUpdate, entry_refusal
from bridge.node.zmq.counters import UpdateResult
from bridge.node.zmq.listed_keys import ListedKeys
from consensus import ServerBusyError, ServerStoppedError, TaskOwner, run_task
from consensus.protocols.zmq_raft import (
    UpdateAccepted,
    UpdateCommitted,
    UpdateExpired,
    UpdateRedirect,
    UpdateReply,
    UpdateRequest,
)

PENDING_MAX: Final = 1_024
Answer = Callable[[UpdateReply], None]


class FarmUpdates(TaskOwner):
    """The handler of updates. `keys` are the clients that may write; None permits no client."""

    def __init__(self, current: CurrentFarm, keys: ListedKeys | None, alarms: Alarms) -> None:
        self._current = current
        self._keys = keys
        self._alarms = alarms
        self._pending: dict[bytes, Answer] = {}
        self.counters: Counter[UpdateResult] = Counter()

    def update(self, request: UpdateRequest, user: str | None, answer: Answer) -> None:
        """Handle an update; see `ServedLog`."""
        reqid = request.request_id
        if self._keys is None:
            self._refuse(UpdateResult.READ_ONLY, reqid, answer)
        elif entry_refusal(request.data) is not None:
            self._refuse(UpdateResult.INVALID, reqid, answer)
        elif not self._keys.may(user, needed_scope(request.data)):
            self._refuse(UpdateResult.OUT_OF_SCOPE, reqid, answer)
        elif reqid in self._pending:
            self._pending[reqid] = answer
            answer(UpdateAccepted(reqid))
        else:
            self._begin(request, answer)

    def _begin(self, request: UpdateRequest, answer: Answer) -> None:
        reqid, farm, nursery = request.request_id, self._current.farm, self._nursery
        if farm is None or nursery is None or not self._has_level(farm) or len(self._pending) >= PENDING_MAX:
            answer(UpdateRedirect(reqid, None))
            return
        update = farm.submitting.prepare(request.data, reqid)
        if update is None:
            self._refuse(UpdateResult.INVALID, reqid, answer)
            return
        reqids = farm.applied_state.farm.reqids
        verdict = reqids.judge(update.update, farm.state.log_time_ms)
        match verdict:
            case ReqidStatus.NEW:
                self._pending[reqid] = answer
                answer(UpdateAccepted(reqid))
                nursery.start_soon(run_task, self._carry_out, farm, update)
            case ReqidStatus.DUPLICATE:
                answer(UpdateCommitted(reqid, reqids.index_of(update.update) or 0))
            case ReqidStatus.AHEAD if second_of(reqid) - clock_ms() // 1000 <= AHEAD_S:
                answer(UpdateRedirect(reqid, None))
            case ReqidStatus.FULL:
                self.counters[UpdateResult.SHARE_FULL] += 1
                answer(UpdateRedirect(reqid, None))
            case ReqidStatus.EXPIRED | ReqidStatus.AHEAD:
                self._refuse(UpdateResult.EXPIRED, reqid, answer)
            case _:
                assert_never(verdict)

    async def _carry_out(self, farm: FoundedFarm, update: SubmittedUpdate) -> None:
        reqid = update.update.reqid
        found = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN)
        try:
            found = await farm.submitting.submit_update(update)
        except (ServerBusyError, ServerStoppedError) as error:
            found = SubmitAnswer(outcome=SubmitOutcome.UNKNOWN, reason=str(error))
        finally:
            answer = self._pending.pop(reqid)
        match found:
            case SubmitAnswer(outcome=SubmitOutcome.COMMITTED, index=int(index)):
                self.counters[UpdateResult.COMMITTED] += 1
                answer(UpdateCommitted(reqid, index))
            case SubmitAnswer(outcome=SubmitOutcome.EXPIRED):
                self._refuse(UpdateResult.EXPIRED, reqid, answer)
            case _:
                self.counters[UpdateResult.UNKNOWN] += 1
                answer(UpdateRedirect(reqid, None))

    def _has_level(self, farm: FoundedFarm) -> bool:
        if farm.state.level >= REQIDS_LEVEL:
            self._alarms.clear(ZMQ_UPDATES)
            return True
        if farm.has_recent_state:
            self._alarms.set(
                ZMQ_UPDATES,
                f"clients of the ØMQ endpoint cannot write yet: the farm has feature level {farm.state.level}, and"
                f" updates need level {REQIDS_LEVEL}, so that each is applied once",
            )
        return False

    def _refuse(self, result: UpdateResult, reqid: bytes, answer: Answer) -> None:
        self.counters[result] += 1
        answer(UpdateExpired(reqid))
