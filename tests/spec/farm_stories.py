"""Helpers for scenarios of the farm's state machine: healthy reports, clock entries, a log that applies them."""

from msgspec.structs import replace

from bridge.core.farm.state_machine import Change
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.core.log.figures import RouterStatus
from bridge.core.log.records import Clock, LeafStatus, MetaStatus, PublishConfig, Record, Report
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.state.farm_state import FarmTuning, MasterState
from tests.authored import FOUNDERS, AuthoredFarm

BASE_MS = 1_700_000_000_000
PERIOD_MS = 30_000
MASTER = "master~destination=="
FOR_EVER_S = 2**32 - 1
TUNING = FarmTuning(period_ms=PERIOD_MS)

IDLE = RouterStatus(
    attached=True,
    uptime_ms=3_600_000,
    job_lag_ms=0,
    configured_bandwidth_bytes_per_s=1_000_000,
    current_bandwidth_bytes_per_s=0,
    cpu_percent=0,
    memory_percent=0,
)
META = MetaStatus(MASTER, PublishConfig.AUTO, publishing=False, last_published_time_ms=0, can_sign_until_s=FOR_EVER_S)


def leaf(name: str, *, healthy: bool = True, load: float = 0.0) -> LeafStatus:
    """Return a destination with four tunnels; `load` is the used part of its bandwidth and connections."""
    return LeafStatus(
        name,
        healthy,
        uptime_ms=3_600_000,
        configured_tunnels=4,
        current_tunnels=4,
        configured_bandwidth_bytes_per_s=1_000,
        current_bandwidth_bytes_per_s=int(1_000 * load),
        configured_connections=100,
        current_connections=int(100 * load),
    )


def report(server_id: int, date_ms: int = BASE_MS, /, **changes: object) -> Report:
    """Return a report of a healthy server with one leaf; `changes` apply to router, meta or the report itself."""
    router_changes = {key: value for key, value in changes.items() if key in RouterStatus.__struct_fields__}
    meta_changes = {key: value for key, value in changes.items() if key in MetaStatus.__struct_fields__}
    rest = {key: value for key, value in changes.items() if key in {"destinations", "request", "masters"}}
    assert not changes.keys() - router_changes.keys() - meta_changes.keys() - rest.keys()
    made = Report(
        cluster="farm",
        date_ms=date_ms,
        server_id=server_id,
        router=replace(IDLE, **router_changes),  # type: ignore[arg-type]  # checked against the fields above
        masters=(replace(META, **meta_changes),),  # type: ignore[arg-type]  # the same
        destinations=(leaf(f"leaf{server_id:02}"),),
    )
    return replace(made, **rest)  # type: ignore[arg-type]  # the same


class Log:
    """A farm with its log: appends records, each at the next index."""

    def __init__(self, *records: Record, tuning: FarmTuning = TUNING, founders: tuple[bytes, ...] = FOUNDERS) -> None:
        self.farm = AuthoredFarm(BASE_MS, tuning, founders)
        # Scenarios set log time freely, so the voters' clocks must not bound it.
        self.farm.state = replace(self.farm.state, level=SUPPORTED_LEVEL, clocks=VoterClocks())
        self.records: list[Record] = []
        self.append(*records)

    def append(self, *records: Record) -> list[Change]:
        """Apply `records`, and return all changes."""
        changes: list[Change] = []
        for record in records:
            self.records.append(record)
            changes.extend(self.farm.apply(len(self.records), 1, record))
        return changes

    def clock(self, after_ms: int) -> list[Change]:
        """Append clock entries up to `after_ms` after the base, one per period, like a leader."""
        changes: list[Change] = []
        while BASE_MS + after_ms - (before_ms := self.farm.state.log_time_ms) > TUNING.stale_after_ms:
            changes += self.leap(before_ms - BASE_MS + PERIOD_MS)
            assert self.farm.state.log_time_ms > before_ms
        return changes + self.leap(after_ms)

    def leap(self, after_ms: int) -> list[Change]:
        """Append one clock entry `after_ms` after the base.

        A large step means that no server led in the time before it.
        """
        return self.append(Clock(BASE_MS + after_ms, server_id=1))

    @property
    def master(self) -> MasterState:
        return self.farm.state.masters[MASTER]

    @property
    def publisher(self) -> int | None:
        return self.master.choice.server_id

    @property
    def leaves(self) -> dict[str, int]:
        """Map each listed leaf to its cost."""
        return {each.destination: each.cost for each in self.master.leaves}
