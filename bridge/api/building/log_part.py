"""The parts of the view that a server computes from its log: Raft, publishing, reports and weights of costs.

    Raft's description     ──▶ raft
    the state of the farm  ──▶ publishing, reports, weights

`bridge.api.building.build_view` combines them with the members and the node itself. Pure code, like that module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from bridge.api.printable import one_line
from bridge.api.view import (
    SHOWN,
    ConditionView,
    CostFactorView,
    DirectoryView,
    ExclusionView,
    FollowerView,
    LeafView,
    LinkView,
    LookUpView,
    MemberView,
    MetaEntryView,
    PipelineFactorView,
    PublishingView,
    RaftRole,
    RaftView,
    ReportView,
    ScorePartView,
    ServerRole,
    StandingView,
    VoterView,
    WeightsView,
)
from bridge.api.words import SERVER_FAULT, score_value_text
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import ConditionStatus, LeafFault, LeafStatus, Publication, Report, ReportedDirectory
from bridge.core.log.weights import THOUSANDTHS
from bridge.core.membership.admission import Admitted, Standing, server_label
from bridge.core.publishing.arrival import LookUp, LookUps
from bridge.core.publishing.candidates import Candidate, candidates_of, score_parts
from bridge.core.publishing.choice_reasons import ChoiceTexts, choice_texts_alone, no_publisher_text, reason_alone
from bridge.core.publishing.entries import LeafEntry
from bridge.core.publishing.lease_set import is_healthy, leaf_load
from bridge.core.publishing.publication import Pace, PlannedPublication, end_of, lease_set_entries
from bridge.core.state.farm_state import (
    UNFENCED_AHEAD_MS,
    FarmState,
    FarmTuning,
    MasterState,
    ServerState,
    StructureHandOver,
)
from bridge.wire.log.reports import FAILURE_LIMIT
from consensus import RaftDescription, ServerId, integer_id


class ServerLink(Struct, frozen=True):
    """A connection to another server, as the transport describes it."""

    peer: int
    connected: bool
    extensions: tuple[str, ...]


class LocalView(Struct, frozen=True):
    """The farm as a node without a quorum computes it alone. The keys of the mappings are master destinations."""

    state: FarmState
    """The last state, with this node's own health and with every unreachable server marked as unresponsive."""
    acting: Mapping[str, int | None]
    """The Raft id of the server that publishes the master without a quorum; None if no reachable server can."""
    signed: Mapping[str, PlannedPublication]
    """The last structures that this node's own router accepted."""


class FarmInputs(Struct, frozen=True, kw_only=True):
    """The log of a server of the farm, and the state after its applied entries."""

    state: FarmState
    tuning: FarmTuning
    pace: Pace
    log_time_ms: int
    """Log time as this node computes it, also between clock entries."""
    raft: RaftDescription
    first_index: int
    applied_index: int
    waits: tuple[str, ...] = ()
    links: tuple[ServerLink, ...] = ()
    """This node's connections to the other servers, in order of their ids."""
    lease_set_files: Mapping[str, str] = field(default_factory=dict)
    """By master destination, the path of the structure that this node's router has written."""
    handed_over: Mapping[str, int] = field(default_factory=dict)
    """By master destination, the timestamp in seconds of the last structure that this node's router accepted."""
    look_ups: LookUps = field(default_factory=LookUps)
    """The last look-ups of the masters by each server."""
    counters: Mapping[str, int] = field(default_factory=dict)
    election_timeout_ms: int = 0
    leaderless_ms: int | None = None
    """Milliseconds since this server last knew a leader; None while it knows one."""
    alone: LocalView | None = None
    """The farm without a quorum; None while there is a quorum."""
    stands_still: bool = False
    """No clock entry was committed for several reporting periods."""
    udp_blocked: tuple[int, ...] = ()
    """Servers that Raft reaches and gossip does not (`bridge.api.farm_facts`)."""
    not_reporting: tuple[int, ...] = ()
    unapplied: Mapping[int, Admitted] = field(default_factory=dict)
    """By Raft id, the identity of each server whose admission this node has not applied since its start."""

    @property
    def holders(self) -> Mapping[int, Admitted]:
        """Return the identity with each Raft id."""
        return {**self.unapplied, **self.state.admitted} if self.unapplied else self.state.admitted


