"""A leader that sends entries: AppendEntries with entries, or empty as heartbeats (Raft sections 5.2, 5.3).

`_replicate` sends all entries that the follower's state, window and place in the log allow, in batches limited by count
and bytes. Entries that left the tail are read back first; one read per follower at a time. Appends never wait for the
leader's own disk. The commit index travels with every append; an idle follower soon gets it in a heartbeat.

*One request at a time.* If the protocol permits only one open request per follower, heartbeats and chunks of a snapshot
count as requests. Each request waits for the previous reply, or until that reply is overdue. The transport repeats an
open request until a new request replaces it. If the protocol requires it (`Features.probes_from_the_end`), the leader
probes an unresponsive follower from the end of the leader's log, which is above all committed entries. The follower
replies with a hint, and the leader never sends an append below the hint. Only the reply to the newest request sets the
next index, because a newer request may have advanced the follower. An older reply still counts as contact, and
acknowledges the stored entries. A follower whose replies are always overdue does not get entries.
"""

from collections.abc import Iterator

from consensus.core.drops import Drop
from consensus.core.effects import ReadEntries
from consensus.core.entry_data import group_bytes
from consensus.core.events import EntriesRead, SnapshotRead
from consensus.core.messages import AppendEntries, AppendReply, Message, SnapshotReply
from consensus.core.model import Entry, Index, LogId, Milliseconds, ServerId
from consensus.core.replica import Replica
from consensus.core.replication.progress import (
    FIRST_HALVINGS,
    LEAST_REQUEST_BYTES,
    MAX_REMEMBERED_REQUESTS,
    Progress,
    ProgressState,
    ProgressTracker,
    SentAppend,
)
from consensus.core.snapshots import read_next_chunk
from consensus.core.status import FollowerProgress

EARLY_SHARE = 8
"""A divisor: a heartbeat may be sent early by an eighth of the heartbeat interval."""


