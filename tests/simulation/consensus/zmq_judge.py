"""What is demanded of ØMQ Raft beyond the rules of Raft: what its wire needs, and what servers of the npm package need.

    one at a time      a leader asks a follower for one thing only; the next waits until it is answered or overdue
    no idle entry      a new leader appends nothing unless something of an older term is not committed, by what it knows
    payload            a command has at least a byte behind its head
    joint              every change of the members passes a joint configuration (`checker`)

Of servers that stand for the package, whose peers must spare them:

    below the commit   no append begins below what the server has stored and committed in any of its lives: it ends then
    nothing is cut     no append ends below what the server has acknowledged in this term: the package cuts its log
                       behind whatever it is sent, also behind nothing
    old snapshot       no snapshot comes that ends below what the server has committed
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
from tests.simulation.consensus.zmq_sockets import Asked


class ZmqJudge:
    """The demands of one history."""

    def __init__(self, random: Random, profile: Profile, machines: dict[ServerId, Machine], checker: Checker) -> None:
        self._retry_ms = profile.options.retry_ms
        self._machines = machines
        self._checker = checker
        self._package = {server for server in checker.shadows if random.random() < profile.package_peers}
        self._commits: dict[ServerId, Index] = dict.fromkeys(checker.shadows, 0)
        self._held: dict[ServerId, tuple[Term, Index]] = {}

    def stepped(self, machine: Machine, _event: Event, effects: Sequence[Effect]) -> None:
        """A server took a step."""
        persists = [effect for effect in effects if isinstance(effect, Persist)]
        for persist in persists:
            for entry in persist.entries:
                if entry.kind == EntryKind.COMMAND and len(entry.data) <= ZMQ_RAFT.command_head_bytes:
                    raise ViolationError(f"payload: server {machine.server_id} stores {entry}")
        if machine.life is None:
            return
        replica = machine.life.core._replica
        commit = replica.applier.commit
        self._commits[machine.server_id] = max(self._commits[machine.server_id], commit)
        if any(isinstance(effect, RoleChanged) and effect.role is Role.LEADER for effect in effects):
            appended = [persist for persist in persists if persist.entries]
            if not appended:
                self._checker.marks.see("leader elected that appended nothing")
            elif appended[0].first - 1 <= commit and not replica.log.configuration.is_joint:
                raise ViolationError(f"no idle entry: {machine.server_id} leads and appends {appended[0].entries}")

    def asked(self, asker: ServerId, answerer: ServerId, request: Request, unanswered: Asked | None) -> None:
        """A request leaves, and takes the place of another, which is answered, overdue or of an older term."""
        if unanswered is None or not isinstance(request, AppendEntries | InstallSnapshot):
            return
        before, waited_ms = unanswered.request, self._machines[asker].clock_ms - unanswered.sent_ms
        is_of_term = isinstance(before, AppendEntries | InstallSnapshot) and before.term == request.term
        if is_of_term and waited_ms < self._retry_ms and self._remembers(asker, answerer, before.correlation):
            raise ViolationError(
                f"one at a time: {asker} asks {answerer} {request} while {before} waits since {waited_ms} ms"
            )

    def _remembers(self, asker: ServerId, answerer: ServerId, correlation: int) -> bool:
        """Whether the leader still knows of the request: not if the follower has left the members and come again."""
        life = self._machines[asker].life
        leader = None if life is None else life.core._role.as_leader
        progress = None if leader is None else leader.followers.get(answerer)
        if progress is None:
            return False
        sent_chunk = progress.transfer is not None and progress.transfer.correlation == correlation
        return sent_chunk or correlation in progress.in_flight or correlation in progress.expired

    def arrived(self, answerer: ServerId, request: PeerRequest) -> None:
        """A request is taken up by a server; one of an older term is refused before anything is looked at."""
        if answerer not in self._package or request.term < self._machines[answerer].term:
            return
        # A crash may take entries that it knew to be committed, but had not stored: of those it knows nothing any more.
        commit = self._commits[answerer] = min(self._commits[answerer], self.end_of(answerer))
        match request:
            case AppendEntriesRpc(term=term, previous_index=previous, entries=entries):
                if previous < commit:
                    raise ViolationError(
                        f"below the commit: {answerer} has committed {commit} and is sent an append behind {previous}"
                    )
                held_in, held = self._held.get(answerer, (0, 0))
                if term == held_in and previous + len(entries) < held:
                    raise ViolationError(
                        f"nothing is cut: {answerer} holds {held} and is sent an append up to {previous + len(entries)}"
                    )
            case InstallSnapshotRpc(last_index=last):
                if last < commit:
                    raise ViolationError(
                        f"old snapshot: {answerer} has committed {commit} and is sent a snapshot of {last}"
                    )
            case _:
                pass

    def follows_package(self, server: ServerId) -> bool:
        """Whether this server answers as those of the npm package do."""
        return server in self._package

    def end_of(self, server: ServerId) -> Index:
        """Where its log ends."""
        return len(self._checker.shadows[server].volatile)

    def acknowledged(self, answerer: ServerId, request: AppendEntriesRpc) -> None:
        """It answers that it holds all that it was sent."""
        end = request.previous_index + len(request.entries)
        term, held = self._held.get(answerer, (0, 0))
        self._held[answerer] = request.term, max(held, end) if term == request.term else end