def no_raft() -> RaftView:
    """Return the view of Raft of a node without a log."""
    return RaftView(
        role=RaftRole.NONE,
        term=0,
        leader_id=None,
        leader_name=None,
        leader_endpoint=None,
        first_index=1,
        last_index=0,
        commit_index=0,
        applied_index=0,
        log_time_ms=None,
    )


class LogPart:
    """The log's part of the view. `names` are the servers' names by Raft id."""

    def __init__(
        self,
        farm: FarmInputs,
        names: Mapping[int | None, str],
        address_of: Callable[[str], str],
    ) -> None:
        self._farm = farm
        self._names = names
        self._address_of = address_of
        self.state = farm.state
        self._seen = farm.state if farm.alone is None else farm.alone.state
        """The state that decides about publishing: the log's, or without a quorum this node's own."""
        self._owners = {
            leaf.destination: server_label(server_id, names.get(server_id))
            for server_id, server in sorted(self._seen.servers.items())
            for leaf in server.report.destinations
        }

    def raft(self, members: Sequence[MemberView]) -> RaftView:
        """Return the view of Raft, with the endpoints of `members`: endpoints in the log are older."""
        farm, raft, names = self._farm, self._farm.raft, self._names
        endpoints = {integer_id(server.server_id): server.endpoint for server in raft.configuration.servers}
        endpoints.update(
            (each.raft_id, each.endpoint)
            for each in members
            if each.raft_id in endpoints and each.endpoint is not None and each.server_role is not ServerRole.NONE
        )
        leader = None if raft.leader is None else integer_id(raft.leader)
        return RaftView(
            role=RaftRole(raft.role.value),
            term=raft.term,
            leader_id=leader,
            leader_name=None if leader is None else names.get(leader),
            leader_endpoint=None if leader is None else endpoints.get(leader),
            first_index=farm.first_index,
            last_index=raft.last.index,
            commit_index=raft.commit_index,
            applied_index=farm.applied_index,
            log_time_ms=farm.log_time_ms,
            voters=self._servers(raft.configuration.voter_ids, endpoints),
            learners=self._servers(raft.configuration.learner_ids, endpoints),
            followers=tuple(
                FollowerView(
                    raft_id=integer_id(each.server_id),
                    name=names.get(integer_id(each.server_id)),
                    match_index=None if each.contact_ms is None else each.match,
                    lag_entries=None if each.contact_ms is None else raft.last.index - each.match,
                    last_contact_ms=each.contact_ms,
                )
                for each in raft.followers
            ),
            waits=farm.waits,
            counters=ordered(farm.counters),
            transfer_target=None if raft.transfer_target is None else integer_id(raft.transfer_target),
            links=tuple(
                LinkView(each.peer, names.get(each.peer), each.connected, each.extensions) for each in farm.links
            ),
            majorities=tuple(tuple(sorted(map(integer_id, majority))) for majority in raft.configuration.majorities),
            election_timeout_ms=farm.election_timeout_ms,
            leaderless_ms=farm.leaderless_ms,
            stands_still=farm.stands_still,
            udp_blocked=farm.udp_blocked,
            not_reporting=farm.not_reporting,
        )

    def _servers(self, chosen: frozenset[ServerId], endpoints: Mapping[int, str]) -> tuple[VoterView, ...]:
        admitted = self._farm.state.admitted
        evicted = {raft_id for raft_id, each in admitted.items() if each.standing is Standing.EVICTED}
        return tuple(
            VoterView(raft_id, endpoints[raft_id], self._names.get(raft_id), raft_id in evicted)
            for server in self._farm.raft.configuration.servers
            if server.server_id in chosen
            for raft_id in (integer_id(server.server_id),)
        )

    def publishing(self, unreachable: AbstractSet[int]) -> tuple[PublishingView, ...]:
        """Return the views of the masters; omit the masters of outsiders if other masters exist.

        `unreachable` are the servers that are dead or have left.
        """
        masters = sorted(self._seen.masters.items())
        shown = [each for each in masters if not self._is_of_outsiders(*each)]
        return tuple(self._master(*each, unreachable) for each in shown or masters)

    def _is_of_outsiders(self, destination: str, master: MasterState) -> bool:
        """Return True if only outsiders (evicted or retired identities) have reported or published a master.

        Servers with a leaf of a published master count like servers that reported it: their clients depend on it.
        """
        state = self._seen
        authors = {server_id for server_id, each in state.servers.items() if each.report.part_in(destination)}
        if master.publication is not None:
            authors.add(master.publication.server_id)
            authors.update(server.report.server_id for server, _ in state.leaves_of(destination))
        known = [state.admitted.get(each) for each in authors]
        return bool(known) and all(each is not None and each.is_out for each in known)

    def _master(self, destination: str, master: MasterState, unreachable: AbstractSet[int]) -> PublishingView:
        farm, names, alone, state = self._farm, self._names, self._farm.alone, self._seen
        publication, entries = self._published(destination, master)
        published_s = None if publication is None else publication.published_s
        handed_over = self._last_hand_over(destination)
        expires_s = None if handed_over is None else end_of(handed_over.published_s, farm.pace)
        by = None if handed_over is None else handed_over.server_id
        look_ups = farm.look_ups.of_others(destination, by)
        failures = _publish_failures(state, destination)
        candidates = self._candidates(destination)
        publisher, reason, choices = self._choices(destination, master, candidates, publication)
        return PublishingView(
            master=self._address_of(destination),
            publisher_id=publisher,
            publisher_name=names.get(publisher),
            reason=reason,
            published_s=published_s,
            expires_s=expires_s,
            seconds_to_expiry=None if expires_s is None else expires_s - farm.log_time_ms // 1000,
            lease_set_file=farm.lease_set_files.get(destination),
            entries=self._entries(destination, entries, unreachable),
            published_by=None if publication is None else publication.server_id,
            published_by_name=None if publication is None else names.get(publication.server_id),
            without_quorum=alone is not None,
            handed_over_s=None if handed_over is None else handed_over.published_s,
            handed_over_by=by,
            handed_over_by_name=names.get(by),
            seen=None
            if handed_over is None
            else farm.look_ups.is_seen(destination, handed_over, farm.tuning.period_ms),
            look_ups=tuple(map(self._look_up, look_ups)),
            content_hash=None if publication is None else publication.content_hash,
            forced=master.forced,
            standings=tuple(
                StandingView(
                    raft_id=integer_id(each.server_id),
                    name=names.get(integer_id(each.server_id)),
                    preferred=each.preferred,
                    score=each.score,
                    inability=None if each.inability is None else each.inability.value,
                    failure=failures.get(each.server_id, UNSET),
                    standby=each.standby,
                    parts=part_views(state.servers[each.server_id].report),
                    choice=choices[each.server_id],
                )
                for each in candidates
            ),
        )

    def _entries(
        self, destination: str, entries: tuple[LeafEntry, ...], unreachable: AbstractSet[int]
    ) -> tuple[MetaEntryView, ...]:
        state, tuning = self._seen, self._farm.tuning
        healthy = {
            leaf.destination
            for server, leaf in state.leaves_of(destination)
            if is_healthy(state, server, leaf, tuning) and server.report.server_id not in unreachable
        }
        faults = {leaf.destination: fault_names(leaf) for _, leaf in state.leaves_of(destination)}
        running = {
            leaf.destination
            for server in state.servers.values()
            if server.report.server_id not in unreachable and not state.stale(server, tuning)
            for leaf in server.report.destinations
        }
        return tuple(
            MetaEntryView(
                destination=self._address_of(entry.destination),
                name=self._owners.get(entry.destination),
                cost=entry.cost,
                end_s=entry.end_s,
                healthy=entry.destination in healthy,
                faults=(
                    *(() if entry.destination in running else (SERVER_FAULT,)),
                    *(faults.get(entry.destination) or ()),
                )
                or UNSET,
            )
            for entry in entries
        )

    def _candidates(self, destination: str) -> list[Candidate]:
        """Return the candidates of a master, without retired and evicted servers that cannot publish."""
        admitted = self._seen.admitted
        return [
            each
            for each in candidates_of(self._seen, destination, self._farm.tuning)
            if each.inability is None or each.server_id not in admitted or not admitted[each.server_id].is_out
        ]

    def _choices(
        self, destination: str, master: MasterState, candidates: list[Candidate], publication: Publication | None
    ) -> tuple[int | None, str, Mapping[int, str]]:
        """Return the publisher of a master, the reason, and the reason for each candidate."""
        if self._farm.alone is not None:
            acting = self._farm.alone.acting.get(destination)
            last = None if publication is None else publication.server_id
            return acting, reason_alone(acting, last), choice_texts_alone(acting, last, candidates, self._label)
        able = [each for each in candidates if each.inability is None]
        texts = ChoiceTexts(master.choice, able, self._farm.tuning, self._label, self._causes(destination))
        reason = no_publisher_text(candidates) if texts.publisher is None else texts.of(texts.publisher)
        return master.choice.server_id, reason, {each.server_id: texts.of(each) for each in candidates}

    def _causes(self, destination: str) -> dict[int, str]:
        """Map each server to its router's last error: a missing reply, or otherwise a refused structure."""
        lost = {
            server.report.server_id: each.last_error
            for server in self._seen.serving(destination)
            for leaf in server.report.destinations
            for each in leaf.conditions
            if each.condition is LeafFault.ROUTER and LeafFault.ROUTER in leaf.faults and each.last_error is not None
        }
        found = {**_publish_failures(self._seen, destination), **lost}
        return {server_id: one_line(text, FAILURE_LIMIT) for server_id, text in found.items()}

    def _label(self, server_id: int) -> str:
        return server_label(server_id, self._names.get(server_id))

    def _last_hand_over(self, destination: str) -> StructureHandOver | None:
        """Return the last hand-over in the reports, or this node's own hand-over if it is later."""
        reported, own_s = self._seen.last_hand_over(destination), self._farm.handed_over.get(destination, 0)
        if (
            (0 if reported is None else reported.published_s)
            < own_s
            <= (self._farm.log_time_ms + UNFENCED_AHEAD_MS) // 1000
        ):
            return StructureHandOver(integer_id(self._farm.raft.server_id), own_s)
        return reported

    def _look_up(self, found: LookUp) -> LookUpView:
        age_ms = max(0, self._farm.log_time_ms - found.at_ms)
        return LookUpView(found.server_id, self._names.get(found.server_id), found.is_found, found.fetch_ms, age_ms)

    def _published(self, destination: str, master: MasterState) -> tuple[Publication | None, tuple[LeafEntry, ...]]:
        """Return the last known publication: the log's; without a quorum, this node's own unless it is earlier."""
        accepted, alone = master.publication, self._farm.alone
        signed = None if alone is None else alone.signed.get(destination)
        if signed is not None and (accepted is None or signed.publication.published_s >= accepted.published_s):
            return signed.publication, signed.entries
        if accepted is None:
            return None, ()
        return accepted, lease_set_entries(self._seen, destination, accepted.published_s, self._farm.pace) or ()

    def reports(self) -> tuple[ReportView, ...]:
        """Return the last report of each server."""
        scores: dict[int, Candidate] = {}
        for destination in self.state.masters:
            for candidate in candidates_of(self.state, destination, self._farm.tuning):
                scores.setdefault(candidate.server_id, candidate)
        return tuple(self._report(server, scores.get(each)) for each, server in sorted(self.state.servers.items()))

    def _report(self, server: ServerState, candidate: Candidate | None) -> ReportView:
        farm, report = self._farm, server.report
        can_publish = candidate is not None and candidate.inability is None
        age_ms = max(0, farm.log_time_ms - server.reported_ms)
        figures: dict[str, Any] = {each.name: each.of(report.router) for each in SHOWN}
        return ReportView(
            raft_id=report.server_id,
            name=self._names.get(report.server_id),
            age_ms=age_ms,
            stale=self.state.stale(server, farm.tuning),
            score=float(candidate.score) if candidate is not None and can_publish else None,
            can_publish=can_publish,
            publishing=any(master.choice.server_id == report.server_id for master in self.state.masters.values()),
            attached=report.router.attached,
            clock_off=server.clock_off,
            healthy_destinations=sum(leaf.healthy for leaf in report.destinations),
            destinations=len(report.destinations),
            **figures,
            masters=tuple(self._address_of(part.destination) for part in report.masters),
            leaves=tuple(
                LeafView(
                    destination=self._address_of(leaf.destination),
                    master=None if leaf.master_hash is None else address_of_hash(leaf.master_hash),
                    healthy=leaf.healthy,
                    load=leaf_load(report.router, leaf),
                    excluded=hash_of(leaf.destination) in self.state.weights.excluded,
                    faults=fault_names(leaf),
                    conditions=condition_views(leaf, age_ms),
                )
                for leaf in report.destinations
            ),
            directory=directory_view(report.directory),
        )

    def weights(self) -> WeightsView:
        """Return the weights of operators and of the pipeline, with their values at this log time."""
        weights, log_time_ms = self.state.weights, self._farm.log_time_ms
        owners = {hash_of(destination): owner for destination, owner in self._owners.items()}
        return WeightsView(
            excluded=tuple(ExclusionView(address_of_hash(each), owners.get(each)) for each in weights.excluded),
            costs=tuple(
                CostFactorView(address_of_hash(each), owners.get(each), thousandths / THOUSANDTHS)
                for each, thousandths in sorted(weights.costs.items())
            ),
            factors=tuple(
                PipelineFactorView(
                    address_of_hash(each),
                    owners.get(each),
                    factor=factor.at(log_time_ms) / THOUSANDTHS,
                    said=factor.thousandths / THOUSANDTHS,
                    age_ms=max(0, log_time_ms - factor.set_ms),
                )
                for each, factor in sorted(weights.factors.items())
            ),
            through_index=weights.through_index,
            formula=weights.formula,
        )


