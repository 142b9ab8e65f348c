"""Rules of ØMQ Raft beyond Raft's own: for its wire, and for peers from the npm package.

    one at a time      a leader has one request per follower; the next waits until it is answered or overdue
    no idle entry      a new leader appends only if its configuration is joint, or its log extends beyond its own commit
                       index
    payload            a command has at least one byte after its head
    joint              every change of the members passes a joint configuration (`checker`)

Rules for requests to servers that simulate the package:

    below the commit   no append begins below the index that the server has stored and committed in any of its runs: the
                       server would exit
    nothing is cut     no append ends below the index that the server has acknowledged in this term. The package cuts
                       its log after the received entries, even after an empty list
    old snapshot       no snapshot ends below the commit index of the server
"""

from collections.abc import Sequence
from random import Random

from consensus.core.effects import Effect, Persist, Role, RoleChanged
from consensus.core.events import Event
from consensus.core.features import ZMQ_RAFT
from consensus.core.messages import AppendEntries, InstallSnapshot, Request
from consensus.core.model import EntryKind, Index, ServerId, Term
from consensus.protocols.zmq_raft.wire.messages import AppendEntriesRpc, InstallSnapshotRpc, PeerRequest
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.profile import Profile
from tests.simulation.consensus.zmq_sockets import PendingRequest


class ZmqJudge:
    """The rules for one history."""

    def __init__(self, random: Random, profile: Profile, machines: dict[ServerId, Machine], checker: Checker) -> None:
        self._retry_ms = profile.options.retry_ms
        self._machines = machines
        self._checker = checker
        self._package = {server for server in checker.shadows if random.random() < profile.package_peers}
        self._commits: dict[ServerId, Index] = dict.fromkeys(checker.shadows, 0)
        self._held: dict[ServerId, tuple[Term, Index]] = {}

    def stepped(self, machine: Machine, _event: Event, effects: Sequence[Effect]) -> None:
        persists = [effect for effect in effects if isinstance(effect, Persist)]
        for persist in persists:
            for entry in persist.entries:
                if entry.kind == EntryKind.COMMAND and len(entry.data) <= ZMQ_RAFT.command_head_bytes:
                    raise ViolationError(f"payload: server {machine.server_id} stores {entry}")
        if machine.run is None:
            return
        replica = machine.run.core._replica
        commit = replica.applier.commit
        self._commits[machine.server_id] = max(self._commits[machine.server_id], commit)
        if any(isinstance(effect, RoleChanged) and effect.role is Role.LEADER for effect in effects):
            appended = [persist for persist in persists if persist.entries]
            if not appended:
                self._checker.marks.see("leader elected without appending")
            elif appended[0].first - 1 <= commit and not replica.log.configuration.is_joint:
                raise ViolationError(f"no idle entry: {machine.server_id} leads and appends {appended[0].entries}")

    def check_request(
        self, asker: ServerId, answerer: ServerId, request: Request, unanswered: PendingRequest | None
    ) -> None:
        """Check that a request replaces only an answered or overdue request, or one of an older term."""
        if unanswered is None or not isinstance(request, AppendEntries | InstallSnapshot):
            return
        before, waited_ms = unanswered.request, self._machines[asker].clock_ms - unanswered.sent_ms
        is_of_term = isinstance(before, AppendEntries | InstallSnapshot) and before.term == request.term
        if is_of_term and waited_ms < self._retry_ms and self._remembers(asker, answerer, before.correlation):
            raise ViolationError(
                f"one at a time: {asker} asks {answerer} {request} while {before} waits since {waited_ms} ms"
            )

    def _remembers(self, asker: ServerId, answerer: ServerId, correlation: int) -> bool:
        """Return True if the leader still tracks the request; it does not if the follower left and returned since."""
        run = self._machines[asker].run
        leader = None if run is None else run.core._role.as_leader
        progress = None if leader is None else leader.followers.get(answerer)
        if progress is None:
            return False
        sent_chunk = progress.transfer is not None and progress.transfer.correlation == correlation
        return sent_chunk or correlation in progress.in_flight or correlation in progress.expired

    def arrived(self, answerer: ServerId, request: PeerRequest) -> None:
        """Check a request that a server processes. The server refuses a request of an older term unprocessed."""
        if answerer not in self._package or request.term < self._machines[answerer].term:
            return
        # A crash may lose committed entries that were not yet stored here: the server no longer knows their commit.
        commit = self._commits[answerer] = min(self._commits[answerer], self.end_of(answerer))
        match request:
            case AppendEntriesRpc(term=term, previous_index=previous, entries=entries):
                if previous < commit:
                    raise ViolationError(
                        f"below the commit: {answerer} has committed {commit} and receives an append after {previous}"
                    )
                held_in, held = self._held.get(answerer, (0, 0))
                if term == held_in and previous + len(entries) < held:
                    raise ViolationError(
                        f"nothing is cut: {answerer} holds {held} and gets an append up to {previous + len(entries)}"
                    )
            case InstallSnapshotRpc(last_index=last):
                if last < commit:
                    raise ViolationError(
                        f"old snapshot: {answerer} has committed {commit} and receives a snapshot of {last}"
                    )
            case _:
                pass

    def follows_package(self, server: ServerId) -> bool:
        """Return True if this server answers like a server of the npm package."""
        return server in self._package

    def end_of(self, server: ServerId) -> Index:
        """Return the last index of the server's log."""
        return len(self._checker.shadows[server].volatile)

    def acknowledged(self, answerer: ServerId, request: AppendEntriesRpc) -> None:
        """Record that the server acknowledged a complete append."""
        end = request.previous_index + len(request.entries)
        term, held = self._held.get(answerer, (0, 0))
        self._held[answerer] = request.term, max(held, end) if term == request.term else end
