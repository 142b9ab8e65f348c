"""The schedule of a server that fetches: the target, the time and the size of each fetch (KIP-595, Fetch).

    leader known      fetch from it; after the reply (entries, a commit index, or nothing after a while) fetch again
    leader unknown    query the voters in random order until one of them names the leader
    no reply          fetch again; a late reply is still taken
    disk is writing   the next fetch waits, because it acknowledges its position as durable. During a long wait, a fetch
                      from the durable end shows the leader that this server is alive

A reply is valid only for the requested position: a late report of divergence could truncate entries committed since
then. So each request is stored under its correlation, and `fetch_receiver` drops a reply whose position is not the end
of the log. If the leader no longer has the entries, it names its snapshot. Chunks are fetched in order, each when the
previous one is durable; entries follow when the snapshot is installed (`snapshots`).

*Size of a request.* The size is halved when a reply is overdue, and doubled when a reply of at least half the size
comes soon. So on any link a fetch takes only a part of the timeout. The transport reports the bytes of a large reply as
they arrive (`AnswerArriving`). They count as contact, and the fetch is not repeated while they arrive. A fetch of zero
bytes shows the leader that this follower is alive.

One fetch is under way at a time. After a reply without a change the next fetch waits for its time. Otherwise follower
and leader would exchange empty messages without a pause.
"""

from msgspec import Struct, structs

from consensus.core.messages import Fetch, FetchSnapshot
from consensus.core.model import LogId, Milliseconds, ServerId, Term
from consensus.core.replica import Replica
from consensus.core.snapshots import IncomingSnapshot, SnapshotReceiver

MAX_REMEMBERED_FETCHES = 16
FIRST_FETCH_BYTES = 256 * 1024
LEAST_FETCH_BYTES = 4 * 1024


class PendingFetch(Struct, frozen=True):
    """One fetch without a reply."""

    target: ServerId
    term: Term
    position: LogId
    sent_ms: Milliseconds
    overdue_ms: Milliseconds
    offset: int | None = None
    """The first requested byte of the snapshot of `position`; None if entries are requested."""
    max_bytes: int = 0
    """The limit of the reply; 0 for a keep-alive."""


