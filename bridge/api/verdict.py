"""The verdict: the health of the farm in one line, as one function of the view (`docs/reference/verdicts.md`).

    FarmView ──▶ concerns_of ──▶ every concern, by precedence ──────▶ alarms
                                      └─ the first one ─▶ verdict_of ──▶ `status`, `top`, `up`, /healthz, /readyz,
                                                                         metrics, exit status, log

A concern is the finding of a rule. The rules are in the order of their precedence. The first finding alone is the
verdict: without a quorum, the number of tolerated failures does not matter. A farm without a finding is healthy, so
there is always exactly one verdict. Later findings only raise alarms.

`bridge.api.farm_facts` computes the inputs of the rules.

The texts name servers, not only their number, and do not contain continuously changing figures. So a text changes only
when the facts change, and each change is an event.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from bridge.api.alarms import (
    ADD_NODE,
    ADDRESS_GONE,
    ALARMS,
    FOREIGN_KEY,
    FORMATION,
    ISOLATED,
    KEY_RETIRED,
    NO_HEALTHY_LEAF,
    NO_QUORUM,
    NOT_ADMITTED,
    NOT_PUBLISHED,
    REFUSED_BY_PEERS,
    REPLACE_EVICTED,
    REPORTS_MISSING,
    ROUTER_UNREACHABLE,
    SERVERS_DOWN,
    STRUCTURE_NOT_FOUND,
    UDP_BLOCKED,
    AlarmType,
)
from bridge.api.farm_facts import DISK_FAULTS, EVICTED, FarmFacts, listed, name_of
from bridge.api.view import (
    FarmView,
    LeafView,
    MetaEntryView,
    Phase,
    PublishingView,
    Severity,
    VerdictKind,
    VerdictView,
    counted_members,
)
from bridge.api.words import fault_actions, faults_text
from bridge.core.formation.member import MemberStatus
from bridge.core.log.records import LeafFault
from bridge.core.membership.admission import server_label
from bridge.core.publishing.score import Inability, inability_text
from consensus import counted

WAITING_ALARMS = (KEY_RETIRED.kind, FORMATION.kind, NOT_ADMITTED.kind, REFUSED_BY_PEERS.kind, ISOLATED.kind)
"""Alarms that explain why a node waits. Causes come first: with a wrong key, formation does not get usable messages."""
_DOWN_ACTION = "start {0} again{1}, and check that UDP (gossip) and TCP (consensus) reach {0}"
_REPLACE_ACTION = (
    f"to replace {{}}a server that will not return, {ADD_NODE}; once the new server votes, the farm removes the old"
    " one automatically"
)
_WHY_NOT: Mapping[str, str] = {
    Inability.STALE.value: "no server reports",
    Inability.CLOCK_OFF.value: "the clocks are off",
    Inability.UNATTACHED.value: "no router attached",
    Inability.OFF.value: "publishing is switched off",
    Inability.NO_KEY.value: "no server holds a signing key",
    Inability.KEY_ENDS.value: "the signing keys have ended",
    Inability.FAILING.value: "no router accepts the structures",
}
_MAKE_KEYS = "run `garlicfarm keys master` on one node; `garlicfarm help signing-keys` has other ways"
_FAILING_ACTION = "`garlicfarm farm` shows why the router did not accept the structure; see the router's own log"
_UNNAMED_MASTER_ACTION = (
    "start a node that has a signing key of this master; if you have replaced the master, wait: the farm drops it an"
    " hour after its last publication"
)
DO_ABOUT: Mapping[str, str] = {
    Inability.FAILING.value: _FAILING_ACTION,
    Inability.UNATTACHED.value: "start the I2P router of a node, and run `garlicfarm router detect` there",
    Inability.OFF.value: 'set publish = "auto" on a node that holds a signing key',
    Inability.NO_KEY.value: _MAKE_KEYS,
    Inability.KEY_ENDS.value: "make new signing keys: `garlicfarm help signing-keys`",
    Inability.CLOCK_OFF.value: "correct the clocks (NTP): `garlicfarm log-time show`",
}
SENDERS_MAX = 2
"""Maximum number of senders with another farm key that a text names; the view has up to eight."""
ERRORS_MAX = 3
"""Maximum number of errors of leaves that a remedy quotes."""
_UNHEALTHY_ACTION = (
    "check the router and the service of each unhealthy leaf: `garlicfarm farm`; see `garlicfarm help attach-a-router`"
)
NOTHING_TO_DO = "nothing"
_OWN_FAULTS = DISK_FAULTS | {ADDRESS_GONE.kind}
"""Alarms of a node that explain why it does not take part in a quorum."""
DISAGREEMENT_ALARMS = (UDP_BLOCKED, REPORTS_MISSING)
"""Gossip, Raft and the log do not agree about a server."""


class Meaning(Struct, frozen=True):
    """Meaning of a kind of verdict, for any text."""

    severity: Severity
    is_ready: bool
    """`/readyz` answers 200."""
    alarm: AlarmType | None
    """The alarm that is active while the concern exists."""
    text: str
    """For the table of the reference."""


MEANINGS: Mapping[VerdictKind, Meaning] = {
    VerdictKind.STOPPING: Meaning(
        Severity.WARNING,
        is_ready=False,
        alarm=None,
        text="the node is leaving or stopping, and announces its departure",
    ),
    VerdictKind.FOREIGN_KEY: Meaning(
        Severity.CRITICAL,
        is_ready=False,
        alarm=FOREIGN_KEY,
        text="gossip under another farm key arrives, and this node does not reach its own farm. The farm is not"
        " created yet, or none of its other members is alive. A complete farm, also a farm of one node, ignores other"
        " farms",
    ),
    VerdictKind.WAITING: Meaning(
        Severity.WARNING,
        is_ready=False,
        alarm=None,
        text="the farm is not created yet, this node is not admitted yet, or its Raft server is not open yet",
    ),
    VerdictKind.NO_QUORUM: Meaning(
        Severity.CRITICAL,
        is_ready=False,
        alarm=NO_QUORUM,
        text="no leader for three times the shortest election timeout, or no clock entry for 2.5 reporting periods,"
        " or no leader and too few voters alive. The text has the state of publishing without a quorum, and the servers"
        " down",
    ),
    VerdictKind.ELECTING: Meaning(
        Severity.WARNING,
        is_ready=True,
        alarm=None,
        text="no leader is known for a moment; submitted entries wait for the next leader",
    ),
    VerdictKind.NOT_PUBLISHED: Meaning(
        Severity.CRITICAL,
        is_ready=False,
        alarm=NOT_PUBLISHED,
        text="a master does not have a valid structure, or no server can publish the next one; the text has the"
        " reason. A warning while the first structure is about to be published",
    ),
    VerdictKind.NO_HEALTHY_LEAF: Meaning(
        Severity.CRITICAL,
        is_ready=False,
        alarm=NO_HEALTHY_LEAF,
        text="a structure is published, and none of the leaves in it is healthy",
    ),
    VerdictKind.DEGRADED: Meaning(
        Severity.WARNING,
        is_ready=True,
        alarm=SERVERS_DOWN,
        text="the farm works with reduced redundancy. Servers are down or do not report, leaves are unhealthy, or this"
        " node has a critical alarm. Or a router does not accept the structure, or no other router finds it. The alarm"
        " `servers-down` is active while servers are down",
    ),
    VerdictKind.HEALTHY: Meaning(
        Severity.OK,
        is_ready=True,
        alarm=None,
        text="every part of the farm works; the text has the number of servers that may fail",
    ),
}
"""In the order of precedence."""
EXIT_STATUS: Mapping[Severity, int] = {Severity.OK: 0, Severity.WARNING: 3, Severity.CRITICAL: 4}
"""Exit status of `garlicfarm status` by severity. Every command uses 1 (refused) and 2 (wrong usage)."""


OF_VERDICTS = tuple(each.alarm for each in MEANINGS.values() if each.alarm is not None)
"""The alarms of the kinds of verdict."""
GRAVE_ALARMS = frozenset(
    kind for kind, each in ALARMS.items() if each.severity is Severity.CRITICAL and each not in OF_VERDICTS
)
"""Critical alarms about the node itself. Each of their causes prevents the node's work."""


