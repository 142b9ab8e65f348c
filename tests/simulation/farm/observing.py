"""Observation of the nodes of a trial: entries they apply, structures they publish, verdicts and clusters.

    AppliedState._apply      ──▶ Observer.committed: one entry at each index on all nodes
    FileRouter.publish…      ──▶ Observer.publications; also `Router` of `routers`
    the nodes' own traces    ──▶ Observer.verdicts, clusters, alarms

The first two are wrapped in place, so the observer records each action itself, not the node's report of it.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from bridge.api.trace import TraceEvent
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Correction
from bridge.core.state.farm_state import FarmState
from bridge.node.events.event_log import EventLog
from bridge.node.offline.recovering import RecoveryPlan
from bridge.node.raft.applied_state import AppliedState
from bridge.node.router.router import FileRouter
from bridge.wire.i2p.meta_lease_set import decode
from bridge.wire.log.entries import decode as decode_record
from consensus import Entry, LogId
from tests.simulation.farm.checks import EXCLUSION_S, Publication, Violation, base32_of
from tests.simulation.farm.host import Host, current_host
from tests.simulation.farm.replaying import FirstSnapshot, Founding, digest_of
from tests.simulation.farm.workload import Applied


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """A verdict of a node, from one moment on."""

    at_s: float
    host: str
    starts: int
    """Number of the process that reported it."""
    kind: str
    text: str


class Observer:
    """Record of the nodes of a trial."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.committed: dict[int, Applied] = {}
        self.publications: list[Publication] = []
        self.verdicts: list[VerdictChange] = []
        self.clusters: dict[str, str] = {}
        """The cluster that each node founded or joined."""
        self.violations: list[Violation] = []
        self.states: dict[str, AppliedState] = {}
        """The state machine of the present process of each node."""
        self.founding: Founding | None = None
        self.snapshots: Counter[str] = Counter()
        """Number of snapshots taken, and of snapshots restored at a start or from the leader."""
        self.first: FirstSnapshot | None = None
        """The beginning of a recovered farm's log."""
        self.before: dict[int, Applied] = {}
        """The entries before the last recovery."""
        self.kept = 0
        """The last entry that a recovered farm has taken from its survivor."""
        self._survivor: FarmState | None = None
        """The state of the survivor, until the recovered farm has begun with it."""
        self._last_applied: dict[str, int] = {}
        """The last entry that the present process of each node has applied."""
        self._alarms: dict[tuple[str, int], set[str]] = {}
        """Active alarms by node and number of its process."""
        self._now_s = now_s
        self._excluded: dict[str, dict[str, float]] = {}
        self._excluded_at: dict[tuple[str, int], tuple[int, frozenset[str]]] = {}
        """The index of each accepted publication, and the leaves excluded there, by its master and its timestamp."""

    def verdict_of(self, host: Host) -> VerdictChange | None:
        """Return the present verdict of a node; None if its present process has not given one."""
        last = next((each for each in reversed(self.verdicts) if each.host == host.name), None)
        return last if last is not None and last.starts == host.starts else None

    def alarms_of(self, host: Host) -> list[str]:
        """Return the kinds of the active alarms of a node's present process."""
        return sorted(self._alarms.get((host.name, host.starts), ()))

    def event(self, host: Host, event: TraceEvent) -> None:
        """Record an event of a node's trace."""
        match event.kind:
            case "verdict-changed":
                kind, text = str(event.data["verdict"]), str(event.data["text"])
                self.verdicts.append(VerdictChange(self._now_s(), host.name, host.starts, kind, text))
            case "node-started":  # After a change of the address, a node starts again within its process.
                self._alarms.pop((host.name, host.starts), None)
            case "alarm-raised":
                self._alarms.setdefault((host.name, host.starts), set()).add(str(event.data["alarm"]))
            case "alarm-cleared":
                self._alarms.setdefault((host.name, host.starts), set()).discard(str(event.data["alarm"]))
            case "farm-founded" | "farm-known" | "farm-resumed":
                cluster = str(event.data["cluster"])
                others = {each for each in self.clusters.values() if each != cluster}
                if others:
                    self.violations.append(Violation("one cluster", f"{host.name} is in {cluster}, others in {others}"))
                self.clusters[host.name] = cluster
            case _:
                pass

    def applied(self, host: Host, index: int, entry: Entry) -> None:
        """Record an applied entry; every node must apply the same entry at an index, in every run.

        `recover` applies the log of a node that does not run.
        """
        if host.run is not None:
            self._last_applied[host.name] = index
        found = (entry.term, entry.kind, bytes(entry.data))
        known = self.committed.setdefault(index, found)
        if known != found:
            text = f"{host.name} applied {found!r:.200} at {index}, another node {known!r:.200}"
            self.violations.append(Violation("state machine safety", text))

    def set_back(self, host: Host, entry: Entry, before: FarmState, after: FarmState) -> None:
        """Judge an entry that sets log time back: only a correction does so, and it keeps the ages of reports."""
        ages = [
            {server_id: state.log_time_ms - each.reported_ms for server_id, each in state.servers.items()}
            for state in (before, after)
        ]
        if not isinstance(decode_record(entry.data), Correction) or ages[0] != ages[1]:
            text = f"an entry at {host.name} sets log time back by {before.log_time_ms - after.log_time_ms} ms"
            self.violations.append(Violation("log time", f"{text}; ages of reports before and after: {ages}"))

    def recovered(self, plan: RecoveryPlan, *, ended_well: bool) -> None:
        """Record a new farm: its log keeps the entries of the survivor, and no other node of the old farm runs.

        A survivor that has ended well has stored all entries that it has applied.
        """
        kept, applied = plan.survivor.last.index, self._last_applied.get(plan.state_dir.name, 0)
        if ended_well and kept < applied:
            text = f"the new farm keeps {kept} entries, and its survivor has applied {applied}"
            self.violations.append(Violation("recovered state", text))
        self.before, self.kept = dict(self.committed), kept
        for index in [each for each in self.committed if each > kept]:
            del self.committed[index]
        self.clusters.clear()
        self.states.clear()
        self._excluded_at.clear()
        self.first, self._survivor = None, plan.survivor.farm

    def restored(self, state: AppliedState, last: LogId) -> None:
        """Record the first snapshot of a recovered farm; it has the old state, apart from the servers."""
        if self._survivor is None:
            return
        self.first = FirstSnapshot(last, tuple(state.snapshot()))
        old, new, self._survivor = _kept_parts(self._survivor), _kept_parts(state.state), None
        for what in old:
            if old[what] != new[what]:
                text = f"{what} was {old[what]!r:.100}, and is {new[what]!r:.100}"
                self.violations.append(Violation("recovered state", text))

    def excludes(self, host: Host, leaves: tuple[str, ...]) -> None:
        """Record the excluded leaves of a node's state."""
        known = self._excluded.get(host.name, {})
        if known.keys() != set(leaves):
            self._excluded[host.name] = {leaf: known.get(leaf, self._now_s()) for leaf in leaves}

    def excluded_for(self, name: str, least_s: float) -> frozenset[str]:
        """Return in base32 the leaves that a node's state has excluded for at least this time."""
        latest_s = self._now_s() - least_s
        return frozenset(leaf for leaf, since_s in self._excluded.get(name, {}).items() if since_s <= latest_s)

    def published(self, host: Host, master: bytes, structure: bytes) -> None:
        """Record a structure that a router accepted."""
        now_s = self._now_s()
        excluded = self.excluded_for(host.name, EXCLUSION_S)
        second = (base32_of(master), decode(structure).published_s)
        agreed = self._is_agreed(host, *second)
        _, before = self._excluded_at.get(second, (0, frozenset())) if agreed else (0, frozenset())
        self.publications.append(
            Publication(now_s, host.name, master, structure, host.wall_s, agreed, excluded, before)
        )

    def taken(self, host: Host, structure: bytes) -> None:
        """Record a structure that a router of `routers` accepted.

        A node may hand over the same structure repeatedly.
        """
        if all(each.structure != structure for each in self.publications):
            self.published(host, decode(structure).destination.hash, structure)

    def _is_agreed(self, host: Host, master: str, second_s: int) -> bool:
        """Return True if the log of the publisher has the publication of this structure."""
        state = self.states.get(host.name)
        masters = {} if state is None else state.state.masters
        publications = [each.publication for key, each in masters.items() if hash_of(key) == master]
        return any(each is not None and each.published_s == second_s for each in publications)

    def accepts(self, before: FarmState, after: FarmState) -> None:
        """Record the excluded leaves if an entry is an accepted publication."""
        if after.masters is before.masters:
            return
        for key, master in after.masters.items():
            known = before.masters.get(key)
            accepted = master.publication
            if accepted is not None and (known is None or known.publication != accepted):
                second = (hash_of(key), accepted.published_s)
                found = (after.applied_index, frozenset(after.weights.excluded))
                self._excluded_at[second] = max(found, self._excluded_at.get(second, found), key=lambda each: each[0])

    def digest(self, host: str) -> tuple[int, str]:
        """Return the applied index of a node, and the digest of its state."""
        state = self.states[host]
        return state.state.applied_index, digest_of(state)

    def owners_of(self, structure: bytes) -> list[str]:
        """Return the names of the servers of a structure's leaves, as the nodes have them."""
        owners = self._owners()
        named = (base32_of(lease.destination_hash) for lease in decode(structure).leases)
        return sorted(owners[each] for each in named if each in owners)

    def excluded_owners(self) -> set[str]:
        """Return the names of the servers whose leaves a node has as excluded."""
        owners = self._owners()
        excluded = (leaf for state in self.states.values() for leaf in state.state.weights.excluded)
        return {owners[each] for each in excluded if each in owners}

    def _owners(self) -> dict[str, str]:
        """Return the name of the server of each leaf."""
        return {
            hash_of(leaf.destination): state.state.admitted[each.report.server_id].name or ""
            for state in self.states.values()
            for each in state.state.servers.values()
            if each.report.server_id in state.state.admitted
            for leaf in each.report.destinations
        }

    def leaves(self) -> list[str]:
        """Return the reported leaves, as the first node has them."""
        state = next(iter(self.states.values()), None)
        servers = {} if state is None else state.state.servers
        return sorted(leaf.destination for each in servers.values() for leaf in each.report.destinations)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Wrap the observed methods."""
        apply, publish, created = AppliedState._apply, FileRouter.publish_meta_lease_set, AppliedState.__init__
        observer = self

        def apply_observed(state: AppliedState, index: int, entry: Entry) -> None:
            before = state.state
            apply(state, index, entry)
            host = current_host.get()
            if host is not None:
                observer.applied(host, index, entry)
                if state.state.log_time_ms < before.log_time_ms:
                    observer.set_back(host, entry, before, state.state)
                observer.accepts(before, state.state)
            if host is not None and host.run is not None:
                observer.excludes(host, state.state.weights.excluded)

        async def publish_observed(router: FileRouter, master_hash: bytes, structure: bytes) -> None:
            await publish(router, master_hash, structure)
            host = current_host.get()
            if host is not None:
                observer.published(host, master_hash, structure)

        def created_observed(
            state: AppliedState,
            base_ms: int,
            trace: EventLog,
            founders: tuple[bytes, ...],
            cluster_id: bytes,
            **named: Any,
        ) -> None:
            created(state, base_ms, trace, founders, cluster_id, **named)
            host = current_host.get()
            if host is not None and host.run is not None:
                observer.founding = Founding(base_ms, founders, cluster_id)
                observer.states[host.name] = state
                observer._last_applied[host.name] = 0

        with (
            patch.object(AppliedState, "_apply", apply_observed),
            self._observing_snapshots(),
            patch.object(AppliedState, "__init__", created_observed),
            patch.object(FileRouter, "publish_meta_lease_set", publish_observed),
        ):
            yield

    @contextmanager
    def _observing_snapshots(self) -> Iterator[None]:
        taken, restore = AppliedState.snapshot, AppliedState.restore
        observer = self

        def taken_observed(state: AppliedState) -> Iterator[bytes]:
            if current_host.get() is not None:
                observer.snapshots["taken"] += 1
            return taken(state)

        async def restore_observed(state: AppliedState, last: LogId, chunks: AsyncIterator[bytes]) -> None:
            await restore(state, last, chunks)
            host = current_host.get()
            if host is not None and host.run is not None:
                observer.snapshots["restored"] += 1
                observer.restored(state, last)
                observer.excludes(host, state.state.weights.excluded)

        with (
            patch.object(AppliedState, "snapshot", taken_observed),
            patch.object(AppliedState, "restore", restore_observed),
        ):
            yield


def _kept_parts(state: FarmState) -> dict[str, object]:
    """Return the parts of a state that a new farm takes from a survivor without a change."""
    publications = {name: each.publication for name, each in state.masters.items()}
    return {
        "weights": state.weights,
        "log time": state.log_time_ms,
        "seconds": {name: each and each.published_s for name, each in publications.items()},
        "client keys": state.clients,
        "era": state.rekeying.era,
    }