class FetchSchedule:
    """The fetches without a reply, and the time and target of the next."""

    def __init__(self, replica: Replica, snapshots: SnapshotReceiver) -> None:
        self._replica = replica
        self._snapshots = snapshots
        self._pending: dict[int, PendingFetch] = {}
        self._waiting: PendingFetch | None = None
        self._sent_ms: Milliseconds = replica.now
        self._rest_until_ms: Milliseconds = replica.now
        self._untried: list[ServerId] = []
        self._is_arriving = False
        """True if parts of the reply to `_waiting` have come."""
        self._limit_bytes = min(FIRST_FETCH_BYTES, replica.options.max_bytes_per_append)

    @property
    def deadline(self) -> Milliseconds | None:
        """Return the time when `maybe_fetch` may have work; None without a server to fetch from."""
        if self._waiting is not None:
            overdue_ms = self._waiting.overdue_ms
            return min(overdue_ms, self._keep_alive_ms) if self._is_arriving else overdue_ms
        if not self._replica.others:
            return None
        return max(self._rest_until_ms, self._keep_alive_ms) if self._is_busy else self._rest_until_ms

    def maybe_fetch(self, leader: ServerId | None) -> None:
        """Send the fetch that is due now, given the leader."""
        replica, waiting = self._replica, self._waiting
        if waiting is not None:
            redirected = leader not in (None, waiting.target) or waiting.term != replica.term
            if not redirected and replica.now < waiting.overdue_ms:
                if self._is_arriving and replica.now >= self._keep_alive_ms:
                    self._send_keep_alive(waiting.target)
                return
            self._waiting = None
            if not redirected:
                self._reduce_request_size()
            else:
                # The leader of a new term announces itself to the voters soon; other servers must query the voters.
                self._rest_until_ms = replica.now if leader is not None else replica.now + replica.options.heartbeat_ms
        if replica.now < self._rest_until_ms or (self._is_busy and replica.now < self._keep_alive_ms):
            return
        target = self._next_voter() if leader is None else leader
        if target is None:
            return
        incoming = self._snapshots.incoming
        if incoming is None or self._is_busy or (incoming.term, incoming.leader) != (replica.term, leader):
            self._send_fetch(target)
        else:
            self._fetch_chunk(incoming)

    def take_reply_to(self, sender: ServerId, correlation: int) -> PendingFetch | None:
        """Remove and return the fetch of this reply; None if the fetch was dropped, or sent to another server."""
        pending = self._pending.get(correlation)
        if pending is None or pending.target != sender:
            return None
        del self._pending[correlation]
        if pending is self._waiting:
            self._waiting = None
        return pending

    def extend(self, sender: ServerId, correlation: int) -> bool:
        """Extend the wait for a reply that is arriving; return False if it is not the awaited reply."""
        pending, replica = self._pending.get(correlation), self._replica
        if pending is None or pending is not self._waiting or (pending.target, pending.term) != (sender, replica.term):
            return False
        overdue_ms = replica.now + replica.options.heartbeat_ms + replica.options.retry_ms
        self._waiting = self._pending[correlation] = structs.replace(pending, overdue_ms=overdue_ms)
        self._is_arriving = True
        return True

    def adapt(self, pending: PendingFetch, size_bytes: int) -> None:
        """Adapt the limit: raise it after a quick reply of at least half the limit, lower it after a slow reply."""
        took_ms, retry_ms = self._replica.now - pending.sent_ms, self._replica.options.retry_ms
        if size_bytes and took_ms > retry_ms:
            self._reduce_request_size()
        elif took_ms <= retry_ms // 2 and 2 * size_bytes >= pending.max_bytes >= self._limit_bytes:
            self._limit_bytes = min(2 * self._limit_bytes, self._replica.options.max_bytes_per_append)

    def _reduce_request_size(self) -> None:
        self._limit_bytes = max(1, LEAST_FETCH_BYTES, self._limit_bytes // 2)

    def restart(self, leader: ServerId) -> None:
        """Fetch from a leader that has announced itself, and drop earlier fetches."""
        self.drop_others(leader)
        self.resume()

    def drop_others(self, leader: ServerId) -> None:
        """Drop all earlier fetches: they went to other servers, or to the leader before it led.

        Otherwise a late reply "not the leader" would erase a leader whose lease this server has just confirmed. If a
        large reply of the leader is arriving, its fetch is kept.
        """
        waiting = self._waiting
        if waiting is not None and self._is_arriving and (waiting.target, waiting.term) == (leader, self._replica.term):
            self._pending = {number: pending for number, pending in self._pending.items() if pending is waiting}
            return
        self._pending.clear()
        self._waiting = None

    def resume(self) -> None:
        """Send the next fetch now: the reply changed something, or a leader is known."""
        self._rest_until_ms = self._replica.now

    def rest(self) -> None:
        """Delay the next fetch by a heartbeat interval after the last, because the reply did not change anything."""
        self._rest_until_ms = max(self._replica.now, self._sent_ms + self._replica.options.heartbeat_ms)

    @property
    def _is_writing(self) -> bool:
        return self._replica.log.durable_index < self._replica.log.last_index

    @property
    def _is_busy(self) -> bool:
        """True if the disk writes or checks the newest data, so that the next fetch waits."""
        return self._is_writing or self._snapshots.is_writing

    @property
    def _keep_alive_ms(self) -> Milliseconds:
        return self._sent_ms + self._replica.options.keep_alive_ms

    def _next_voter(self) -> ServerId | None:
        replica = self._replica
        self._untried = [voter for voter in self._untried if voter in replica.voters]
        if not self._untried:
            self._untried = list(replica.others)
            replica.random.shuffle(self._untried)
        return self._untried.pop() if self._untried else None

    def _send_fetch(self, target: ServerId) -> None:
        replica, log = self._replica, self._replica.log
        # While the disk writes, this is only a keep-alive. Its position is not the log's end, so the entries in the
        # reply will be dropped, but the leader counts the contact.
        position = self._durable_position() if self._is_writing else log.last
        max_wait_ms, limit_bytes = replica.options.heartbeat_ms, self._limit_bytes
        fetch = self._fetch_from(position, max_wait_ms, limit_bytes)
        after = 0 if self._is_writing else log.writing_number
        replica.outbox.send(target, fetch, max(replica.hard_state_number, after))
        overdue_ms = replica.now + max_wait_ms + replica.options.retry_ms
        pending = PendingFetch(target, replica.term, position, replica.now, overdue_ms, None, limit_bytes)
        self._remember(fetch.correlation, pending)

    def _send_keep_alive(self, target: ServerId) -> None:
        """Send an empty fetch, so that the leader counts us among its majority while a large reply is on its way."""
        replica, position = self._replica, self._durable_position()
        fetch = structs.replace(self._fetch_from(position, 0, 0), is_keep_alive=True)
        replica.outbox.send(target, fetch, replica.hard_state_number)
        self._keep(fetch.correlation, PendingFetch(target, replica.term, position, replica.now, replica.now))

    def _durable_position(self) -> LogId:
        log = self._replica.log
        return LogId(log.durable_index, log.term_at(log.durable_index) or 0)

    def _fetch_from(self, position: LogId, max_wait_ms: Milliseconds, max_bytes: int) -> Fetch:
        replica = self._replica
        return Fetch(
            term=replica.term,
            replica=replica.server_id,
            position=position,
            commit=replica.applier.commit,
            max_wait_ms=max_wait_ms,
            max_bytes=max_bytes,
            correlation=replica.next_correlation(),
            cluster_id=replica.cluster_id,
        )

    def _fetch_chunk(self, incoming: IncomingSnapshot) -> None:
        replica = self._replica
        limit_bytes = min(self._limit_bytes, replica.options.snapshot_chunk_bytes)
        correlation = replica.next_correlation()
        fetch = FetchSnapshot(
            term=replica.term,
            replica=replica.server_id,
            snapshot=incoming.last,
            offset=incoming.received,
            max_bytes=limit_bytes,
            correlation=correlation,
            cluster_id=replica.cluster_id,
        )
        replica.outbox.send(incoming.leader, fetch, max(replica.hard_state_number, incoming.number))
        overdue_ms, offset = replica.now + replica.options.retry_ms, incoming.received
        pending = PendingFetch(
            incoming.leader, replica.term, incoming.last, replica.now, overdue_ms, offset, limit_bytes
        )
        self._remember(correlation, pending)

    def _remember(self, correlation: int, pending: PendingFetch) -> None:
        self._waiting, self._is_arriving = pending, False
        self._keep(correlation, pending)

    def _keep(self, correlation: int, pending: PendingFetch) -> None:
        self._pending[correlation] = pending
        self._sent_ms = self._replica.now
        if len(self._pending) > MAX_REMEMBERED_FETCHES:
            # Many keep-alives are sent while a large reply is awaited.
            del self._pending[next(number for number, each in self._pending.items() if each is not self._waiting)]