WITHOUT_LEADER = "enough servers run, but this node does not find a leader"
REACH_LEADER = (
    "run `garlicfarm status` at another node. If it has a leader there, repair the connections of this node to the"
    " other servers, in both directions (TCP, the port of [consensus]). Otherwise repair the network of the servers"
)


class Concern(Struct, frozen=True):
    """The finding of one rule."""

    kind: VerdictKind
    text: str
    advice: str
    alarm: AlarmType | None
    """The alarm to raise for it, with the text."""


def verdict_of(view: FarmView) -> VerdictView:
    """Return the verdict on the farm, as the node of this view sees it."""
    facts = FarmFacts(view)
    concern = _concerns(facts)[0]
    meaning = MEANINGS[concern.kind]
    # Transient conditions do not need action.
    severity = Severity.WARNING if concern.advice == NOTHING_TO_DO else Severity.CRITICAL
    return VerdictView(
        kind=concern.kind,
        severity=min(meaning.severity, severity, key=list(Severity).index),
        text=concern.text,
        can_lose=facts.can_lose if facts.is_server else None,
        voters=len(view.raft.voters),
        ready=meaning.is_ready,
        advice=concern.advice,
    )


def concerns_of(view: FarmView) -> tuple[Concern, ...]:
    """Return the findings of all rules by precedence; without any, the finding that the farm is healthy."""
    return _concerns(FarmFacts(view))


