"""Planted faults in the interaction of the product's parts, each with a seed whose trial finds it.

    PLANTED["name"].planting()   replaces methods of the product while a trial runs
    PLANTED["name"].check        the check that fails in the trial of its `plan`

Trials without violations do not prove anything if the checks cannot detect faults. A planted fault shows that a check
detects it. Some earlier faults of the product, found by trials or reported by others, are planted again.
"""

import select
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import trio
from cryptography import x509
from msgspec.structs import replace

import consensus.core.quorum
from bridge.api import farm_facts, verdict
from bridge.api.alarms import DISK_FULL, DISK_UNRESPONSIVE, ROUTER_UNREACHABLE, AlarmType
from bridge.api.control import SubmitOutcome
from bridge.api.farm_facts import ContactWatch
from bridge.api.view import VerdictKind
from bridge.core.farm import log_time_correction, state_machine
from bridge.core.farm import operator_commands as farm_commands
from bridge.core.farm.state_machine import Farm
from bridge.core.formation.founding import FormationState
from bridge.core.formation.member import MemberStatus
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.records import Approval, Correction, Eviction, KeyReplacement, Report
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.log.weights import Weights
from bridge.core.membership import eviction
from bridge.core.membership.reconcile import _Moment
from bridge.core.publishing.without_quorum import QuorumWatch
from bridge.core.state.farm_state import FarmState
from bridge.node.control import view_builder
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.events.alarms import Alarms
from bridge.node.inviting.invitations import Invitation
from bridge.node.membership import level_raising
from bridge.node.membership.address_watch import AddressWatch
from bridge.node.offline import recovering, state_reading
from bridge.node.raft import notices, replica
from bridge.node.raft.submitting import Submitting
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.tasks import publishing
from bridge.wire.i2p.destination_keys import SigningKey
from consensus.net import tls, x509_files
from consensus.net.tls import UntrustedCertificateError
from consensus.protocols.garlic_farm.node.links import _Link
from consensus.server.server import ConsensusServer
from consensus.sessions.table import RequestStatus, SessionTable
from consensus.storage.directory import Directory
from consensus.storage.disk import SyncDirectory, SyncFile
from gossip.core.effects import Alarm, AlarmKind
from gossip.core.join import Joiner
from gossip.core.member import Status
from gossip.core.updates import Updates
from tests.simulation.farm import operators
from tests.simulation.farm.disk import Disk
from tests.simulation.farm.host import current_host
from tests.simulation.farm.nemeses import Fault, Nemesis
from tests.simulation.farm.plans import Plan
from tests.simulation.farm.workload import Client, Kind

