"""Texts that several surfaces share: about leaves, structures, and voters that hold back the feature level.

*A leaf* is healthy while three conditions hold (`bridge.core.log.records.LeafFault`). A report contains the state and
the last error of each condition; reports of older versions do not. A leaf is also unhealthy if its server is down or
its last report is too old (`SERVER_FAULT`).

*A structure* is `handed over` to the router next to its publisher, and `seen` if the router of another node finds it.
Neither state is called `published`, because routers do not report a publication.

*The feature level.* Each voter announces in its signed description the level that it supports. The leader raises the
level automatically only if all voters support a higher one. So one voter with an old version, or with a false
announcement, prevents the features of a new level. Each node that supports a higher level names these voters
immediately. It raises the alarm `feature-level` only after hours, because every upgrade looks the same for a while.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

from msgspec import UNSET, Struct, UnsetType

from bridge.api.control import NodeEvicted
from bridge.api.printable import clock_text, duration, known, milliseconds_text
from bridge.api.view import (
    ConditionView,
    DirectoryView,
    FarmView,
    LeafView,
    MemberView,
    PublishingView,
    ServerRole,
    StandingView,
)
from bridge.core.log.figures import FIGURES
from bridge.core.log.records import LeafFault, Report
from bridge.core.membership.admission import server_label
from bridge.core.publishing.score import ScoreFigure, inability_text
from consensus import counted

KILO = 1_000
UNKNOWN = "unknown"
SERVER_FAULT: Final = "server"
"""The fault of a leaf whose server is down or does not report; its last report has the other faults."""
IN_LAST_REPORT: Final = "in its last report: "
"""Prefix of conditions that may have changed since."""
FAULT_WORDS: Mapping[str, str] = {
    LeafFault.ROUTER.value: "no router answers",
    LeafFault.LEASE_SET.value: "its lease set is not found",
    LeafFault.SERVICE.value: "its service does not answer the probe",
    SERVER_FAULT: "its server is down or does not report",
}
CONDITION_NAMES: Mapping[str, str] = {
    LeafFault.ROUTER.value: "router",
    LeafFault.LEASE_SET.value: "lease set",
    LeafFault.SERVICE.value: "service",
}
_UNKNOWN_CONDITIONS: Mapping[str, str] = {
    LeafFault.ROUTER.value: "router unknown",
    LeafFault.LEASE_SET.value: "lease set not looked up",
    LeafFault.SERVICE.value: "service not probed",
}
_ACTIONS: Mapping[str, str] = {
    SERVER_FAULT: "start the node of the leaf, or repair its connections; `garlicfarm doctor` there checks them",
    LeafFault.ROUTER.value: "start the router of that node and its I2CP port; `garlicfarm doctor` there checks both",
    LeafFault.LEASE_SET.value: (
        "wait some minutes if the router has just started; otherwise check in its console that the leaf's server tunnel"
        " runs and that the router has found peers"
    ),
    LeafFault.SERVICE.value: "start the service of the leaf, or correct `probe` in its [[leaf]]",
}


def standing_text(standing: StandingView, able: str) -> str:
    """Return a candidate's part in publishing: the inability, `standby`, or otherwise the text `able`."""
    return inability_text(standing.inability or "") or ("standby" if standing.standby else able)


def score_value_text(figure: ScoreFigure, report: Report) -> str:
    """Return the value of a figure of the score in a report."""
    router = report.router
    match figure:
        case ScoreFigure.JOB_LAG:
            return UNKNOWN if router.job_lag_ms is None else duration(router.job_lag_ms)
        case ScoreFigure.UPTIME:
            return UNKNOWN if router.uptime_ms is None else duration(router.uptime_ms)
        case ScoreFigure.LEAVES:
            healthy = sum(leaf.healthy for leaf in report.destinations)
            return f"{healthy} of {len(report.destinations)} healthy" if report.destinations else "none"
        case ScoreFigure.BANDWIDTH:
            used, limit = router.current_bandwidth_bytes_per_s, router.configured_bandwidth_bytes_per_s
            return UNKNOWN if used is None or not limit else f"{used // KILO} of {limit // KILO} kB/s"
        case ScoreFigure.PROCESSOR:
            return _percent("cpu_percent", router.cpu_percent)
        case ScoreFigure.MEMORY:
            return _percent("memory_percent", router.memory_percent)
        case _:
            assert_never(figure)


def _percent(name: str, value: float | None) -> str:
    return UNKNOWN if value is None else FIGURES[name].text(value)


def health_text(faults: Iterable[str] | UnsetType, *, healthy: bool) -> str:
    """Return a text such as `healthy`, `unhealthy` or `unhealthy: its lease set is not found`."""
    if healthy:
        return "healthy"
    found = faults_text(faults)
    return f"unhealthy: {found}" if found else "unhealthy"


