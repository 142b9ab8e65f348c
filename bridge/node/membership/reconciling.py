"""The leader's task for the group: it reads gossip, log and Raft, and makes one proposal at a time.

    members, applied state, server.describe() ─▶ Reconciler.decide ──▶ Admit ─────────────▶ an entry of the log
                                                           └──▶ other proposals ───▶ change_configuration
    admitted, alive, not started yet ──▶ announced in this node's gossip metadata

The leader reads gossip, log and Raft each second, and twice a second while a change waits or runs. A change may take
long, since a new server first receives the whole log. The leader continues to read during the change, because only a
continuous watch shows that a server repeatedly fails. The leader's observations start from scratch in every term.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import trio
from msgspec.structs import replace

from bridge.api.alarms import ADMISSION, WAITING_FOR_APPROVAL
from bridge.api.events import RECONCILE_FAILED, RECONCILE_PROPOSED, ReconcileStep
from bridge.api.trace import Scalar
from bridge.core.formation.member import FarmMember
from bridge.core.log.feature_level import BOUNDS_LEVEL
from bridge.core.log.records import Admission
from bridge.core.membership.admission import next_raft_id, with_room
from bridge.core.membership.reconcile import (
    AddLearner,
    Admit,
    Group,
    HandOver,
    Promote,
    Proposal,
    Reconciler,
    ReconcileSettings,
    Remove,
)
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership.admissions import not_started
from bridge.node.membership.farm_peers import KnownFarm
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.raft.entry_signer import EntrySigner
from bridge.node.raft.replica import UNKNOWN_ENDPOINT, Replica
from bridge.node.settings.choices import AdmissionChoice as AdmitSetting
from bridge.node.settings.network import ConsensusSettings
from bridge.node.settings.timing import profile_of
from bridge.wire.log.entries import encode
from bridge.wire.membership.metadata import ADMISSIONS_LIMIT
from consensus import (
    ChangeOutcome,
    ChangeRefusal,
    Outcome,
    RaftDescription,
    Server,
    ServerBusyError,
    ServerStoppedError,
    TransferOutcome,
    integer_id,
    now_ms,
    sleep_to_tick,
)

WAITING_NAMED_MAX = 8
LOOK_INTERVAL_SECONDS = 0.5
REST_INTERVAL_SECONDS = 1.0
"""Seconds between checks without a due change."""
CAUGHT_UP_ENTRIES = 256
PASSING = frozenset(
    {
        ChangeRefusal.NO_COMMIT_IN_TERM,
        ChangeRefusal.CHANGE_UNDER_WAY,
        ChangeRefusal.BUSY,
        ChangeRefusal.NOT_LEADER,
        ChangeRefusal.LEADERSHIP_LOST,
    }
)
"""Temporary refusals, which do not depend on the server of the proposal."""


@dataclass(slots=True, kw_only=True)
class Reconciling:
    """The task of one node for the group of servers; it acts while the node leads. `run` it once."""

    settings: ReconcileSettings
    contact_within_ms: int
    own: FarmMember
    """This node, in the form for the log."""
    cluster: str
    known: KnownFarm
    replica: Replica
    signer: EntrySigner
    member_directory: MemberDirectory
    announce: Callable[[tuple[tuple[bytes, int], ...]], None]
    """Publishes the Raft ids of identities in this node's metadata."""
    trace: EventLog
    alarms: Alarms
    waits: tuple[str, ...] = ()
    """Conditions that the leader waits for; empty on every other node."""
    losing_vote: frozenset[int] = frozenset()
    """Servers under eviction, which do not get a vote: otherwise each caught-up learner in contact would get one."""
    _busy: bool = field(default=False, init=False)

    async def run(self) -> None:
        """Work until canceled."""
        reconciler, term = Reconciler(self.settings), -1
        async with trio.open_nursery() as nursery:
            while True:
                if not self.replica.leads:
                    self._rest()
                    await self.replica.role_changes()
                    continue
                role = self.replica.server.role
                if role.term != term:
                    reconciler, term = Reconciler(self.settings), role.term
                self._review(reconciler, nursery)
                await sleep_to_tick(LOOK_INTERVAL_SECONDS if self._busy or self.waits else REST_INTERVAL_SECONDS)

    def _rest(self) -> None:
        self.waits = ()
        self.announce(())
        self.alarms.clear(ADMISSION)
        self.alarms.clear(WAITING_FOR_APPROVAL)

    def _report_waiting(self, waiting: tuple[FarmMember, ...]) -> None:
        """Report nodes that wait for an operator.

        The report names the nodes that have waited longest, so that newer nodes cannot hide them.
        """
        if not waiting:
            self.alarms.clear(WAITING_FOR_APPROVAL)
            return
        named = [f"{each.name} ({each.node_id.hex()})" for each in waiting[:WAITING_NAMED_MAX]]
        more = len(waiting) - len(named)
        text = f"not admitted, and waiting for you: {', '.join(named)}{f', and {more} more' if more else ''}"
        action = (
            f"if it is your node: `garlicfarm node approve {waiting[0].node_id.hex()}` here; otherwise someone else"
            " has a copy of the key file: `garlicfarm keys replace`"
        )
        self.alarms.set(WAITING_FOR_APPROVAL, text, action)

    def _review(self, reconciler: Reconciler, nursery: trio.Nursery) -> None:
        raft = self.replica.server.describe().raft
        state = self.known.applied_state.state
        admitted, group = (
            with_room(state.admitted) if state.level >= BOUNDS_LEVEL else state.admitted,
            replace(
                group_of(raft, self.contact_within_ms),
                removed=frozenset(state.removed),
                admitted_by=state.admitted_by,
                losing_vote=self.losing_vote,
            ),
        )
        listed = self.member_directory.of_cluster(self.cluster)
        decision = reconciler.decide(now_ms(), self._members_of_farm(listed), admitted, group)
        self.waits = decision.waits
        if decision.refused:
            self.alarms.set(ADMISSION, "; ".join(decision.refused))
        else:
            self.alarms.clear(ADMISSION)
        self._report_waiting(decision.awaiting_approval)
        alive: dict[bytes, int | None] = {each.node_id: each.metadata.raft_id for each in listed if each.reachable}
        self.announce(not_started(admitted, group.members, alive, ADMISSIONS_LIMIT))
        under_way = self._busy or raft.change is not None or raft.configuration.is_joint
        if decision.proposal is not None and not under_way:
            self._busy = True
            nursery.start_soon(self._carry_out, reconciler, decision.proposal)

    def _members_of_farm(self, listed: Sequence[FarmMember]) -> tuple[FarmMember, ...]:
        """Return this node and the members that know this farm."""
        same = (
            each
            for each in listed
            if (founding := each.notice.founding) is not None and founding.cluster_id == self.known.founding.cluster_id
        )
        return (self.own, *same)

    async def _carry_out(self, reconciler: Reconciler, proposal: Proposal) -> None:
        try:
            failure = await self._do(proposal)
        finally:
            self._busy = False
        if failure is not None:
            reconciler.failed(proposal, now_ms())
            self.trace.append(RECONCILE_FAILED, {**self._facts(proposal), "reason": failure})

    def _facts(self, proposal: Proposal) -> dict[str, Scalar]:
        """Return the facts of a proposal, with the name of its server."""
        facts = _step_facts(proposal)
        server_id = facts.get("server")
        known = self.known.applied_state.state.admitted.get(server_id) if isinstance(server_id, int) else None
        return facts if known is None or not known.name else {**facts, "name": known.name}

    async def _do(self, proposal: Proposal) -> str | None:
        """Carry out a proposal; return the reason of a failure that the proposal caused."""
        self.trace.append(RECONCILE_PROPOSED, self._facts(proposal))
        server = self.replica.server
        match proposal:
            case Admit(node_id, name, key):
                server_id = next_raft_id(self.known.applied_state.state.admitted, node_id)
                entry = self.signer.sign(encode(Admission(node_id, name, key, server_id)))
                answer = await server.propose((entry,))
                if answer.outcome is Outcome.COMMITTED and answer.position is not None:
                    with suppress(ServerStoppedError):
                        await server.wait_applied(answer.position.index)
                return None
            case HandOver():
                try:
                    ended = await server.transfer_leadership()
                except (ServerBusyError, ServerStoppedError) as error:
                    return str(error)
                return None if ended.outcome is TransferOutcome.DONE else ended.outcome.value
            case AddLearner(server_id):
                invited = await self.replica.members.requests.add_learner(self._server(server_id))
                if invited is None:
                    return "it did not accept the invitation"
                resolved = invited
            case Promote(server_id) | Remove(server_id):
                if isinstance(proposal, Remove):
                    await self.replica.members.requests.request_leave(server_id)
                voters, learners = self._target(proposal, server_id)
                resolved = await server.change_configuration(voters, learners)
        if resolved.outcome is ChangeOutcome.REFUSED and resolved.refusal not in PASSING:
            return "unknown" if resolved.refusal is None else resolved.refusal.value
        return None

    def _target(self, proposal: Promote | Remove, server_id: int) -> tuple[tuple[Server, ...], tuple[Server, ...]]:
        configuration = self.replica.server.describe().raft.configuration
        voters = tuple(each for each in configuration.voters if each.server_id != server_id)
        learners = tuple(each for each in configuration.learners if each.server_id != server_id)
        match proposal:
            case Promote():
                return (*voters, self._server(server_id)), learners
            case Remove():
                return voters, learners

    def _server(self, server_id: int) -> Server:
        admitted = self.known.applied_state.state.admitted.get(server_id)
        endpoint = None if admitted is None else self.member_directory.endpoint_of(admitted.node_id)
        return Server(server_id, endpoint or UNKNOWN_ENDPOINT)


