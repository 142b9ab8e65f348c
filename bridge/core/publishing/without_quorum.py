"""Publishing while the log stands still: who does it, and what, by what one server sees alone.

docs/explanation/publishing.md tells it for operators.

    with a quorum      the log decides, and every server knows the same
    without            who: the server that published last, if it is to be reached and able to; else, of those who are,
                            the one with the lowest NodeId
                       what: what the last state adds up to, with this node's own health instead of its last report,
                            and every server that gossip holds for dead taken as silent
                       when: as ever (`bridge.core.publishing.publication`)

A service must outlive the majority of its routers, and structures end after a quarter of an hour; so what needs no
agreement is not made to wait for one. Two servers that see different peers may both publish. That does no harm: both
list leaves of the same farm, and a router takes the later one. To publish nothing would take the service away.

Nothing of this enters the log. When there is a quorum again, the second of what was published meanwhile comes back with
its publisher's report, and the next committed publication is later than that (`FarmState.unfenced_second`).

The clock entries tell whether there is a quorum: its leader commits one each period. "No leader is known" would be the
simpler question, but a server that does not vote hears of no election, and a leader may be there and commit nothing.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from bridge.core.log.records import Publication, PublishConfig, Report
from bridge.core.publishing.candidates import KEY_MARGIN_S
from bridge.core.publishing.lease_set import select_leaves
from bridge.core.publishing.publication import Pace, PlannedPublication, plan_publication
from bridge.core.state.farm_state import Choice, FarmState, FarmTuning, MasterState, ServerState

PATIENCE_PERIODS = 2.5
"""Without a clock entry for so long there is no quorum: one may be late, and an election may take the next."""
PATIENCE_ELECTIONS = 3
PATIENCE_LEAST_MS = 5_000
"""An election is not an outage, however short the reporting period is, or however far the servers are apart."""


class QuorumWatch:
    """Whether the log moves, as far as this server can tell. All times are monotonic milliseconds."""

    def __init__(self, now: int) -> None:
        self._moved_at = now
        self.moved = False
        """A clock entry was committed in this life of the node."""

    def clock_committed(self, now: int) -> None:
        """The log has moved."""
        self._moved_at, self.moved = now, True

    def lost_for_ms(self, now: int, period_ms: int, election_timeout_ms: int) -> int | None:
        """How long there has been no quorum; None while there is one, or may be."""
        patience_ms = max(PATIENCE_PERIODS * period_ms, PATIENCE_ELECTIONS * election_timeout_ms, PATIENCE_LEAST_MS)
        still_ms = now - self._moved_at
        return still_ms if still_ms > patience_ms else None


@dataclass(frozen=True, slots=True)
class LocalObservations:
    """What one server knows without asking a majority: its own state, and which others gossip hears of."""

    own: Report
    reachable: AbstractSet[int]
    """Raft ids of the other members of the group that are alive."""


def acting_publisher(state: FarmState, master: str, around: LocalObservations, now_s: int) -> int | None:
    """Who publishes `master` without a quorum, by what this server sees; None: nobody who is to be reached can."""
    known = state.masters.get(master, MasterState())
    last = known.choice.server_id if known.publication is None else known.publication.server_id
    able = _able(state, master, around, now_s)
    if last in able:
        return last
    return min(able, key=lambda each: (_node_id(state, each), each), default=None)


def plan_without_quorum(
    state: FarmState,
    master: str,
    tuning: FarmTuning,
    pace: Pace,
    around: LocalObservations,
    now_ms: int,
    *,
    handed_over: Publication | None,
) -> PlannedPublication | None:
    """What this server signs and hands over now, if anything. `handed_over` is what it last gave to its router.

    `now_ms` is log time as this server reckons it. The plan names a publication like a committed one, of which the
    state machine never hears.
    """
    own_id = around.own.server_id
    known = state.masters.get(master)
    if known is None or acting_publisher(state, master, around, now_ms // 1000) != own_id:
        return None
    last = known.publication
    if handed_over is not None and (last is None or handed_over.published_s > last.published_s):
        last = handed_over
    seen = _as_seen(state, tuning, around, now_ms)
    acting = replace(
        known,
        choice=Choice(own_id),
        leaves=select_leaves(seen, master, tuning, at_clock=False),
        publication=last,
    )
    seen = replace(seen, masters={**seen.masters, master: acting})
    return plan_publication(seen, master, own_id, pace, now_ms, handed_over=handed_over)


def _able(state: FarmState, master: str, around: LocalObservations, now_s: int) -> set[int]:
    reports = {each: server.report for each, server in state.servers.items() if each in around.reachable}
    reports[around.own.server_id] = around.own
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


def _as_seen(state: FarmState, tuning: FarmTuning, around: LocalObservations, now_ms: int) -> FarmState:
    """The state as it would be if the log could say what this server sees."""
    log_time_ms = max(state.log_time_ms, now_ms)
    silent_ms = log_time_ms - tuning.stale_after_ms - 1
    servers = {
        server_id: replace(server, heard_ms=log_time_ms if server_id in around.reachable else silent_ms)
        for server_id, server in state.servers.items()
    }
    servers[around.own.server_id] = ServerState(around.own, log_time_ms)
    return replace(state, log_time_ms=log_time_ms, servers=servers)