NODES: Final = 3
TOUR_S: Final = 50.0
TOUR: Final = (
    Fault(2.0, 14.0, Nemesis.ISOLATE, ("node-1",)),
    Fault(16.0, 28.0, Nemesis.ISOLATE, ("node-2",)),
    Fault(30.0, 42.0, Nemesis.ISOLATE, ("node-3",)),
    Fault(45.0, 46.0, Nemesis.POWER_CUT, ("node-1", "node-2", "node-3")),
)
"""Each node is cut off in turn, so the leader is cut off, too; then all lose their power."""
LONG_ISOLATION: Final = (Fault(2.0, 22.0, Nemesis.ISOLATE, ("node-3",)),)
NO_DISK_S: Final = 95.0
EXCLUDING_S: Final = 150.0
HANGING: Final = (Fault(2.0, 90.0, Nemesis.HANGING_DISK, ("node-2",)),)
NO_ROUTER: Final = (Fault(2.0, 90.0, Nemesis.ROUTER_DOWN, ("node-2",)),)
HANGING_ROUTER: Final = (Fault(2.0, 90.0, Nemesis.ROUTER_HANGS, ("node-2",)),)
WRONG_FIRST_CLOCK: Final = (Fault(0.0, 12.0, Nemesis.FIRST_CLOCK, ("node-2",), 2_208_988_800.0),)
SLOW_DISKS: Final = tuple(Fault(2.0, 55.0, Nemesis.SLOW_DISK, (f"node-{each}",), 1.5) for each in (1, 2, 3))
FULL: Final = (Fault(2.0, 90.0, Nemesis.FULL_DISK, ("node-2",)),)
ONE_CUT_OFF: Final = (Fault(2.0, 82.0, Nemesis.ISOLATE, ("node-1",)),)
WRONG_CLOCKS: Final = tuple(
    Fault(2.0 + 20 * number, 21.0 + 20 * number, Nemesis.CLOCK_JUMP, (f"node-{number + 1}",), 3600.0)
    for number in range(NODES)
)
ONE_DOWN: Final = (Fault(2.0, 85.0, Nemesis.KILL, ("node-1",)),)
EVICTION: Final = (Fault(2.0, 6.0, Nemesis.JOIN_AND_EVICT, ("node-4",)),)
INVITATION: Final = (Fault(2.0, 6.0, Nemesis.INVITE_AND_LEAVE, ("node-4",)),)
HOSTILITY: Final = (Fault(2.0, 6.0, Nemesis.HOSTILE, ("node-4",)),)
REKEYING: Final = (Fault(2.0, 6.0, Nemesis.NEW_KEYS, ("node-1",)),)
MOVED: Final = (Fault(2.0, 95.0, Nemesis.MOVE, ("node-2",)),)
DEPARTURE: Final = (Fault(2.0, 25.0, Nemesis.JOIN_AND_LEAVE, ("node-4",)),)
LOST_DISK: Final = (Fault(2.0, 6.0, Nemesis.RESTORE, ("node-2",)),)
WRONG_LOG_TIME: Final = (Fault(2.0, 32.0, Nemesis.LOG_TIME, ("node-1", "node-3"), 3600.0),)
LOST_MAJORITY: Final = (Fault(20.0, 21.0, Nemesis.RECOVER, ("node-2", "node-1", "node-3")),)
OLD_VOTERS: Final = (
    Fault(0.0, 3.0, Nemesis.OLD_VERSION, ("node-1",), 2.0),
    Fault(0.0, 45.0, Nemesis.OLD_VERSION, ("node-2",), 2.0),
    Fault(0.0, 46.0, Nemesis.OLD_VERSION, ("node-3",), 2.0),
    Fault(10.0, 20.0, Nemesis.ISOLATE, ("node-2",)),
    Fault(25.0, 35.0, Nemesis.ISOLATE, ("node-3",)),
)
LATER_INDEX: Final = 30
Replacement = tuple[Any, str, Callable[..., Any]]
"""Owner, name, and a function from the real method to the faulty method."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted fault."""

    seed: int
    """A seed whose trial finds it."""
    check: str
    """The check that fails."""
    replacements: tuple[Replacement, ...]

    faults: tuple[Fault, ...] = TOUR
    trouble_s: float = TOUR_S
    has_operator: bool = False
    has_routers: bool = False

    @property
    def plan(self) -> Plan:
        return Plan(
            self.seed, NODES, self.trouble_s, self.faults, has_operator=self.has_operator, has_routers=self.has_routers
        )

    @contextmanager
    def planting(self) -> Iterator[None]:
        """Run the product with the fault."""
        with ExitStack() as undo:
            for owner, name, fault in self.replacements:
                undo.enter_context(patch.object(owner, name, fault(getattr(owner, name))))
            yield


def _without(kind: type) -> Callable[..., Any]:
    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, each: None if isinstance(each, kind) else real(self, each)

    return fault


def _isolation_never_ends(real: Callable[..., Any]) -> Callable[..., Any]:
    def peers_changed(self: Any) -> None:
        emit = self._context.emit

        def emit_others(effect: object) -> None:
            if not (isinstance(effect, Alarm) and effect.kind is AlarmKind.ISOLATED and effect.over):
                emit(effect)

        with patch.object(self._context, "emit", emit_others):
            real(self)

    return peers_changed


def _no_degraded(real: Callable[..., Any]) -> Callable[..., Any]:
    def concerns(facts: Any) -> Any:
        found = tuple(each for each in real(facts) if each.kind is not VerdictKind.DEGRADED)
        return found or (verdict._healthy(facts),)

    return concerns


def _one_node_skips_entries(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, index: int, term: int, entry: Any) -> Any:
        host = current_host.get()
        if host is not None and host.number == 2 and index % 40 == 0:
            return ()
        return real(self, index, term, entry)

    return apply


def _stale_reads(real: Callable[..., Any]) -> Callable[..., Any]:
    async def read_log(self: Any, first: int, limit: int, wait_ms: int, *, linearizable: bool = False) -> Any:
        del linearizable
        return await real(self, first, limit, wait_ms)

    return read_log


