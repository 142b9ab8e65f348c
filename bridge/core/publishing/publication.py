"""The plan of a publisher's next publication: its time, its timestamp and its entries.

    begin              the first publication of a master: as soon as every voter has reported and no data is missing
                       (`_complete`), after `gather_ms` at the latest
    take over          immediately, if another server published last
    again              immediately, if this process has not handed over the last accepted publication
    change             once the content differs, but at least `change_ms` after the last publication: changes coalesce
    forced             an operator requests it; as for a change, because a router would refuse a structure sooner
    overtake           as for a change, if a server has published a later timestamp without a quorum (`without_quorum`)
    refresh            after `refresh_ms` ± 10 %; the jitter is a hash of the last publication, so it is not stored

The timestamps of a master's structures are in seconds. They must rise, also after `recover`. They must not be far ahead
of log time, because routers refuse structures from the future. Without a limit, a publisher could add one second with
each publication. So the state machine accepts a timestamp only up to `latest_second`. The planner waits until its own
estimate of log time is within `LEAD_MAX_MS` of the next timestamp.

With a quorum, the plan is proposed to the log first. The publisher may sign the planned entries only after
`PublicationAccepted`: this fences a former publisher, and the timestamps rise. Entries last 15 minutes longer than the
longest wait between two publications of a running publisher.
"""

import hashlib

from msgspec import Struct

from bridge.core.log.records import Publication
from bridge.core.publishing.entries import LeafEntry
from bridge.core.publishing.lease_set import content_hash
from bridge.core.state.farm_state import UNFENCED_AHEAD_MS, FarmState, FarmTuning, Leaf, MasterState

ENTRY_REMAINING_S = 900
JITTER_PERCENT = 10
LEAD_MAX_MS = UNFENCED_AHEAD_MS
"""Largest lead of a planned timestamp over log time.

It equals the lead of a publication without a quorum, so that the next publication need not wait. It is less than the
state machine accepts, and half of the minute that routers allow.
"""


class Pace(Struct, frozen=True):
    """The times between the publications of a master.

    Without a change, the next publication follows after `refresh_ms`; with a change, after at least `change_ms`. The
    first publication waits for at most `gather_ms`, and only while a report, a router or a healthy leaf is missing.
    Without this wait, missing data would be published only `change_ms` later.

    The default suits a Java router, which allows one Meta LeaseSet2 per destination and minute. `Pace.of_period` is for
    structures that never leave the machine.
    """

    refresh_ms: int = 300_000
    change_ms: int = 65_000
    gather_ms: int = 30_000

    @classmethod
    def of_period(cls, period_ms: int) -> "Pace":
        """Return the pace that publishes changes in each reporting period; the refresh interval does not change."""
        return cls(change_ms=period_ms, gather_ms=period_ms)


class PlannedPublication(Struct, frozen=True):
    """A publication to propose, and the entries to sign after the acceptance of exactly this publication."""

    publication: Publication
    entries: tuple[LeafEntry, ...]


def lease_set_entries(state: FarmState, master: str, published_s: int, pace: Pace) -> tuple[LeafEntry, ...] | None:
    """Return the entries of a publication of `master` at `published_s`, by destination; None without leaves."""
    leaves = state.masters.get(master, MasterState()).leaves
    if not leaves:
        return None
    end_s = end_of(published_s, pace)
    return tuple(LeafEntry(leaf.destination, leaf.cost, end_s) for leaf in leaves)


def end_of(published_s: int, pace: Pace) -> int:
    """Return the end of a structure's entries, in seconds since the epoch."""
    longest_wait_s = pace.refresh_ms * (100 + JITTER_PERCENT) // 100_000
    return published_s + ENTRY_REMAINING_S + longest_wait_s


