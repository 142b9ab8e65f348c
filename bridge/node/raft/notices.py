"""Notices of the Raft server as events and alarms: roles, members, a full disk, rejected content (`farm_content`).

`run` clears the alarm `content-rejected` when the node has not received such content for `QUIET_AFTER_S`. A notice of
the server clears `disk-full`. The server does not report an unresponsive disk: `run` polls the disk for that alarm.
`run` waits until the disk's present job, or a job that begins now, can be late.
"""

from collections.abc import Callable

import trio

from bridge.api.alarms import CONTENT_REJECTED, DISK_FULL, DISK_UNRESPONSIVE
from bridge.api.events import CONFIGURATION_CHANGED, ELECTION_STARTED, LEADER_ELECTED, LEADER_FOLLOWED, LEADER_UNKNOWN
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from consensus import (
    ConfigurationChanged,
    ContentRejected,
    DiskFull,
    Histogram,
    Notice,
    Role,
    RoleChanged,
    ServerId,
    integer_id,
    next_tick_s,
    now_ms,
)

QUIET_AFTER_S = 120.0
"""Seconds; longer than a leader waits before it sends rejected entries again."""
LOOK_EVERY_S = 1.0
DISK_PATIENCE_MS = 5_000


class RaftNotices:
    """The notices of one server. `name_of` maps Raft ids to names."""

    def __init__(
        self, trace: EventLog, alarms: Alarms, name_of: Callable[[int], str | None], take_overs: Histogram | None = None
    ) -> None:
        """Record each time without a leader in `take_overs`, except the time before the first leader."""
        self._trace = trace
        self._alarms = alarms
        self.name_of = name_of
        self._last_s = 0.0
        """Time of the last rejected content."""
        self._leaderless_since_ms: int | None = now_ms()
        self._take_overs = take_overs or Histogram()
        self._has_followed = False
        """True after the first known leader. The time before belongs to the start and is not a take-over."""

    @property
    def leaderless_ms(self) -> int | None:
        """Milliseconds without a known leader; None while the server knows one."""
        return None if self._leaderless_since_ms is None else now_ms() - self._leaderless_since_ms

    def observe(self, notice: Notice) -> None:
        """Append the events of a notice, and set or clear its alarm."""
        match notice:
            case RoleChanged(role, term, leader):
                self._note_leader(known=leader is not None)
                if role is Role.LEADER:
                    self._trace.append(LEADER_ELECTED, {"term": term})
                elif leader is not None:
                    self._trace.append(
                        LEADER_FOLLOWED,
                        {"term": term, "leader": integer_id(leader), "leaderName": self._named(leader)},
                    )
                elif role is Role.CANDIDATE:
                    self._trace.append(ELECTION_STARTED, {"term": term})
                else:
                    self._trace.append(LEADER_UNKNOWN, {"term": term})
            case ConfigurationChanged(configuration):
                self._trace.append(
                    CONFIGURATION_CHANGED,
                    {
                        "voters": " ".join(map(str, sorted(configuration.voter_ids))),
                        "learners": " ".join(map(str, sorted(configuration.learner_ids))),
                        "voterNames": " ".join(map(self._named, sorted(configuration.voter_ids))),
                        "learnerNames": " ".join(map(self._named, sorted(configuration.learner_ids))),
                    },
                )
            case DiskFull(full):
                if full:
                    self._alarms.set(DISK_FULL, DISK_FULL.happened)
                else:
                    self._alarms.clear(DISK_FULL)
            case ContentRejected():
                self._content_rejected(notice)

    def _named(self, server_id: ServerId) -> str:
        number = integer_id(server_id)
        return self.name_of(number) or f"server-{number}"

    def _note_leader(self, *, known: bool) -> None:
        if known:
            if self._leaderless_since_ms is not None and self._has_followed:
                self._take_overs.observe((now_ms() - self._leaderless_since_ms) / 1000)
            self._leaderless_since_ms, self._has_followed = None, True
        elif self._leaderless_since_ms is None:
            self._leaderless_since_ms = now_ms()

    def _content_rejected(self, notice: ContentRejected) -> None:
        self._last_s = trio.current_time()
        name = None if notice.sender is None else self.name_of(integer_id(notice.sender))
        who = "a server" if notice.sender is None else f"server {notice.sender}{f' ({name})' if name else ''}"
        self._alarms.set(
            CONTENT_REJECTED,
            f"{who} sends entries or a snapshot that this node cannot accept. This node does not store them:"
            f" {notice.reason}",
        )

    async def run(self, disk_pending_ms: Callable[[], int]) -> None:
        """Set or clear the alarm about an unresponsive disk, and clear `content-rejected` in time, until canceled."""
        while True:
            left_ms = max(0, DISK_PATIENCE_MS - disk_pending_ms())
            due_s = next_tick_s(LOOK_EVERY_S, left_ms / 1000)
            await trio.sleep_until(due_s)
            # After a pause of the whole process, the job may be done, and its result not yet handled.
            if trio.current_time() > due_s + LOOK_EVERY_S:
                continue
            if disk_pending_ms() > DISK_PATIENCE_MS:
                self._alarms.set(DISK_UNRESPONSIVE, DISK_UNRESPONSIVE.happened)
            else:
                self._alarms.clear(DISK_UNRESPONSIVE)
            if trio.current_time() > self._last_s + QUIET_AFTER_S:
                self._alarms.clear(CONTENT_REJECTED)