def faults_text(faults: Iterable[str] | UnsetType) -> str:
    """Return the failed conditions, in their fixed order; empty if none is known."""
    found = _in_order(FAULT_WORDS, faults)
    own = [each for each in found if each != FAULT_WORDS[SERVER_FAULT]]
    return f"; {IN_LAST_REPORT}".join(filter(None, [*found[len(own) :], " and ".join(own)]))


def fault_actions(faults: Iterable[str]) -> str:
    """Return the remedy for each fault."""
    return "; ".join(_in_order(_ACTIONS, faults))


def conditions_text(conditions: Iterable[ConditionView], *, is_outdated: bool = False) -> str:
    """Return `router ok for 3h00m; lease set ok for 3h00m; service failing for 5m02s: Connection refused`."""
    known = {each.condition: condition_text(each) for each in conditions}
    text = "; ".join(known.get(name, unknown) for name, unknown in _UNKNOWN_CONDITIONS.items())
    return f"{IN_LAST_REPORT if is_outdated else ''}{text}"


def condition_text(each: ConditionView) -> str:
    """Return the state of a condition, its age, the last error, and the number of failures."""
    since = "" if each.since_ms is None else f" for {duration(each.since_ms)}"
    text = f"{CONDITION_NAMES.get(each.condition, each.condition)} {'ok' if each.holds else 'failing'}{since}"
    count = "" if not each.failures else "failed once" if each.failures == 1 else f"failed {each.failures} times"
    if each.last_error is None:
        return f"{text} ({count})" if count else text
    if each.holds:
        return f"{text} ({count or 'failed'}: {each.last_error})"
    return f"{text}: {each.last_error}" + (f" ({count})" if each.failures is not None and each.failures > 1 else "")


def condition_cell(leaf: LeafView, condition: str) -> str:
    """Return `ok 3h00m`, `FAILING 5m02s` or a dash, for a table."""
    found = next((each for each in leaf.conditions or () if each.condition == condition), None)
    if found is None:
        return "-"
    since = "" if found.since_ms is None else f" {duration(found.since_ms)}"
    return f"{'ok' if found.holds else 'FAILING'}{since}"


def score_text(standing: StandingView) -> str:
    """Return `score 880: job lag 300 (0ms), uptime 130 of 200 (7m30s), …`."""
    parts = (
        f"{each.label} {each.points}{f' of {each.maximum}' if each.points < each.maximum else ''} ({each.value})"
        for each in standing.parts
    )
    return f"score {standing.score}" + (f": {', '.join(parts)}" if standing.parts else "")


def directory_text(directory: DirectoryView) -> str:
    """Return the address of a node's directory, and the reason if it does not serve."""
    if directory.problem is None:
        return f"{directory.address} returns structures to clients"
    return f"{directory.address or 'without an address yet'}, does not serve: {directory.problem}"


def _in_order(texts: Mapping[str, str], faults: Iterable[str] | UnsetType) -> list[str]:
    found = set[str]() if isinstance(faults, UnsetType) else set(faults)
    return [text for fault, text in texts.items() if fault in found]


def handed_over_text(each: PublishingView) -> str:
    """Return `2026-… UTC to the router of node-2, expires in 14m40s`, for the last structure."""
    if each.handed_over_s is None:
        return "not yet to a router"
    left = "" if each.seconds_to_expiry is None else f", expires in {duration(each.seconds_to_expiry * 1000)}"
    by = server_label(each.handed_over_by, each.handed_over_by_name)
    return f"{clock_text(each.handed_over_s * 1000, dated=True)} to the router of {by}{left}"


def seen_text(each: PublishingView) -> str:
    """Return `yes: found by node-3 (40s ago)`: the result of the other nodes' look-ups since the hand-over."""
    seen = {True: "yes", False: "no", None: "unknown"}[each.seen]
    if not each.look_ups:
        return f"{seen}: no router of another node has looked up the structure"
    texts = (
        f"{'found' if one.found else 'not found'} by {server_label(one.raft_id, one.name)} ({duration(one.age_ms)} ago)"
        for one in each.look_ups
    )
    return f"{seen}: {', '.join(texts)}"


def level_words(view: FarmView) -> str | None:
    """Return `4; node-3 does not announce a higher level`, or the level alone; None if the level is unknown."""
    level = view.farm.level
    if level is None:
        return None
    holding = voters_at_level(view)
    if not holding:
        return f"{level}"
    return f"{level}; {', '.join(holding)} {'does' if len(holding) == 1 else 'do'} not announce a higher level"


