"""The candidates for publishing: all servers choose the healthiest one (docs/reference/publishing-rules.md).

    score = 1000 - penalties        job lag 300, uptime 200, leaves 200, bandwidth 150, processor 100, memory 50
    rank  = (publishConfig is on, score, -server id)        an unable server does not have a rank

The numbers above are *caps*. A penalty is a cap times the badness of the figure (0 to 1), in whole points. An unknown
figure costs half of its cap. The caps add up to 1000. So the score is the sum of `ScorePart.points`, the part of each
cap that remains. The choice follows the log: an unable publisher is replaced immediately. A candidate with
`publishConfig` on replaces one without it immediately, too. Otherwise the best candidate takes over only after the best
score has led by the margin at several clock entries in a row. If the best candidate always took over, each small change
of a job queue would change the publisher. Each change of the publisher requires a signature and a publication.

The *standby* is a candidate that keeps a session at its router ready. If it becomes the publisher, it publishes without
delay, but the choice of the publisher does not prefer it. Reports show the present standby, so that all servers select
the same one. Another candidate replaces it with a lead of the margin, or if only the other candidate has
`publishConfig` on. A change of the standby does not need several clock entries, because each server opens or ends its
session only after a while. No decision of the log depends on the standby.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf

from msgspec import Struct

from bridge.core.log.records import MetaStatus, PublishConfig, Report
from bridge.core.publishing.score import Inability, ScoreFigure, ScorePart
from bridge.core.state.farm_state import SERVERS_MAX, Choice, FarmState, FarmTuning, ServerState

JOB_LAG_WORST_MS = 1_000
UPTIME_GOOD_MS = 600_000
KEY_MARGIN_S = 900
"""Seconds before the end of a signing key; its server does not publish in this time."""


class Candidate(Struct, frozen=True):
    """A server as a candidate: its score, or the reason why it cannot publish."""

    server_id: int
    preferred: bool
    score: int
    inability: Inability | None = None
    standby: bool = False
    """True if the server keeps a session ready, according to its report."""


def penalty(cap: int, value: float | None, worst: float | None) -> int:
    """Return `cap` * value / worst within [0, cap], in whole points; half of `cap` for an unknown figure."""
    if value is None or worst is None or not 0 < worst < inf:  # NaN is not in this range
        return cap // 2
    # Zero is the first argument, because `max` returns its first argument if the other one is NaN. The value is limited
    # before the division, so that an absurdly large integer does not overflow.
    return int(cap * (min(worst, max(0, value)) / worst))


@lru_cache(maxsize=2 * SERVERS_MAX)  # after each report all servers are scored, and one report has changed
def score(report: Report) -> int:
    """Return the health of the sender's router as points from 0 (worst) to 1000."""
    return sum(cap - penalty(cap, value, worst) for _, cap, value, worst in _figures(report))


def score_parts(report: Report) -> tuple[ScorePart, ...]:
    """Return the parts of the score, in the order of the formula. Their points add up to the score."""
    return tuple(
        ScorePart(figure, cap - penalty(cap, value, worst), cap) for figure, cap, value, worst in _figures(report)
    )


def _figures(report: Report) -> Iterator[tuple[ScoreFigure, int, float | None, float | None]]:
    """Yield each figure of the score with its cap, its badness, and the badness that costs the whole cap."""
    router, leaves = report.router, report.destinations
    uptime_missing = None if router.uptime_ms is None else UPTIME_GOOD_MS - router.uptime_ms
    limit = router.configured_bandwidth_bytes_per_s
    yield ScoreFigure.JOB_LAG, 300, router.job_lag_ms, JOB_LAG_WORST_MS
    yield ScoreFigure.UPTIME, 200, uptime_missing, UPTIME_GOOD_MS
    # A server without leaves can publish: it counts as a server with only healthy leaves.
    yield ScoreFigure.LEAVES, 200, sum(not leaf.healthy for leaf in leaves), len(leaves) or 1
    yield ScoreFigure.BANDWIDTH, 150, router.current_bandwidth_bytes_per_s, limit
    yield ScoreFigure.PROCESSOR, 100, router.cpu_percent, 100
    yield ScoreFigure.MEMORY, 50, router.memory_percent, 100


def candidates_of(state: FarmState, master: str, tuning: FarmTuning) -> list[Candidate]:
    """Return every server that reports for `master`, in order of id."""
    return [_candidate(state, server, server.report.part_in(master), tuning) for server in state.serving(master)]


def _candidate(state: FarmState, server: ServerState, part: MetaStatus | None, tuning: FarmTuning) -> Candidate:
    return Candidate(
        server_id=server.report.server_id,
        preferred=part is not None and part.publish_config is PublishConfig.ON,
        score=score(server.report),
        inability=_inability(state, server, part, tuning),
        standby=part is not None and part.standby,
    )


def _inability(state: FarmState, server: ServerState, part: MetaStatus | None, tuning: FarmTuning) -> Inability | None:
    key_ends_s = part.can_sign_until_s if part is not None else None
    if state.stale(server, tuning):
        return Inability.STALE
    if server.clock_off:
        return Inability.CLOCK_OFF
    if not server.report.router.attached:
        return Inability.UNATTACHED
    if part is not None and part.publish_config is PublishConfig.OFF:
        return Inability.OFF if part.publish_failure is None else Inability.FAILING
    if key_ends_s is None:
        return Inability.NO_KEY
    return Inability.KEY_ENDS if key_ends_s - KEY_MARGIN_S <= state.log_time_ms // 1000 else None


def standby_of(state: FarmState, master: str, tuning: FarmTuning) -> int | None:
    """Return the standby of `master`, which keeps a session ready while another server publishes; None without any."""
    known = state.masters.get(master)
    if known is None or known.choice.server_id is None:
        return None
    candidates = candidates_of(state, master, tuning)
    able = [each for each in candidates if each.inability is None and each.server_id != known.choice.server_id]
    if not able:
        return None
    best = max(able, key=rank)
    # The order of similar scores changes with each report, so the first server by id is the default.
    alike = (each for each in able if each.preferred is best.preferred)
    near = next(each for each in alike if best.score - each.score < tuning.margin_points)
    current = max((each for each in able if each.standby), key=rank, default=near)
    leads = best.preferred > current.preferred or best.score - current.score >= tuning.margin_points
    return best.server_id if leads else current.server_id


def rank(candidate: Candidate) -> tuple[bool, int, int]:
    """Return the order of able candidates: the greatest is the best."""
    return candidate.preferred, candidate.score, -candidate.server_id


def choose(previous: Choice, candidates: Sequence[Candidate], tuning: FarmTuning, *, at_clock: bool) -> Choice:
    """Return the next choice.

    Only clock entries count toward the margin, so that frequent reports do not gain anything.
    """
    eligible: Mapping[int, Candidate] = {each.server_id: each for each in candidates if each.inability is None}
    if not eligible:
        return Choice()
    best = max(eligible.values(), key=rank)
    current = eligible.get(previous.server_id) if previous.server_id is not None else None
    if current is None or best.preferred > current.preferred:
        return Choice(best.server_id)
    if not at_clock:
        return previous
    if best.preferred < current.preferred or best.score - current.score < tuning.margin_points:
        return Choice(current.server_id)
    beaten = previous.beaten + 1
    return Choice(best.server_id) if beaten >= tuning.margin_clocks else Choice(current.server_id, beaten)