def plan_publication(
    state: FarmState,
    master: str,
    server_id: int,
    pace: Pace,
    log_time_ms: int,
    *,
    handed_over: Publication | None,
    noted_s: int = 0,
) -> PlannedPublication | None:
    """Return the next publication of server `server_id`, if it is due.

    `log_time_ms` is the caller's estimate of log time (`LogTime.paced`), which advances between clock entries.
    `handed_over` is the last publication that the router of this process accepted. After a restart, or a refusal by the
    router, it differs from the last publication in the log. Then clients may lack the structure, and a new plan is due
    immediately. `noted_s` is the timestamp of the last structure that this server handed over, in any of its runs. The
    log may lack this timestamp, if the server published without a quorum and has not reported since its start. Propose
    one plan at a time: another plan with the same timestamp would be refused.
    """
    known = state.masters.get(master)
    if known is None or known.choice.server_id != server_id:
        return None
    lost = known.publication is not None and known.publication != handed_over
    overtaken = known.publication is not None and state.unfenced_second(master) > known.publication.published_s
    begins = known.publication is None and _complete(state, master)
    if not (lost or begins) and not _due(known, server_id, pace, log_time_ms, overtaken=overtaken):
        return None
    accepted_s = 0 if known.publication is None else known.publication.published_s
    previous_s = max(accepted_s, state.unfenced_second(master), noted_s)
    published_s = max(log_time_ms // 1000, previous_s + 1)
    if published_s * 1000 > max(log_time_ms, state.log_time_ms) + LEAD_MAX_MS:
        return None
    entries = lease_set_entries(state, master, published_s, pace)
    if entries is None:
        return None
    digest = content_hash(known.leaves)
    return PlannedPublication(Publication(master, server_id, published_s, digest), entries)


def is_up_to_date(state: FarmState, master: str, server_id: int, handed_over: Publication | None) -> bool:
    """Return True if server `server_id` need not publish before the next refresh or the next change."""
    known = state.masters.get(master)
    if known is None or known.choice.server_id != server_id:
        return True
    last = known.publication
    if last is None or last != handed_over or state.unfenced_second(master) > last.published_s:
        return False
    return not known.forced and not _changed(known.leaves, last)


def latest_second(state: FarmState, tuning: FarmTuning) -> int:
    """Return the latest timestamp that a publication may have now, in seconds.

    Log time lags a server's estimate by at most a period, and the server's clock may be off by `clock_tolerance_ms`.
    """
    return (state.log_time_ms + tuning.period_ms + tuning.clock_tolerance_ms) // 1000


def next_publication_ms(known: MasterState, pace: Pace) -> int | None:
    """Return the log time of the next refresh if nothing changes before; None before the first publication."""
    last = known.publication
    if last is None:
        return None
    digest = hashlib.sha256(f"{last.master} {last.published_s}".encode("utf-8", "surrogatepass")).digest()
    spread_ms = pace.refresh_ms * JITTER_PERCENT // 100
    jitter_ms = int.from_bytes(digest[:8], "big") % (2 * spread_ms + 1) - spread_ms
    return last.published_s * 1000 + pace.refresh_ms + jitter_ms


def _due(known: MasterState, server_id: int, pace: Pace, log_time_ms: int, *, overtaken: bool) -> bool:
    last = known.publication
    if last is None:
        return log_time_ms >= known.since_ms + pace.gather_ms
    if last.server_id != server_id:
        return True
    refresh_ms = next_publication_ms(known, pace)
    if refresh_ms is not None and log_time_ms >= refresh_ms:
        return True
    return (
        known.forced or overtaken or _changed(known.leaves, last)
    ) and log_time_ms >= last.published_s * 1000 + pace.change_ms


def _complete(state: FarmState, master: str) -> bool:
    """Return True if each voter has reported a router and leaves, and all leaves of `master` are healthy.

    A voter without leaves delays the publication, too: its router may report them soon. The state of a created farm
    always has voters.
    """
    voters = {each for majority in state.clocks.majorities for each in majority}
    reports = [server.report for server_id, server in state.servers.items() if server_id in voters]
    if not voters or len(reports) < len(voters):
        return False
    leaves = [leaf for _, leaf in state.leaves_of(master)]
    has_leaves = all(report.router.attached and report.destinations for report in reports)
    return has_leaves and bool(leaves) and all(leaf.healthy for leaf in leaves)


def _changed(leaves: tuple[Leaf, ...], last: Publication) -> bool:
    return content_hash(leaves) != last.content_hash