def settings_of(consensus: ConsensusSettings, expect: int, period_ms: int) -> ReconcileSettings:
    """Return the operator's settings, with a settling time of at most the grace time."""
    return ReconcileSettings(
        expect,
        voters_max=consensus.voters_max,
        grace_ms=consensus.grace_ms,
        settle_ms=min(profile_of(consensus.timing).settle_ms, consensus.grace_ms),
        admits_all=consensus.admit is AdmitSetting.ALL,
        admission_every_ms=period_ms,
    )


def group_of(raft: RaftDescription, contact_within_ms: int) -> Group:
    """Return the group as its leader's core describes it."""
    answering = {
        integer_id(each.server_id): each.match
        for each in raft.followers
        if each.contact_ms is not None and each.contact_ms <= contact_within_ms
    }
    learners = frozenset(map(integer_id, raft.configuration.learner_ids))
    return Group(
        own_id=integer_id(raft.server_id),
        voters=frozenset(map(integer_id, raft.configuration.voter_ids)),
        learners=learners,
        answering=frozenset(answering),
        caught_up=frozenset(
            each for each in learners if each in answering and answering[each] + CAUGHT_UP_ENTRIES >= raft.commit_index
        ),
    )


def _step_facts(proposal: Proposal) -> dict[str, Scalar]:
    match proposal:
        case Admit(node_id, name, _):
            return {"step": ReconcileStep.ADMIT.word, "name": name, "id": node_id.hex()}
        case AddLearner(server_id):
            return {"step": ReconcileStep.ADD_LEARNER.word, "server": server_id}
        case Promote(server_id):
            return {"step": ReconcileStep.PROMOTE.word, "server": server_id}
        case Remove(server_id):
            return {"step": ReconcileStep.REMOVE.word, "server": server_id}
        case HandOver():
            return {"step": ReconcileStep.HAND_OVER.word}
