"""The checks of the running node in `garlicfarm doctor`: verdict, time, reachable members, publishing, alarms.

They request the farm's view from the node's control socket, as `status` does. They compare the clock with log time,
which follows the clocks of a majority, so a time server is not needed.
"""

from pathlib import Path

from bridge.api import alarms
from bridge.api.outputs import Check, CheckResult
from bridge.api.verdict import DO_ABOUT, MEANINGS
from bridge.api.view import FarmView, Phase, Severity, counted_members
from bridge.api.words import level_words, score_text, voters_at_level
from bridge.core.formation.member import MemberStatus
from bridge.core.publishing.score import Inability
from bridge.node.control.client import ControlClient, ControlError, send_request
from bridge.node.doctor.leaf_checks import ROUTER, reported_leaf_checks
from bridge.node.security.control_socket import SOCKET_NAME, answers

VERDICT = "verdict"
CAUSES = {
    alarms.ROUTER_UNREACHABLE.kind: ROUTER,
    alarms.CLOCK.kind: "log time",
    alarms.DISK_FULL.kind: "disk",
    alarms.FARM_KEY_FILE.kind: "farm key",
    alarms.SIGNING_KEY.kind: "signing key",
    alarms.CERTIFICATE.kind: "certificate",
}
"""The check with the cause of an alarm, by kind of alarm. `_alarm_checks` adds the alarm of the verdict."""
CLOCK_WARNING_MS = 5_000
CLOCK_PROBLEM_MS = 30_000
"""Milliseconds; a report dated further from log time than this prevents its sender from publishing."""
NTP = "switch on NTP here (for instance: timedatectl set-ntp true), and check the clocks of the other nodes"


def running_checks(state_dir: Path) -> list[Check]:
    """Check the running node of this state directory; return nothing without one."""
    socket = state_dir / SOCKET_NAME
    if not answers(socket):
        return []
    try:
        return checks_of(send_request(socket, ControlClient.view))
    except ControlError as error:
        action = "see its output; restart the node if it hangs"
        return [Check("node", CheckResult.PROBLEM, f"it runs and does not answer: {error}", action)]


def checks_of(view: FarmView) -> list[Check]:
    """Return the checks of a view."""
    node = Check("node", CheckResult.OK, f"{view.node.name} runs, version {view.node.version}, {view.node.phase.value}")
    in_farm = view.node.phase in {Phase.FOUNDED, Phase.OBSERVER} and view.raft.log_time_ms is not None
    lines = (
        *_log_time_checks(view),
        _members_check(view),
        *_level_checks(view),
        *_publishing_checks(view),
        *reported_leaf_checks(view),
    )
    return [node, _verdict_check(view), *(lines if in_farm else ()), *_alarm_checks(view)]


def _verdict_check(view: FarmView) -> Check:
    verdict = view.verdict
    if verdict.severity is Severity.OK:
        return Check(VERDICT, CheckResult.OK, verdict.text)
    result = CheckResult.PROBLEM if verdict.severity is Severity.CRITICAL else CheckResult.WARNING
    return Check(VERDICT, result, verdict.text, verdict.advice)


def _log_time_checks(view: FarmView) -> list[Check]:
    if view.raft.log_time_ms is None:
        return []
    ahead_ms = view.taken_at_ms - view.raft.log_time_ms
    text = f"this machine's clock is {abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms >= 0 else 'behind'} log time"
    if abs(ahead_ms) > CLOCK_PROBLEM_MS:
        return [Check("log time", CheckResult.PROBLEM, f"{text}: this node cannot publish", NTP)]
    if abs(ahead_ms) > CLOCK_WARNING_MS:
        return [Check("log time", CheckResult.WARNING, text, NTP)]
    return [Check("log time", CheckResult.OK, text)]


def _members_check(view: FarmView) -> Check:
    others = [member for member in counted_members(view) if not member.is_self]
    servers = {voter.raft_id for voter in (*view.raft.voters, *view.raft.learners)}
    lost = [
        f"{member.name} ({member.status.value}, {member.endpoint or member.address})"
        for member in others
        if member.raft_id in servers and member.status is not MemberStatus.ALIVE
    ]
    if lost:
        action = "check that it runs, and that UDP (gossip) and TCP (consensus) reach it"
        return Check("members", CheckResult.WARNING, f"not reached: {', '.join(lost)}", action)
    alive = sum(member.status is MemberStatus.ALIVE for member in others)
    return Check("members", CheckResult.OK, f"{alive} other members are reached")


def _publishing_checks(view: FarmView) -> list[Check]:
    """Return a line for each master of this node: why it is chosen, is not chosen, or cannot publish."""
    return [
        Check(
            f"publishing of {each.master[:8]}…",
            CheckResult.OK if standing.inability is None else CheckResult.WARNING,
            "; ".join(filter(None, (standing.choice, score_text(standing)))),
            "" if standing.inability is None else DO_ABOUT.get(standing.inability, "see `garlicfarm status`"),
            ROUTER if standing.inability == Inability.UNATTACHED.value else "",
        )
        for each in view.publishing
        for standing in each.standings
        if standing.raft_id == view.node.raft_id
    ]


def _level_checks(view: FarmView) -> list[Check]:
    # During an upgrade this is normal, so it is not a warning. The alarm warns if it lasts.
    text = level_words(view)
    action = "update these voters: `garlicfarm help upgrade`" if voters_at_level(view) else ""
    return [] if text is None else [Check("feature level", CheckResult.OK, text, action)]


def _alarm_checks(view: FarmView) -> list[Check]:
    of_verdict = MEANINGS[view.verdict.kind].alarm if view.verdict.kind in MEANINGS else None
    causes = CAUSES if of_verdict is None else {**CAUSES, of_verdict.kind: VERDICT}
    return [
        Check(
            f"alarm {alarm.kind}",
            CheckResult.PROBLEM if alarms.alarm_severity(alarm.kind) is Severity.CRITICAL else CheckResult.WARNING,
            alarm.text,
            alarm.action,
            causes.get(alarm.kind, ""),
        )
        for alarm in view.alarms
    ]