def _excluded_leaves_are_eligible(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, master: real(replace(state, weights=replace(state.weights, excluded=())), master)


def _greatest(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda values, majorities: min(max(values.get(voter, 0) for voter in voters) for voters in majorities)


def _unknown_is_committed(real: Callable[..., Any]) -> Callable[..., Any]:
    async def submit(self: Any, entry: bytes, request: Any) -> Any:
        answer = await real(self, entry, request)
        if answer.outcome in {SubmitOutcome.UNKNOWN, SubmitOutcome.BUSY}:
            return type(answer)(outcome=SubmitOutcome.COMMITTED, index=1, term=1, request=str(request))
        return answer

    return submit


def _states_are_not_synced(real: Callable[..., Any]) -> Callable[..., Any]:
    def synced(self: Any, descriptor: int) -> None:
        if not Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(".tmp"):
            real(self, descriptor)

    return synced


def _dead_members_stay_dead(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply_alive(self: Any, info: Any, *, further: bool = True) -> Any:
        known = self._members.get(info.node_id)
        return None if known is not None and known.status is Status.DEAD else real(self, info, further=further)

    return apply_alive


def _one_connection_to_each_peer(real: Callable[..., Any]) -> Callable[..., Any]:
    connected: list[Any] = []

    async def connect_once(self: Any) -> bool:
        if any(each is self for each in connected):
            await trio.sleep_forever()
        found: bool = await real(self)
        if found:
            connected.append(self)
        return found

    return connect_once


def _without_alarm(alarm: AlarmType) -> Callable[..., Any]:
    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, found, *more, **named: None if found is alarm else real(self, found, *more, **named)

    return fault


def _state_depends_on_the_machine(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, index: int, term: int, entry: Any) -> Any:
        changes = real(self, index, term, entry)
        if current_host.get() is not None and index == LATER_INDEX:
            self.state = replace(self.state, removed=(99,))
        return changes

    return apply


def _snapshot_lacks_reports(real: Callable[..., Any]) -> Callable[..., Any]:
    def restore(self: Any, state: FarmState, *more: Any) -> None:
        real(self, replace(state, servers={}), *more)

    return restore


def _each_node_is_publisher(real: Callable[..., Any]) -> Callable[..., Any]:
    def plan(state: FarmState, master: str, server_id: int, *more: Any, **named: Any) -> Any:
        known = state.masters.get(master)
        if known is not None and known.choice.server_id is not None:
            chosen = replace(known, choice=replace(known.choice, server_id=server_id))
            state = replace(state, masters={**state.masters, master: chosen})
        return real(state, master, server_id, *more, **named)

    return plan


def _without_record(kind: type) -> Callable[..., Any]:
    """Return a fault: entries of a kind do not have an effect on any node."""

    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, index: int, term: int, entry: Any) -> Any:
            if not isinstance(entry.record, kind):
                return real(self, index, term, entry)
            self.state = self.state.after(index, term)
            return ()

        return apply

    return fault


def _each_dead_server_answers(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _self, view: (
        each.raft_id for each in view.members if each.raft_id is not None and each.status is MemberStatus.DEAD
    )


def _never_ends(alarm: AlarmType) -> Callable[..., Any]:
    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, found: None if found is alarm else real(self, found)

    return fault


def _ends_immediately(alarm: AlarmType) -> Callable[..., Any]:
    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        def set_and_clear(self: Any, found: AlarmType, *more: Any, **named: Any) -> None:
            real(self, found, *more, **named)
            if found is alarm:
                self.clear(found)

        return set_and_clear

    return fault


def _unsigned(real: Callable[..., Any]) -> Callable[..., Any]:
    def sign(self: Any, published_s: int, leases: Any) -> Any:
        structure = real(self, published_s, leases)
        return replace(structure, signature=bytes(len(structure.signature)))

    return sign


def _an_hour_ahead(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, published_s, leases: real(self, published_s + 3600, leases)


def _next_index(real: Callable[..., Any]) -> Callable[..., Any]:
    async def submit(self: Any, entry: bytes, request: Any) -> Any:
        answer = await real(self, entry, request)
        return replace(answer, index=answer.index + 1) if answer.outcome is SubmitOutcome.COMMITTED else answer

    return submit


def _without_bound(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, index: int, term: int, entry: Any) -> Any:
        changes = real(self, index, term, entry)
        if index >= LATER_INDEX:
            self.state = replace(self.state, weights=replace(self.state.weights, through_index=2**60))
        return changes

    return apply


def _open_after_revocation(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, now_ms: real(replace(self, revoked=False), now_ms)


def _fails_at_an_entry(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, index: int, term: int, entry: Any) -> Any:
        host = current_host.get()
        if host is not None and host.number == 2 and index == LATER_INDEX and host.starts == 1:
            raise ValueError("planned error")
        return real(self, index, term, entry)

    return apply


def _each_entry_adds(make: Callable[[], object]) -> Callable[..., Any]:
    """Return a fault: a resource for each entry that a node applies, until the node ends."""

    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        def apply(self: Any, index: int, term: int, entry: Any) -> Any:
            if current_host.get() is not None:
                vars(self).setdefault("added", []).append(make())
            return real(self, index, term, entry)

        return apply

    return fault


def _waiting_task() -> object:
    return trio.lowlevel.spawn_system_task(trio.sleep_forever, context=copy_context())


def _open_files() -> object:
    # These objects close without a warning.
    return [select.epoll() for _ in range(4)]


def _index_of_the_next_entry(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state_dir, applied: real(state_dir, lambda: applied() + 1)


def _view_of_the_first_leader(real: Callable[..., Any]) -> Callable[..., Any]:
    leaders: dict[str, tuple[int, str]] = {}

    def build_view(*arguments: Any, **named: Any) -> Any:
        view, host = real(*arguments, **named), current_host.get()
        if host is None or view.raft.leader_id is None:
            return view
        leader_id, name = leaders.setdefault(host.name, (view.raft.leader_id, view.raft.leader_name))
        return replace(view, raft=replace(view.raft, leader_id=leader_id, leader_name=name))

    return build_view


def _snapshot_lacks_weights(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, state, *more: real(self, replace(state, weights=Weights()), *more)


def _own_level(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda current, voters: real(current, [SUPPORTED_LEVEL for _ in voters])


def _thousandfold(real: Callable[..., int]) -> Callable[..., int]:
    """Return a fault: a limit is much too large, at the farm and at the operator."""
    return lambda *arguments: 1_000 * real(*arguments)


def _with_second(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fault: a correction keeps the seconds of the last publications."""

    def correct(state: FarmState, *more: Any) -> Any:
        after, changes = real(state, *more)
        masters = {
            name: replace(each, publication=state.masters[name].publication) for name, each in after.masters.items()
        }
        return replace(after, masters=masters), changes

    return correct


def _own_clock(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fault: a correction sets log time to the clock of the machine."""

    def correct(state: FarmState, correction: Correction, *more: Any) -> Any:
        after, changes = real(state, correction, *more)
        host = current_host.get()
        if host is None or after.log_time_ms == state.log_time_ms:
            return after, changes
        return replace(after, log_time_ms=round(host.wall_s * 1000)), changes

    return correct


def _only_log_time(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda state, _back_ms: state


def _cut_end(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fault: a recovery drops the last entries of the survivor."""

    def checked_cut(state_dir: Path, start: int, end: int, _cut_after: int | None) -> Any:
        return real(state_dir, start, end, max(start, 1, end - 5))

    return checked_cut


def _recovered_without(**parts: Any) -> Callable[..., Any]:
    """Return a fault: the state of a recovered farm has these parts instead of the survivor's."""

    def fault(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda farm, *more: replace(real(farm, *more), **parts)

    return fault


def _same_cluster(_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fault: a recovered farm has the id of the lost one."""
    return lambda survivor, *_: FormationState(known=survivor.founding)


def _dated_by_clock(real: Callable[[], bytes]) -> Callable[[], bytes]:
    """Return a fault: a new certificate begins at the present date of the machine, and ends in ten years."""

    def new_certificate() -> bytes:
        host = current_host.get()
        begins = datetime.fromtimestamp(0 if host is None else host.wall_s, UTC)
        with patch.multiple(x509_files, _BEGINS=begins, _ENDS=begins + timedelta(days=3650)):
            return real()

    return new_certificate


def _compares_dates(real: Callable[..., None]) -> Callable[..., None]:
    """Return a fault: a client compares the dates of a pinned certificate with its clock."""

    def check_pinned(certificate: bytes | None, fingerprint: bytes) -> None:
        real(certificate, fingerprint)
        host, found = current_host.get(), x509.load_der_x509_certificate(certificate or b"")
        now = datetime.fromtimestamp(0 if host is None else host.wall_s, UTC)
        if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
            raise UntrustedCertificateError("not valid by the clock")

    return check_pinned


def _slowest_disk(real: property) -> property:
    """Return a fault: each server reports the oldest job of all disks as its own."""
    servers: list[Any] = []

    def disk_pending_ms(self: Any) -> int:
        if all(each is not self for each in servers):
            servers.append(self)
        oldest: int = max(real.__get__(each) for each in servers)
        return oldest

    return property(disk_pending_ms)


def _changes_of_leaves(_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a load instead of a fault: exclusions of leaves, and their ends."""
    return lambda self: self._random.choice([Kind.EXCLUDE, Kind.INCLUDE])


def _without_routers(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fault: unhealthy leaves and the alarms of a node do not count."""
    return lambda facts: (each for each in real(facts) if not each.startswith(("leaf of", "alarm ")))


PLANTED: Final[Mapping[str, Planted]] = {
    "files are not synced": Planted(1, "healing", ((Directory, "perform", _without(SyncFile)),)),
    "names are not synced": Planted(1, "healing", ((Directory, "perform", _without(SyncDirectory)),)),
    "small state files are not synced": Planted(1, "healing", ((Disk, "synced", _states_are_not_synced),)),
    "one vote is a majority": Planted(
        1, "state machine safety", ((consensus.core.quorum, "majority", lambda _: lambda _voters: 1),)
    ),
    "one copy commits": Planted(
        1, "state machine safety", ((consensus.core.quorum, "value_of_majorities", _greatest),)
    ),
    "reads do not wait for the leader": Planted(1, "linearizability", ((FarmAdmin, "read_log", _stale_reads),)),
    "an unknown result is acknowledged": Planted(
        3, "nothing acknowledged lost", ((Submitting, "_submit", _unknown_is_committed),)
    ),
    "repeated requests count again": Planted(
        1, "formation", ((SessionTable, "admit", lambda _: lambda *_: RequestStatus.NEW),)
    ),
    "a node skips entries": Planted(1, "equal state machines", ((Farm, "apply", _one_node_skips_entries),)),
    "an exclusion does not count": Planted(
        1,
        "excluded leaf",
        (
            (FarmState, "leaves_of", _excluded_leaves_are_eligible),
            (Client, "_kind", lambda _: lambda _self: Kind.EXCLUDE),
        ),
        (),
        EXCLUDING_S,
    ),
    "a quorum is always lost": Planted(1, "formation", ((QuorumWatch, "left_ms", lambda _: lambda *_: -1),)),
    "the alarm of isolation never ends": Planted(
        2, "healing", ((Joiner, "peers_changed", _isolation_never_ends),), LONG_ISOLATION, 22.0
    ),
    "dead members stay dead": Planted(
        1, "healing", ((Updates, "apply_alive", _dead_members_stay_dead),), LONG_ISOLATION, 22.0
    ),
    "a lost connection is not opened again": Planted(
        1, "true alarm", ((_Link, "_connect_once", _one_connection_to_each_peer),), LONG_ISOLATION, 22.0
    ),
    "alarms do not end": Planted(1, "healing", ((Alarms, "_end", lambda _: lambda *_: None),), LONG_ISOLATION, 22.0),
    "a hanging disk is no quorum": Planted(
        3, "true verdict", ((farm_facts, "DISK_FAULTS", lambda _: frozenset()),), HANGING, NO_DISK_S
    ),
    "a hanging disk is not an alarm": Planted(
        1, "missing alarm", ((notices, "DISK_PATIENCE_MS", lambda _: 10**9),), HANGING, NO_DISK_S
    ),
    "a full disk is not an alarm": Planted(
        1, "missing alarm", ((Alarms, "set", _without_alarm(DISK_FULL)),), FULL, NO_DISK_S
    ),
    "a lost quorum is not a verdict": Planted(
        1,
        "true verdict",
        ((verdict, "_RULES", lambda rules: tuple(each for each in rules if each is not verdict._no_quorum)),),
        ONE_CUT_OFF,
        85.0,
    ),
    "a standby publishes": Planted(
        1,
        "one structure per second",
        (
            (publishing, "plan_publication", _each_node_is_publisher),
            (state_machine, "_refusal", lambda _: lambda *_: None),
        ),
    ),
    "log time follows any clock": Planted(
        1, "healing", ((VoterClocks, "limit_ms", lambda _: lambda *_: None),), WRONG_CLOCKS, 70.0
    ),
    "exported key files are outdated": Planted(
        1,
        "remedy",
        ((FarmKeys, "exported", lambda _: property(lambda keys: keys.filed)),),
        EVICTION,
        40.0,
        has_operator=True,
    ),
    "a node does not follow its address": Planted(
        1,
        "true verdict",
        ((AddressWatch, "_follow", lambda _: lambda *_: None),),
        MOVED,
        100.0,
        has_operator=True,
    ),
    "the state depends on the machine": Planted(
        1, "equal state machines", ((Farm, "apply", _state_depends_on_the_machine),)
    ),
    "a snapshot lacks parts of the state": Planted(
        1, "equal state machines", ((Farm, "restore", _snapshot_lacks_reports),)
    ),
    "a verdict ignores servers that are down": Planted(
        1, "true verdict", ((verdict, "_concerns", _no_degraded),), ONE_DOWN, 90.0
    ),
    "a report does not count": Planted(1, "formation", ((Farm, "apply", _without_record(Report)),)),
    "an eviction does not count": Planted(
        1, "completed action", ((Farm, "apply", _without_record(Eviction)),), EVICTION, 40.0, has_operator=True
    ),
    "a replacement of keys does not count": Planted(
        1, "completed action", ((Farm, "apply", _without_record(KeyReplacement)),), REKEYING, 40.0, has_operator=True
    ),
    "dead servers count as blocked": Planted(
        1, "true verdict", ((ContactWatch, "_udp_blocked", _each_dead_server_answers),), ONE_DOWN, 90.0
    ),
    "gossip does not mark members dead": Planted(
        1, "true verdict", ((Updates, "apply_verdict", lambda _: lambda *_, **__: None),), ONE_DOWN, 90.0
    ),
    "the alarm of a full disk never ends": Planted(
        1, "true alarm", ((Alarms, "clear", _never_ends(DISK_FULL)),), FULL, NO_DISK_S
    ),
    "the alarm of a hanging disk ends early": Planted(
        1, "missing alarm", ((Alarms, "set", _ends_immediately(DISK_UNRESPONSIVE)),), HANGING, NO_DISK_S
    ),
    "old reports count": Planted(3, "live leaf", ((FarmState, "stale", lambda _: lambda *_: False),), ONE_DOWN, 90.0),
    "structures are not signed": Planted(1, "formation", ((SigningKey, "sign", _unsigned),)),
    "structures are an hour ahead": Planted(1, "formation", ((SigningKey, "sign", _an_hour_ahead),)),
    "a snapshot lacks the sessions": Planted(
        1, "equal state machines", ((SessionTable, "load", lambda _: lambda _data, limits: SessionTable(limits)),)
    ),
    "a snapshot lacks the weights": Planted(6, "equal state machines", ((Farm, "restore", _snapshot_lacks_weights),)),
    "a number of the state is beyond its bounds": Planted(1, "bounded numbers", ((Farm, "apply", _without_bound),)),
    "a token is used twice": Planted(
        1,
        "completed action",
        ((Invitation, "closed_by", lambda _: lambda _self, _now_ms: None),),
        INVITATION,
        40.0,
        has_operator=True,
    ),
    "a revoked invitation is valid": Planted(
        1,
        "completed action",
        ((Invitation, "closed_by", _open_after_revocation),),
        INVITATION,
        40.0,
        has_operator=True,
    ),
    "the eras of keys are unbounded": Planted(
        1,
        "completed action",
        ((eviction, "_objection_to_era", lambda _: lambda era, now, _level: "over" if era <= now.era else None),),
        HOSTILITY,
        60.0,
        has_operator=True,
    ),
    "an approval does not count": Planted(
        1, "completed action", ((Farm, "apply", _without_record(Approval)),), LOST_DISK, 40.0, has_operator=True
    ),
    "reconciliation does not remove servers": Planted(
        1, "completed action", ((_Moment, "_removals", lambda _: lambda _self: []),), DEPARTURE, 40.0, has_operator=True
    ),
    "an entry ends a process": Planted(1, "running process", ((Farm, "apply", _fails_at_an_entry),)),
    "each entry adds a task": Planted(1, "bounded tasks", ((Farm, "apply", _each_entry_adds(_waiting_task)),)),
    "each entry opens files": Planted(
        1,
        "bounded descriptors",
        ((Farm, "apply", _each_entry_adds(_open_files)),),
    ),
    "each entry adds objects": Planted(
        1, "bounded memory", ((Farm, "apply", _each_entry_adds(lambda: [[] for _ in range(1000)])),)
    ),
    "the commit index is stored before the entry": Planted(
        3, "stored commit index", ((replica, "keep_commit_index", _index_of_the_next_entry),)
    ),
    "a view has a former leader": Planted(1, "true view", ((view_builder, "build_view", _view_of_the_first_leader),)),
    "the level is raised without the old voters": Planted(
        1, "true alarm", ((level_raising, "next_level", _own_level),), OLD_VOTERS
    ),
    "an acknowledgment names another index": Planted(
        1, "acknowledged index", ((Submitting, "_submit", _next_index),), (), 10.0
    ),
    "a correction of log time does not count": Planted(
        1, "completed action", ((Farm, "apply", _without_record(Correction)),), WRONG_LOG_TIME, 60.0, has_operator=True
    ),
    "a needed correction of log time counts as needless": Planted(
        1,
        "true log time",
        tuple((each, "needless_ms", _thousandfold) for each in (log_time_correction, operators)),
        WRONG_LOG_TIME,
        60.0,
        has_operator=True,
    ),
    "a correction keeps the seconds of publications": Planted(
        1, "healing", ((farm_commands, "correct", _with_second),), WRONG_LOG_TIME, 60.0, has_operator=True
    ),
    "a correction follows the clock of the machine": Planted(
        1, "equal state machines", ((farm_commands, "correct", _own_clock),), WRONG_LOG_TIME, 60.0, has_operator=True
    ),
    "a correction changes the ages of reports": Planted(
        1,
        "log time",
        ((log_time_correction, "_moved_back", _only_log_time),),
        WRONG_LOG_TIME,
        60.0,
        has_operator=True,
    ),
    "a recovery drops the last entries": Planted(
        1, "recovered state", ((state_reading, "_checked_cut", _cut_end),), LOST_MAJORITY, 60.0, has_operator=True
    ),
    "a recovery drops the weights": Planted(
        3,
        "recovered state",
        ((recovering, "recovered", _recovered_without(weights=Weights())),),
        LOST_MAJORITY,
        60.0,
        has_operator=True,
    ),
    "a recovery drops the last seconds": Planted(
        1,
        "recovered state",
        ((recovering, "recovered", _recovered_without(masters={})),),
        LOST_MAJORITY,
        60.0,
        has_operator=True,
    ),
    "certificates have the dates of the clock": Planted(
        1,
        "formation",
        (
            (x509_files, "new_certificate", _dated_by_clock),
            (tls, "_FIXED_DATES", lambda _: b""),
            (tls, "check_pinned", _compares_dates),
        ),
        WRONG_FIRST_CLOCK,
        10.0,
    ),
    "an alarm is raised at another machine": Planted(
        1, "true alarm", ((ConsensusServer, "disk_pending_ms", _slowest_disk),), HANGING, NO_DISK_S
    ),
    "an unreachable router is not an alarm": Planted(
        1,
        "missing alarm",
        ((Alarms, "set", _without_alarm(ROUTER_UNREACHABLE)),),
        NO_ROUTER,
        NO_DISK_S,
        has_routers=True,
    ),
    "a verdict ignores a dead router": Planted(
        1, "true verdict", ((verdict, "_troubles", _without_routers),), NO_ROUTER, NO_DISK_S, has_routers=True
    ),
    "an exclusion before the agreement does not count": Planted(
        1,
        "earlier exclusion",
        (
            (publishing.PublishingTask, "_lists_excluded_leaf", lambda _: lambda *_: False),
            (Client, "_kind", _changes_of_leaves),
        ),
        SLOW_DISKS,
        60.0,
    ),
    "a recovered farm has the id of the lost one": Planted(
        1, "completed action", ((recovering, "_created_alone", _same_cluster),), LOST_MAJORITY, 60.0, has_operator=True
    ),
}