def loss_of_each(view: FarmView) -> Mapping[int, str]:
    """Map each Raft id to the farm's loss if that server fails; an empty string if it can fail safely.

    A loss is a majority, the last server that can publish, or the last healthy leaf. For a server that has already
    failed, the text is the reason of its failure.
    """
    facts = FarmFacts(view)
    losses: dict[int, str] = {}
    for server in (*view.raft.voters, *view.raft.learners):
        missing: list[str] = []
        votes = any(each.raft_id == server.raft_id for each in view.raft.voters)
        if server.raft_id in facts.down:
            losses[server.raft_id] = facts.down[server.raft_id][1]
            continue
        if votes and facts.margin < 1:
            missing.append("a majority")
        for names, what in facts.needed():
            if names == {name_of(server)}:
                missing.append(what)
        losses[server.raft_id] = ", ".join(dict.fromkeys(missing))
    return losses


def _stopping(facts: FarmFacts) -> Concern | None:
    if facts.view.node.phase is not Phase.STOPPING:
        return None
    return Concern(
        VerdictKind.STOPPING, "Stopping: this node announces its departure to the others", NOTHING_TO_DO, None
    )


def _foreign_key(facts: FarmFacts) -> Concern | None:
    """Report another farm's key if this node is not a server or does not reach others: its own key may be wrong."""
    is_complete = facts.others_alive or len((*facts.view.raft.voters, *facts.view.raft.learners)) == 1
    return None if facts.is_server and is_complete else _foreign_key_concern(facts)


def _foreign_key_and_down(facts: FarmFacts) -> Concern | None:
    """Report another farm's key while a server is missing: the sender may be that server."""
    return _foreign_key_concern(facts) if facts.is_server and facts.others_alive and facts.down else None


def _foreign_key_concern(facts: FarmFacts) -> Concern | None:
    view = facts.view
    senders = view.gossip.other_farms
    if not senders:
        return None
    more = [f"{len(senders) - SENDERS_MAX} more"] if len(senders) > SENDERS_MAX else []
    sources = listed([*(f"{each.address} (label {each.label})" for each in senders[:SENDERS_MAX]), *more])
    waits = "" if facts.is_server else f"; waiting for {_missing(view)}"
    text = f"Gossip arrives under another farm key from {sources}{waits}"
    action = f"{FOREIGN_KEY.remedy}. This node's label is {view.farm.label}"
    return Concern(VerdictKind.FOREIGN_KEY, text, action, FOREIGN_KEY)