def voters_at_level(view: FarmView) -> tuple[str, ...]:
    """Return the names of the voters that keep the level below the level of this node."""
    level = view.farm.level
    supported = next((each.level for each in view.members if each.is_self), None)
    if level is None or supported is None or supported <= level:
        return ()
    voters = [each for each in view.members if each.server_role is ServerRole.VOTER]
    return tuple(each.name for each in voters if each.level is None or each.level <= level)


def by_name(members: tuple[MemberView, ...]) -> list[MemberView]:
    """Return members in a stable order: node-10 follows node-9, and evicted identities are last."""
    return sorted(members, key=lambda member: (member.evicted, len(member.name), member.name, member.node_id))


def incarnation_text(member: MemberView) -> str:
    """Return the generation and the number of a member's incarnation."""
    return f"{member.generation}.{member.number}"


def rtt_text(member: MemberView) -> str:
    """Return the last round trip to a member; `self` for this node."""
    return "self" if member.is_self else milliseconds_text(member.rtt_ms)


class MemberColumn(Struct, frozen=True):
    """A column of the tables of members on all surfaces."""

    title: str
    """The heading on the page."""
    text: Callable[[MemberView], str]
    word: str = ""
    """The word of the glossary that explains the column, if there is one."""
    short: str = ""
    """A short heading for terminals, if the title is long."""

    @property
    def heading(self) -> str:
        """The heading in a terminal."""
        return (self.short or self.title).upper()


MEMBER_COLUMNS: Final[Mapping[str, MemberColumn]] = {
    "name": MemberColumn("Name", lambda member: member.name),
    "status": MemberColumn("Status", lambda member: member.status.value, "gossip"),
    "incarnation": MemberColumn("Incarnation", incarnation_text, "incarnation", "inc."),
    "roundTrip": MemberColumn("Round trip", rtt_text, "round trip", "rtt"),
    "peers": MemberColumn("Peers", lambda member: f"{known(member.peer_count)}/{known(member.capacity)}", "peer"),
    "raftId": MemberColumn("Raft id", lambda member: known(member.raft_id), "raft id"),
    "raft": MemberColumn("Raft", lambda member: "evicted" if member.evicted else member.server_role.value, "raft"),
    "address": MemberColumn("Address", lambda member: known(member.address)),
    "endpoint": MemberColumn("Raft server", lambda member: known(member.endpoint).removeprefix("tcp://")),
}
"""The columns in the order of `garlicfarm members`. Other surfaces show some of them, with further columns between."""


def eviction_lines(done: NodeEvicted) -> list[str]:
    """Return the result of an eviction and the operator's next steps, for the command and for the live view."""
    who = done.name or done.id
    if done.keys_replaced:
        new = f"The new key is sealed for {counted(done.sealed_for, 'node')}."
        lines = [f"{who} is evicted. The farm's keys are replaced (era {done.era}). {new}"]
    elif done.keys_not_replaced is not UNSET:
        lines = [f"{who} is evicted, and never admitted again. NO KEY WAS REPLACED: {done.keys_not_replaced}."]
        lines.append("Until the keys are replaced, that node can read gossip, and log in to the Raft port as a client.")
    else:
        lines = [f"{who} is evicted. The keys were not replaced, because keys are distributed by gossip only."]
        lines.append("Until you replace them by hand, that node still has the password of the Raft port.")
    if done.votes_still:
        lines.append(
            "The leader removes its server from the group later: `garlicfarm status` shows the pending condition."
        )
    if done.left_out and done.keys_replaced:
        lines.append(
            f"These nodes need the current key file (`garlicfarm help stolen-node`): {', '.join(done.left_out)}"
        )
    elif done.left_out and done.keys_not_replaced is UNSET:
        lines.append(f"Write a new key into the key file of each node, and restart it: {', '.join(done.left_out)}")
        lines.append("The steps:  garlicfarm help stolen-node")
    lines += _client_key_lines(done)
    if done.keys_replaced:
        lines.append("A new node needs the current key file as well:  garlicfarm keys export FILE")
    return lines


def _client_key_lines(done: NodeEvicted) -> list[str]:
    """Return the client keys that an evicted node may have admitted, and the command for each."""
    remove = "Remove each that you do not know:"
    lines = []
    for names, text in (
        (done.client_keys, f"The evicted node had admitted these client keys, which keep their scopes. {remove}"),
        (
            done.client_keys_of_unknown,
            f"These client keys are older than feature level 5, so the node may have admitted them. {remove}",
        ),
    ):
        if names is not UNSET:
            lines += [text, *(f"  garlicfarm node remove-client {each}" for each in names)]
    return lines