class AppendLeader:
    """The leader's side of the strategy, in one term."""

    def __init__(self, replica: Replica, tracker: ProgressTracker) -> None:
        self._replica = replica
        self._tracker = tracker
        self._followers = tracker.followers
        self._round_number = 0
        self._window = min(replica.options.in_flight, replica.features.max_requests_in_flight)
        """Maximum number of appends with entries to one follower without a reply."""
        self._one_at_a_time = replica.features.max_requests_in_flight == 1
        self._patience_ms = min(replica.options.heartbeat_ms, replica.options.retry_ms)

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time of the next due heartbeat or retry."""
        return min((self._due_ms(progress) for progress in self._followers.values()), default=None)

    def _due_ms(self, progress: Progress) -> Milliseconds:
        options, now = self._replica.options, self._replica.now
        due_ms = now if progress.sent_ms is None else progress.sent_ms + self._pause_ms(progress)
        oldest_ms = progress.oldest_sent_ms()
        if not self._may_send_request(progress):
            due_ms = now + options.retry_ms
        if oldest_ms is not None and self._overdue_has_effect(progress):
            due_ms = min(due_ms, oldest_ms + options.retry_ms)
        if (
            progress.commit_due_ms is not None
            and progress.state is ProgressState.REPLICATING
            and not progress.in_flight
            and not self._is_kept_for_disk(progress)
        ):
            due_ms = min(due_ms, max(now, progress.commit_due_ms))
        waits_for_heartbeat = self._one_at_a_time and progress.in_flight
        if progress.transfer is not None and progress.state is ProgressState.SNAPSHOT and not waits_for_heartbeat:
            chunk_ms = progress.transfer.due_ms(options.retry_ms)
            due_ms = due_ms if chunk_ms is None else min(due_ms, max(now, chunk_ms))
        return due_ms

    def begin(self) -> None:
        """Announce the leader with the first append of the term."""
        self.appended()

    def expire(self) -> None:
        """Retry and send heartbeats as they are due.

        If one heartbeat is due and allowed, the leader also sends heartbeats with a slightly later due time. Otherwise
        each follower would have separate times and a separate timer.
        """
        followers, early_ms = self._followers.values(), 0
        for progress in followers:
            self._check_overdue(progress)
        if any(self._is_due(progress) and self._may_send_request(progress) for progress in followers):
            early_ms = self._replica.options.heartbeat_ms // EARLY_SHARE
        for peer, progress in self._followers.items():
            if self._is_due(progress, early_ms) or progress.state is ProgressState.SNAPSHOT:
                self._replicate(peer, progress)
            if self._is_due(progress, early_ms) and self._may_send_request(progress):
                self._send(peer, progress, ())
            self._send_commit_index(peer, progress)

    def appended(self) -> None:
        """Send the new entries to each follower whose state and window permit it."""
        for peer, progress in self._followers.items():
            self._replicate(peer, progress)

    def followers_changed(self) -> None:
        """Do nothing: a new follower begins at the end of the log, like all followers at the beginning of the term."""

    def committed(self) -> None:
        """Send the commit index to idle followers; the others get it with the next append."""
        for peer, progress in self._followers.items():
            self._send_commit_index(peer, progress)

    def receive(self, sender: ServerId, message: Message) -> None:
        """Process a follower's reply to an append or a chunk in our term."""
        progress = self._followers.get(sender)
        if progress is not None and isinstance(message, AppendReply):
            self._on_append_reply(sender, progress, message)
        elif progress is not None and isinstance(message, SnapshotReply):
            self._on_chunk_reply(sender, progress, message)
        else:
            self._replica.dropped[Drop.FETCH_MESSAGE_AT_APPEND_LEADER] += 1

    def _on_append_reply(self, sender: ServerId, progress: Progress, message: AppendReply) -> None:
        replica, tracker = self._replica, self._tracker
        request = progress.pop_request(message.correlation)
        if request is None:
            replica.dropped[Drop.STALE_APPEND_REPLY] += 1
            return
        tracker.note_contact(progress)
        tracker.confirmed(progress, request.round_number)
        if self._is_late(progress, message.correlation):
            if message.success:
                self._holds(progress, min(message.next_index - 1, request.last))
            return
        was_unreachable = progress.state is ProgressState.UNREACHABLE
        if message.success:
            self._append_succeeded(sender, progress, request, message.next_index - 1)
        elif progress.has_lost_entries(request, message.next_index):
            replica.dropped[Drop.REFUSAL_OF_ACKNOWLEDGED_ENTRIES] += 1
            self._replicate(sender, progress)
        elif progress.overtook(request, replica.now):
            # The heartbeat arrived by another connection while earlier entries are still on their way. So the refusal
            # does not show that the logs differ.
            replica.dropped[Drop.OVERTAKEN_HEARTBEAT_REFUSAL] += 1
        elif progress.refused(request, message.next_index) or progress.next <= replica.log.start.index:
            self._replicate(sender, progress)
        if was_unreachable:
            # The follower's other open requests may be overdue again soon.
            tracker.wake_by(self._due_ms(progress))
        self._resume_requests(sender, progress)

    def _is_late(self, progress: Progress, correlation: int) -> bool:
        """Return True if a newer request is open and the protocol permits one request at a time.

        The newer request may have advanced the follower, so this reply must not set the next index.
        """
        return self._one_at_a_time and correlation != progress.newest

    def _holds(self, progress: Progress, index: Index) -> None:
        """Count the entries that a late reply acknowledges."""
        progress.holds(index, self._replica.now)
        if self._tracker.acknowledge(progress, index):
            self.committed()

    def _append_succeeded(self, sender: ServerId, progress: Progress, request: SentAppend, matched: Index) -> None:
        if matched > request.last:
            self._replica.dropped[Drop.APPEND_REPLY_BEYOND_REQUEST] += 1
            return
        if request.carries_entries:
            progress.took(self._replica.now - request.sent_ms, self._replica.options.retry_ms)
        progress.succeeded(request, matched, self._replica.now)
        if self._tracker.acknowledge(progress, matched):
            self.committed()
        self._replicate(sender, progress)
        self._send_commit_index(sender, progress)

    def not_sent(self, peer: ServerId, correlation: int, next_index: Index) -> None:
        """Go back to the entries that the peer lacks.

        The peer has not replied, so this is not contact for check-quorum or a read. If the peer lacks acknowledged
        entries, it has lost them, and needs them before later entries.
        """
        progress = self._followers.get(peer)
        request = None if progress is None else progress.pop_request(correlation)
        if progress is None or request is None:
            return
        reachable_again = progress.state is ProgressState.UNREACHABLE
        went_back = progress.has_lost_entries(request, next_index) or progress.refused(request, next_index)
        if went_back or reachable_again or progress.next <= self._replica.log.start.index:
            self._replicate(peer, progress)
            self._tracker.wake_by(self._due_ms(progress))

    def connected(self, peer: ServerId) -> None:
        """Treat requests of an earlier connection as lost: their size no longer extends their timeout."""
        progress = self._followers.get(peer)
        if progress is not None:
            progress.lost_connection()
            self._tracker.wake_by(self._due_ms(progress))

    def entries_read(self, event: EntriesRead) -> bool:
        """Send entries read from storage if they are still the follower's next ones.

        Return False if no follower waits.
        """
        for peer, progress in self._followers.items():
            if progress.read_id == event.request_id:
                progress.read_id = None
                is_next = event.first == progress.next > self._replica.log.start.index
                may_send = progress.may_send_entries(self._window) and self._may_send_request(progress)
                if is_next and event.entries and may_send:
                    self._send(peer, progress, event.entries)
                self._replicate(peer, progress)
                self._resume_requests(peer, progress)
                return True
        return False

    def snapshot_read(self, event: SnapshotRead) -> bool:
        """Send a chunk of the snapshot read from storage; return False if no follower waits for it."""
        for peer, progress in self._followers.items():
            transfer = progress.transfer
            if transfer is None or transfer.read_id != event.request_id:
                continue
            if progress.state is not ProgressState.SNAPSHOT or not self._may_send_request(progress):
                transfer.read_id = None
            elif transfer.send(self._replica, peer, event, self._round_number):
                progress.sent_ms, progress.requested_round = self._replica.now, self._round_number
                progress.newest = transfer.correlation or 0
                self._tracker.wake_by(self._due_ms(progress))
            else:
                self._replicate(peer, progress)
            self._resume_requests(peer, progress)
            return True
        return False

    def confirm(self, round_number: int) -> None:
        """Send a heartbeat to every follower: a reply proves that the follower had no later term when this was sent."""
        self._round_number = round_number
        for peer, progress in self._followers.items():
            if self._may_send_request(progress) and not self._is_kept_for_disk(progress):
                self._send(peer, progress, ())

    def _resume_requests(self, peer: ServerId, progress: Progress) -> None:
        """Send queued work after the reply to the only open request, or after a disk read.

        Entries are sent first, or read from disk. A `confirm` round travels with entries; without entries its heartbeat
        is sent immediately.
        """
        if not self._one_at_a_time or not self._may_send_request(progress):
            return
        self._replicate(peer, progress)
        if not self._may_send_request(progress):
            return
        if progress.requested_round < self._round_number and not self._is_kept_for_disk(progress):
            self._send(peer, progress, ())
        else:
            self._tracker.wake_by(self._due_ms(progress))

    def resign(self, _successor: ServerId | None) -> None:
        """Send nothing: the followers notice that the heartbeats end."""

    def describe(self, now: Milliseconds) -> tuple[FollowerProgress, ...]:
        """Return the followers as plain data, with ages at `now`."""
        return tuple(
            FollowerProgress(
                peer,
                progress.match,
                progress.next,
                len(progress.in_flight),
                now - progress.contact_ms if progress.has_replied else None,
                progress.state,
                self._followers[peer].caught_up_ago_ms(now),
            )
            for peer, progress in self._followers.items()
        )

    def faults(self) -> Iterator[str]:
        """Yield contradictions in a follower's progress."""
        for progress in self._followers.values():
            if not 0 <= progress.match < progress.next <= self._replica.log.last_index + 1:
                yield "progress out of range"
            if max(len(progress.in_flight), len(progress.expired)) > MAX_REMEMBERED_REQUESTS:
                yield "too many stored requests"
            if progress.appends_in_flight != sum(sent.carries_entries for sent in progress.in_flight.values()):
                yield "appends in flight counted wrongly"

    def _replicate(self, peer: ServerId, progress: Progress) -> None:
        """Send the follower the entries that it lacks, or the snapshot instead, within the present limits."""
        log = self._replica.log
        if progress.next <= log.start.index:
            self._send_snapshot(progress)
            return
        window = progress.part_of(self._window)
        while (
            progress.next <= log.last_index and progress.may_send_entries(window) and self._may_send_request(progress)
        ):
            options = self._replica.options
            last = min(log.last_index, progress.next + options.max_entries_per_append - 1)
            limit_bytes = progress.part_of(options.max_bytes_per_append, LEAST_REQUEST_BYTES)
            entries = log.entries(progress.next, last, limit_bytes)
            if entries is None:
                progress.read_id = self._replica.applier.next_read_id()
                read = ReadEntries(request_id=progress.read_id, first=progress.next, last=last, limit_bytes=limit_bytes)
                self._replica.outbox.add(read)
            else:
                self._send(peer, progress, entries)

    def _send_snapshot(self, progress: Progress) -> None:
        if progress.state is not ProgressState.UNREACHABLE and self._may_send_request(progress):
            progress.needs_snapshot()
            chunk_bytes = progress.part_of(self._replica.options.snapshot_chunk_bytes, LEAST_REQUEST_BYTES)
            progress.transfer = read_next_chunk(self._replica, progress.transfer, chunk_bytes)
            self._tracker.wake_by(self._due_ms(progress))

    def _on_chunk_reply(self, sender: ServerId, progress: Progress, message: SnapshotReply) -> None:
        replica, tracker, transfer = self._replica, self._tracker, progress.transfer
        round_number = None if transfer is None else transfer.rounds.pop(message.correlation, None)
        if transfer is None or round_number is None:
            replica.dropped[Drop.STALE_SNAPSHOT_REPLY] += 1
            return
        tracker.note_contact(progress)
        tracker.confirmed(progress, round_number)
        if self._is_late(progress, message.correlation):
            transfer.handle_reply(replica, message)
            if message.installed:
                self._holds(progress, transfer.last.index)
            return
        if message.installed:
            progress.installed(transfer.last.index, replica.now)
            if tracker.acknowledge(progress, progress.match):
                self.committed()
        else:
            if message.accepted:
                progress.advanced_ms = replica.now
            if transfer.sent_ms is not None:
                progress.took(replica.now - transfer.sent_ms, replica.options.retry_ms)
            transfer.handle_reply(replica, message)
            if progress.state is ProgressState.UNREACHABLE:
                progress.needs_snapshot()
        self._replicate(sender, progress)
        tracker.wake_by(self._due_ms(progress))
        self._resume_requests(sender, progress)

    def _send_commit_index(self, peer: ServerId, progress: Progress) -> None:
        """Send the commit index to an idle follower early; a busy one gets it with the next append."""
        replica = self._replica
        behind = progress.sent_commit < replica.applier.commit
        is_idle = not progress.in_flight and not self._is_kept_for_disk(progress)
        if not behind or not is_idle or progress.state is not ProgressState.REPLICATING:
            return
        if progress.commit_due_ms is None:
            progress.commit_due_ms = replica.now + replica.options.commit_notice_ms
        if replica.now >= progress.commit_due_ms:
            self._send(peer, progress, ())
        else:
            self._tracker.wake_by(progress.commit_due_ms)

    def _is_due(self, progress: Progress, early_ms: Milliseconds = 0) -> bool:
        replica = self._replica
        return progress.sent_ms is None or replica.now + early_ms >= progress.sent_ms + self._pause_ms(progress)

    def _pause_ms(self, progress: Progress) -> Milliseconds:
        options = self._replica.options
        if self._is_kept_for_disk(progress):
            return max(options.heartbeat_ms, options.retry_ms)
        return options.heartbeat_ms

    def _is_kept_for_disk(self, progress: Progress) -> bool:
        """Return True if the only permitted request waits for a disk read: a heartbeat would use up that request."""
        return self._one_at_a_time and progress.waits_for_disk

    def _check_overdue(self, progress: Progress) -> None:
        """Mark a follower as unreachable if its reply is overdue."""
        replica, oldest_ms = self._replica, progress.oldest_sent_ms()
        if (
            oldest_ms is not None
            and self._overdue_has_effect(progress)
            and replica.now >= oldest_ms + replica.options.retry_ms
        ):
            if progress.appends_in_flight:
                progress.was_overdue()
            if self._one_at_a_time:
                progress.halvings = max(progress.halvings, FIRST_HALVINGS)
            progress.became_unreachable(self._place_to_probe(progress))
        transfer = progress.transfer
        sent_ms = transfer.sent_ms if transfer is not None and progress.state is ProgressState.SNAPSHOT else None
        if sent_ms is not None and replica.now >= sent_ms + replica.options.retry_ms:
            progress.was_overdue()
            progress.became_unreachable(self._place_to_probe(progress))

    def _overdue_has_effect(self, progress: Progress) -> bool:
        """Return True if an overdue reply has an effect: one request at a time, or a reachable follower."""
        return self._one_at_a_time or progress.state is not ProgressState.UNREACHABLE

    def _place_to_probe(self, progress: Progress) -> Index:
        """Return the first index to probe in the log of an unresponsive follower."""
        from_the_end = self._replica.features.probes_from_the_end
        return (self._replica.log.last_index if from_the_end else progress.match) + 1

    def _may_send_request(self, progress: Progress) -> bool:
        return not (self._one_at_a_time and progress.has_open_request)

    def _send(self, peer: ServerId, progress: Progress, entries: tuple[Entry, ...]) -> None:
        """Send an append; without entries a heartbeat, which keeps leadership and checks that the logs still agree."""
        replica = self._replica
        # The entry before `next` exists: `next` is at most one beyond the leader's log, which never shrinks at its end.
        # If the follower needs compacted entries, the heartbeat contains the oldest place with a known term.
        previous = progress.next - 1 if entries else max(progress.next - 1, replica.log.start.index)
        position = LogId(previous, replica.log.term_at(previous) or 0)
        correlation = replica.next_correlation()
        commit = replica.applier.commit
        encoded = replica.log.encoded(entries)
        message = AppendEntries(
            term=replica.term,
            leader=replica.server_id,
            previous=position,
            entries=entries,
            commit=commit,
            correlation=correlation,
            encoded=encoded,
        )
        replica.outbox.send(peer, message)
        # A transport that repeats requests may lose messages without a notice, so its large messages do not get
        # additional time.
        size_bytes = 0 if self._one_at_a_time else len(encoded) or group_bytes(entries)
        progress.sent(correlation, previous, previous + len(entries), replica.now, self._round_number, size_bytes)
        progress.sent_commit, progress.commit_due_ms = commit, None
        self._tracker.wake_by(replica.now + self._patience_ms)