def _waiting(facts: FarmFacts) -> Concern | None:
    view = facts.view
    if facts.is_server:
        return None
    alarm = min(
        (each for each in view.alarms if each.kind in WAITING_ALARMS),
        key=lambda each: WAITING_ALARMS.index(each.kind),
        default=None,
    )
    if view.node.raft_id in view.removed:
        text = "Waiting: an operator has removed this node from the farm"
        return Concern(VerdictKind.WAITING, text, "`garlicfarm servers restore` allows it to join again", None)
    advice = (
        "run the `garlicfarm join TOKEN` of `garlicfarm init` on the other machines, or start their nodes; if they run,"
        " check the seeds, broadcast and the firewall"
    )
    match view.node.phase:
        case Phase.OBSERVER:
            text = "Waiting for the farm to admit this node"
            advice = "wait until this node has the whole log; `garlicfarm servers` at the leader shows its lag"
        case Phase.FOUNDED | Phase.STOPPING:
            text = "Starting: this node opens its log"
            advice = "wait until this node has read the log"
        case Phase.DISCOVERING | Phase.FORMING:
            if _nodes_here(view) < view.farm.expect:
                text = f"Waiting for {_missing(view)}"
            else:
                text = "Creating the farm: enough nodes are present, and promises are made"
    if alarm is not None and alarm.kind != ISOLATED.kind:
        return Concern(VerdictKind.WAITING, f"{text}: see the alarm {alarm.kind}", alarm.action, None)
    return Concern(VerdictKind.WAITING, text, advice, None)


def _no_quorum(facts: FarmFacts) -> Concern | None:
    view = facts.view
    if not facts.is_server or not facts.quorum_is_lost:
        return None
    down = f"; {facts.down_text}" if facts.down else ""
    text = f"No quorum: {_published_meanwhile(facts.publishing)}{down}"
    lost = next((each for each in view.alarms if each.kind in _OWN_FAULTS), None)
    if lost is not None:
        # The other servers may be healthy. Advice to start or replace them would be harmful.
        return Concern(VerdictKind.NO_QUORUM, f"{text}; {lost.text}", lost.action, NO_QUORUM)
    if facts.margin >= 0 and view.raft.leader_id is None:
        # The others may have a leader that this node alone does not reach. To `recover` would split the farm.
        return Concern(VerdictKind.NO_QUORUM, f"{text}; {WITHOUT_LEADER}", REACH_LEADER, NO_QUORUM)
    return Concern(VerdictKind.NO_QUORUM, text, NO_QUORUM.remedy, NO_QUORUM)


def _published_meanwhile(publishing: Sequence[PublishingView]) -> str:
    """Return the state of the publications while nothing can be committed."""
    alone = [each for each in publishing if each.without_quorum and each.publisher_id is not None]
    if alone:
        return f"publishing from {listed(sorted({_publisher(each) for each in alone}))} alone"
    holding = [each for each in publishing if _holds(each)]
    if not holding:
        return "nothing is published"
    published = sorted({server_label(each.handed_over_by, each.handed_over_by_name) for each in holding})
    return f"the last structure of {listed(published)} is still valid"


def _electing(facts: FarmFacts) -> Concern | None:
    if not facts.is_server or facts.view.raft.leader_id is not None:
        return None
    return Concern(VerdictKind.ELECTING, "No leader for a moment: the voters elect one", NOTHING_TO_DO, None)


def _not_published(facts: FarmFacts) -> Concern | None:
    view = facts.view
    if not facts.is_server or view.raft.stands_still:
        return None
    if not facts.publishing:
        why = "no server names a master" if view.reports else "no server has reported yet"
        advice = _MAKE_KEYS if view.reports else NOTHING_TO_DO
        return Concern(VerdictKind.NOT_PUBLISHED, f"Not published: {why}", advice, NOT_PUBLISHED)
    for each in facts.publishing:
        found = _not_published_master(each)
        if found is not None:
            text, advice = found
            of = f" ({each.master})" if len(view.publishing) > 1 else ""
            return Concern(VerdictKind.NOT_PUBLISHED, f"{text}{of}", advice, NOT_PUBLISHED)
    return None


