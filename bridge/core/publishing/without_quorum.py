"""Publishing without a quorum: one server decides from its own observations alone.

docs/explanation/publishing.md ("Without a quorum") explains why; docs/reference/publishing-rules.md
lists the rules.

    with a quorum      the log decides, and all servers decide alike
    without            the server that published last publishes, if it is reachable and able. Otherwise the reachable
                       and able server with the lowest NodeId publishes
      its content      from the last state, but with this node's own current health, and without the reports of
                       servers that gossip marks dead
      its time         as usual (`bridge.core.publishing.publication`)

None of this enters the log. With a quorum again, the publisher reports the timestamp of its last publication, in
seconds. The next committed publication gets a later timestamp (`FarmState.unfenced_second`).

Clock entries show whether there is a quorum: the leader commits one each period. A check for a known leader would be
simpler, but a non-voting server does not notice elections, and a leader may be unable to commit.
"""

from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.records import Publication, PublishConfig, Report
from bridge.core.publishing.candidates import KEY_MARGIN_S
from bridge.core.publishing.lease_set import select_leaves
from bridge.core.publishing.publication import Pace, PlannedPublication, plan_publication
from bridge.core.state.farm_state import Choice, FarmState, FarmTuning, MasterState, ServerState

PATIENCE_PERIODS = 2.5
"""Number of periods without a clock entry until the quorum is considered lost.

One entry may be late, and an election may delay the next.
"""
PATIENCE_ELECTIONS = 3
MIN_PATIENCE_MS = 5_000
"""Minimum wait: with a short reporting period, an ordinary election would otherwise count as an outage."""


class QuorumWatch:
    """Observer of the log's progress on this server. All times are monotonic milliseconds."""

    def __init__(self, now: int) -> None:
        self._moved_at = now
        self.moved = False
        """True once a clock entry has been committed since this node started."""

    def clock_committed(self, now: int) -> None:
        """Record that the log has advanced."""
        self._moved_at, self.moved = now, True

    def left_ms(self, now: int, period_ms: int, election_timeout_ms: int) -> float:
        """Return the milliseconds until the quorum counts as lost without a clock entry; negative if it is lost."""
        patience_ms = max(PATIENCE_PERIODS * period_ms, PATIENCE_ELECTIONS * election_timeout_ms, MIN_PATIENCE_MS)
        return self._moved_at + patience_ms - now


class LocalObservations(Struct, frozen=True):
    """The observations of one server without a majority: its own state, and the members that gossip marks alive."""

    own: Report
    reachable: AbstractSet[int]
    """Raft ids of the live members of the group other than this server."""


def acting_publisher(state: FarmState, master: str, observations: LocalObservations, now_s: int) -> int | None:
    """Return the publisher of `master` without a quorum, as this server sees it; None if no server is able."""
    known = state.masters.get(master, MasterState())
    last = known.choice.server_id if known.publication is None else known.publication.server_id
    eligible = _eligible(state, master, observations, now_s)
    if last in eligible:
        return last
    return min(eligible, key=lambda each: (_node_id(state, each), each), default=None)


def plan_without_quorum(
    state: FarmState,
    master: str,
    tuning: FarmTuning,
    pace: Pace,
    observations: LocalObservations,
    now_ms: int,
    *,
    handed_over: Publication | None,
) -> PlannedPublication | None:
    """Return the publication, if due, that this server should sign and hand to its router now.

    `handed_over` is the last publication that it gave to its router. `now_ms` is this server's estimate of log time.
    The plan has the form of a committed publication, but never enters the log.
    """
    own_id = observations.own.server_id
    known = state.masters.get(master)
    if known is None or acting_publisher(state, master, observations, now_ms // 1000) != own_id:
        return None
    last = known.publication
    if handed_over is not None and (last is None or handed_over.published_s > last.published_s):
        last = handed_over
    seen = state_as_observed(state, tuning, observations, now_ms)
    acting = replace(
        known,
        choice=Choice(own_id),
        leaves=select_leaves(seen, master, tuning, at_clock=False),
        publication=last,
    )
    seen = replace(seen, masters={**seen.masters, master: acting})
    return plan_publication(seen, master, own_id, pace, now_ms, handed_over=handed_over)


def _eligible(state: FarmState, master: str, observations: LocalObservations, now_s: int) -> set[int]:
    reports = {each: server.report for each, server in state.servers.items() if each in observations.reachable}
    reports[observations.own.server_id] = observations.own
    return {server_id for server_id, report in reports.items() if _is_able(state, report, master, now_s)}


def _is_able(state: FarmState, report: Report, master: str, now_s: int) -> bool:
    part, known = report.part_in(master), state.servers.get(report.server_id)
    admitted = state.admitted.get(report.server_id)
    return (
        report.server_id not in state.removed
        and (admitted is None or admitted.is_member)
        and report.router.attached
        and part is not None
        and part.publish_config is not PublishConfig.OFF
        and part.can_sign_until_s is not None
        and part.can_sign_until_s - KEY_MARGIN_S > now_s
        and (known is None or not known.clock_off)
    )


def _node_id(state: FarmState, server_id: int) -> bytes:
    admitted = state.admitted.get(server_id)
    return b"" if admitted is None else admitted.node_id


def state_as_observed(state: FarmState, tuning: FarmTuning, observations: LocalObservations, now_ms: int) -> FarmState:
    """Return the state as it would be if the log contained this server's observations."""
    log_time_ms = max(state.log_time_ms, now_ms)
    silent_ms = log_time_ms - tuning.stale_after_ms - 1
    servers = {
        server_id: replace(server, reported_ms=log_time_ms if server_id in observations.reachable else silent_ms)
        for server_id, server in state.servers.items()
    }
    servers[observations.own.server_id] = ServerState(observations.own, log_time_ms)
    return replace(state, log_time_ms=log_time_ms, servers=servers)