def fault_names(leaf: LeafStatus) -> tuple[str, ...] | UnsetType:
    """Return the names of the faults of a leaf, as a report writes them."""
    return tuple(each.value for each in leaf.faults) or UNSET


def condition_views(leaf: LeafStatus, report_age_ms: int) -> tuple[ConditionView, ...] | UnsetType:
    """Return the known conditions of a leaf."""
    found = leaf.conditions or tuple(_conditions_by_faults(leaf))
    return tuple(_condition_view(leaf, each, report_age_ms) for each in found if _is_known(leaf, each)) or UNSET


def _conditions_by_faults(leaf: LeafStatus) -> Iterable[ConditionStatus]:
    """Yield the conditions in a report of an older version, which has the faults alone, or only the health."""
    if leaf.healthy or leaf.faults:
        is_outdated = LeafFault.ROUTER in leaf.faults
        yield from (ConditionStatus(each) for each in LeafFault if each is not LeafFault.LEASE_SET or not is_outdated)


def _is_known(leaf: LeafStatus, condition: ConditionStatus) -> bool:
    return not leaf.conditions or condition.age_ms is not None or condition.condition in leaf.faults


def _condition_view(leaf: LeafStatus, past: ConditionStatus, report_age_ms: int) -> ConditionView:
    return ConditionView(
        past.condition.value,
        holds=past.condition not in leaf.faults,
        since_ms=None if past.age_ms is None else past.age_ms + report_age_ms,
        last_error=None if past.last_error is None else one_line(past.last_error, FAILURE_LIMIT),
        failures=past.failures if leaf.conditions else None,
    )


def part_views(report: Report) -> tuple[ScorePartView, ...]:
    """Return the parts of the sender's score, with the values of its report."""
    return tuple(
        ScorePartView(each.figure.value, score_value_text(each.figure, report), each.points, each.maximum)
        for each in score_parts(report)
    )


def _publish_failures(state: FarmState, master: str) -> dict[int, str]:
    """Map each server whose router did not accept the last structure to the reason."""
    parts = {server.report.server_id: server.report.part_in(master) for server in state.serving(master)}
    return {
        server_id: part.publish_failure
        for server_id, part in parts.items()
        if part is not None and part.publish_failure is not None
    }


def directory_view(directory: ReportedDirectory | None) -> DirectoryView | None:
    """Return the view of a node's directory."""
    if directory is None:
        return None
    named = directory.destination_hash
    return DirectoryView(address=None if named is None else address_of_hash(named), problem=directory.problem)


def address_of_hash(destination_hash: str) -> str:
    """Return the base32 address of the destination with this hash."""
    return f"{destination_hash}.b32.i2p"


def ordered(counters: Mapping[str, int]) -> dict[str, int]:
    """Return counters by name."""
    return dict(sorted(counters.items()))