def _not_published_master(each: PublishingView) -> tuple[str, str] | None:
    if each.publisher_id is None and any(standing.inability is None for standing in each.standings):
        # After `recover` or a restart of the log, the earlier choice is invalid; the next entry makes a new choice.
        return None if _holds(each) else ("Not published yet: the farm is about to choose a publisher", NOTHING_TO_DO)
    if each.publisher_id is None:
        reasons = sorted({standing.inability for standing in each.standings if standing.inability is not None})
        advice = "; ".join(DO_ABOUT[reason] for reason in reasons if reason in DO_ABOUT)
        if len(reasons) == 1:
            why = _WHY_NOT.get(reasons[0], reasons[0])
        else:
            why = ", ".join(
                f"{server_label(every.raft_id, every.name)}: {inability_text(every.inability or '')}"
                for every in each.standings
            )
        failure = "No server can publish the next structure" if _holds(each) else "Not published"
        advice = advice or ("see `garlicfarm status`" if reasons else _UNNAMED_MASTER_ACTION)
        return f"{failure}: {why or 'no server names this master'}", advice
    if _fails(each) and not _holds(each):
        return f"Not published: the router of {_publisher(each)} does not accept the structure", _FAILING_ACTION
    if each.handed_over_s is None:
        return f"Not published yet: {_publisher(each)} will publish", NOTHING_TO_DO
    if not _holds(each):
        return (
            f"Not published: the last structure has ended, and {_publisher(each)} has not published the next one",
            f"check the alarms of {_publisher(each)}, and its router",
        )
    return None


def _no_healthy_leaf(facts: FarmFacts) -> Concern | None:
    for each in facts.publishing:
        if facts.is_server and each.entries and not any(entry.healthy for entry in each.entries):
            text = f"Published, but no leaf is healthy: {_unhealthy_text(facts.view, each.entries)}"
            advice = _unhealthy_action(facts.view, each.entries)
            return Concern(VerdictKind.NO_HEALTHY_LEAF, text, advice, NO_HEALTHY_LEAF)
    return None


def _degraded(facts: FarmFacts) -> Concern | None:
    """Return None without a quorum: the verdict `no-quorum` already lists the failed servers."""
    if not facts.is_server or facts.quorum_is_lost:
        return None
    troubles = list(_troubles(facts))
    if not troubles:
        return None
    more = f"can lose {facts.can_lose} more" if facts.can_lose else "can lose none"
    text = f"Degraded: {', '.join(troubles)}, {more}{f' ({facts.limit})' if facts.limit else ''}"
    further = [each.advice for rule in (_udp_blocked, _not_reporting) if (each := rule(facts)) is not None]
    unhealthy = _unhealthy_leaves(facts)
    # The remedy for a leaf with an unresponsive router includes the remedy of the router's alarm.
    is_router_silent = any(LeafFault.ROUTER.value in (each.faults or ()) for each in unhealthy)
    included = {ROUTER_UNREACHABLE.kind} if is_router_silent else set()
    advice = "; ".join(
        _down_actions(facts)
        + further
        + ([_unhealthy_action(facts.view, unhealthy)] if unhealthy else [])
        + ([_FAILING_ACTION] if any(map(_fails, facts.publishing)) else [])
        + ([STRUCTURE_NOT_FOUND.remedy] if any(each.seen is False for each in facts.publishing) else [])
        + [each for each in dict.fromkeys(_unpublished_masters(facts).values()) if each != NOTHING_TO_DO]
        + [each.action for each in facts.view.alarms if each.kind in GRAVE_ALARMS and each.kind not in included]
    )
    alarm = SERVERS_DOWN if facts.down else None
    return Concern(VerdictKind.DEGRADED, text, advice or "see `garlicfarm farm` and the alarms", alarm)


def _udp_blocked(facts: FarmFacts) -> Concern | None:
    if not facts.udp_blocked:
        return None
    names, view = facts.names(facts.udp_blocked), facts.view
    ports = sorted(
        {
            each.address.rpartition(":")[2]
            for each in view.members
            if each.address is not None and (each.is_self or each.raft_id in facts.udp_blocked)
        }
    )
    text = (
        f"gossip (UDP) between {view.node.name} and {names} is blocked: replies do not arrive by UDP, but Raft (TCP)"
        f" reaches {names}"
    )
    action = (
        f"open UDP port {' and '.join(ports)} in both directions in the firewalls of and between these machines, as"
        " TCP is open already. Do not remove a server for this: it works"
    )
    return Concern(VerdictKind.DEGRADED, text, action, UDP_BLOCKED)


def _not_reporting(facts: FarmFacts) -> Concern | None:
    """Report servers that gossip and Raft reach and whose reports are missing."""
    others = facts.not_reporting - {facts.view.node.raft_id}
    if not others or facts.quorum_is_lost:
        return None
    names = facts.names(others)
    text = f"gossip and Raft reach {names}, but the last report of {names} in the log is out of date"
    return Concern(VerdictKind.DEGRADED, text, REPORTS_MISSING.remedy, REPORTS_MISSING)


def _down_actions(facts: FarmFacts) -> list[str]:
    """Return remedies that the farm permits: a farm with at most `expect` voters refuses to remove one."""
    view = facts.view
    servers = {each.raft_id for each in view.raft.voters}
    lost_servers = [(raft_id, name) for raft_id, (name, why) in facts.down.items() if why != EVICTED]
    replace_evicted = [REPLACE_EVICTED] if len(lost_servers) < len(facts.down) else []
    if not lost_servers:
        return replace_evicted
    starts = _start_commands(view, [name for _, name in lost_servers])
    start = _DOWN_ACTION.format("it" if len(lost_servers) == 1 else "them", f" ({starts})" if starts else "")
    spare = len(servers) - view.farm.expect
    lost_voters = [name for raft_id, name in lost_servers if raft_id in servers]
    if len(lost_voters) > spare:
        return [start, _REPLACE_ACTION.format("the evicted server, or " if replace_evicted else "")]
    commands = " and ".join(f"`garlicfarm servers remove {name}`" for name in sorted(name for _, name in lost_servers))
    return [start, f"remove a server that will not return: {commands}", *replace_evicted]


def _start_commands(view: FarmView, names: Sequence[str]) -> str:
    """Return the commands that start the named nodes of `garlicfarm up` again; empty without such nodes."""
    farm, _, name = view.node.state_directory.rpartition("/")
    if not view.farm.demo or name != view.node.name:
        return ""
    nodes = (f"node-{number}" for number in range(1, view.farm.expect + 1))
    return " and ".join(
        f"`garlicfarm run --config {shlex.quote(f'{farm}/{each}/node.toml')}`" for each in nodes if each in names
    )


def _unhealthy_leaves(facts: FarmFacts) -> list[MetaEntryView | LeafView]:
    """Return the unhealthy leaves of servers that are up.

    A structure lists unhealthy leaves only if fewer than half of the known leaves are healthy. So leaves in reports
    count, too, unless an operator excludes them.
    """
    down = {name for name, _ in facts.down.values()}
    published = [entry for each in facts.view.publishing for entry in each.entries]
    listed = {entry.destination for entry in published}
    servers = {each.raft_id for each in (*facts.view.raft.voters, *facts.view.raft.learners)} - facts.down.keys()
    return [
        *(entry for entry in published if not entry.healthy and entry.name not in down),
        *(
            leaf
            for report in facts.view.reports
            if report.raft_id in servers and not report.stale
            for leaf in report.leaves
            if not leaf.healthy and not leaf.excluded and leaf.destination not in listed
        ),
    ]


def _unhealthy_text(view: FarmView, leaves: Sequence[MetaEntryView | LeafView]) -> str:
    """Return `node-1 (no router answers) and node-2`: the servers of these leaves, each with its faults."""
    faults: dict[str, set[str]] = {}
    owners = {leaf.destination: report.name for report in view.reports for leaf in report.leaves}
    for leaf in leaves:
        name = leaf.name if isinstance(leaf, MetaEntryView) else owners.get(leaf.destination)
        faults.setdefault(name or leaf.destination, set()).update(leaf.faults or ())
    texts = ((name, faults_text(found)) for name, found in sorted(faults.items()))
    return listed([f"{name} ({text})" if text else name for name, text in texts])


def _unhealthy_action(view: FarmView, leaves: Sequence[MetaEntryView | LeafView]) -> str:
    """Return the remedy of each failed condition, with the last errors."""
    found = fault_actions(fault for leaf in leaves for fault in leaf.faults or ())
    unhealthy = {leaf.destination for leaf in leaves}
    errors = dict.fromkeys(
        f"{server_label(report.raft_id, report.name)}: {each.last_error}"
        for report in view.reports
        for leaf in report.leaves
        if leaf.destination in unhealthy
        for each in leaf.conditions or ()
        if not each.holds and each.last_error is not None
    )
    shown = [*errors][:ERRORS_MAX]
    last = f" (last error of {'; of '.join(shown)})" if shown else ""
    return f"{found}{last}; see `garlicfarm help attach-a-router`" if found else _UNHEALTHY_ACTION


def _troubles(facts: FarmFacts) -> Iterator[str]:
    view = facts.view
    if facts.down:
        yield facts.down_text
    if facts.udp_blocked:
        yield f"UDP to {facts.names(facts.udp_blocked)} is blocked"
    servers = {each.raft_id: name_of(each) for each in (*view.raft.voters, *view.raft.learners)}
    for raft_id in sorted(facts.not_reporting & servers.keys() - facts.down.keys()):
        yield f"{servers[raft_id]} does not report"
    for report in view.reports:
        if report.clock_off and not report.stale and report.raft_id in servers.keys() - facts.down.keys():
            yield f"the clock of {servers[report.raft_id]} is off"
    unhealthy = _unhealthy_leaves(facts)
    if unhealthy:
        yield f"leaf of {_unhealthy_text(view, unhealthy)} unhealthy"
    yield from filter(None, map(_publishing_trouble, facts.publishing))
    missing = [*_unpublished_masters(facts)]
    if missing:
        yield f"another master ({listed(missing)}) is not published"
    for alarm in view.alarms:
        if alarm.kind in GRAVE_ALARMS:
            yield f"alarm {alarm.kind} at {view.node.name}"


def _unpublished_masters(facts: FarmFacts) -> dict[str, str]:
    """Return the masters without a structure that do not decide the verdict, each with its remedy."""
    found = ((each.master, _not_published_master(each)) for each in facts.other_publishing)
    return {master: reason[1] for master, reason in found if reason is not None}


def _healthy(facts: FarmFacts) -> Concern:
    count = len(facts.view.raft.voters)
    lost = f"{facts.can_lose} of {count}" if facts.can_lose else f"none of {count}"
    limit = f": {facts.limit}" if facts.limit else ""
    return Concern(VerdictKind.HEALTHY, f"Healthy, can lose {lost}{limit}", NOTHING_TO_DO, None)


_RULES: tuple[Callable[[FarmFacts], Concern | None], ...] = (
    _stopping,
    _foreign_key,
    _waiting,
    _no_quorum,
    _electing,
    _not_published,
    _no_healthy_leaf,
    _degraded,
    _udp_blocked,
    _not_reporting,
    _foreign_key_and_down,
)


def _concerns(facts: FarmFacts) -> tuple[Concern, ...]:
    found = (rule(facts) for rule in _RULES)
    return tuple(each for each in found if each is not None) or (_healthy(facts),)


def _publisher(each: PublishingView) -> str:
    return server_label(each.publisher_id, each.publisher_name)


def _fails(each: PublishingView) -> bool:
    return any(bool(every.failure) for every in each.standings if every.raft_id == each.publisher_id)


def _publishing_trouble(each: PublishingView) -> str:
    """Return the problem of a master with a valid structure, as text; empty without a problem."""
    if _fails(each):
        return f"the router of {_publisher(each)} does not accept the structure"
    by = server_label(each.handed_over_by, each.handed_over_by_name)
    return "" if each.seen is not False else f"no router of another node finds the structure of {by}"


def _holds(each: PublishingView) -> bool:
    """Return True if a router took a structure of this master that is still valid."""
    return (each.seconds_to_expiry or 0) > 0


def _nodes_here(view: FarmView) -> int:
    return sum(member.status in {MemberStatus.ALIVE, MemberStatus.SUSPECT} for member in counted_members(view))


def _missing(view: FarmView) -> str:
    return f"{max(0, view.farm.expect - _nodes_here(view))} of {counted(view.farm.expect, 'node')}"
