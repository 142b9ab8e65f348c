"""Rules of a KRaft quorum beyond Raft's own: for the messages between its replicas, and for their state.

    high watermark     a leader never sends a lower one than a leader of an earlier epoch. A replica never receives a
                       lower one than before: a follower on the JVM would exit
    log start          a log without its first records has a snapshot that includes them, and the snapshot
                       ends at or below the high watermark
    batches            the record batches of a fetch follow its offset without a gap, their epochs never fall, and none
                       is later than the leader's epoch
    single leader      the server named as leader of an epoch was elected in it; not checked with forged messages
    records            a state restored from a snapshot has the records and producers that the complete log produces

Kafka's own simulation has five checks. Two of them are here, and the others are rules of `checker`.
"""

from collections.abc import Mapping, Sequence

from consensus.core.effects import Effect
from consensus.core.events import Event
from consensus.core.messages import Fetch, Request
from consensus.core.model import Entry, Index, ServerId, Term
from consensus.protocols.kafka.wire.messages_clients import FetchResponse, FetchResponsePartition
from consensus.protocols.kafka.wire.messages_quorum import (
    BeginQuorumEpochResponsePartition,
    EndQuorumEpochResponsePartition,
    VoteResponsePartition,
)
from consensus.protocols.kafka.wire.record_batches import batch_heads
from consensus.protocols.kraft.replica.state_machine import QuorumLog
from consensus.protocols.kraft.wire.mapping import QuorumResponse
from consensus.protocols.kraft.wire.replica_names import replica
from tests.simulation.consensus.checker import Checker, ViolationError
from tests.simulation.consensus.kafka_state import content_of
from tests.simulation.consensus.machine import Machine
from tests.simulation.consensus.profile import Profile
from tests.simulation.consensus.state import finish_in_turns


class KafkaJudge:
    """The rules for one history."""

    def __init__(self, profile: Profile, machines: Mapping[ServerId, Machine], checker: Checker) -> None:
        self._are_leaders_elected = not profile.forged_ms
        self._machines = machines
        self._checker = checker
        self._sent: dict[Term, tuple[Index, Index]] = {}
        """The lowest and the highest high watermark that a leader sent, by epoch."""
        self._received: dict[ServerId, tuple[int, Index]] = {}
        """The run number of a server and the highest high watermark that it received in this run, by server."""

    def stepped(self, machine: Machine, _event: Event, _effects: Sequence[Effect]) -> None:
        if machine.run is None:
            return
        replica = machine.run.core._replica
        log, commit = replica.log, replica.applier.commit
        if not log.start.index:
            return
        if log.snapshot is None or not log.start.index <= log.snapshot.last.index <= commit:
            raise ViolationError(
                f"log start: the log of {machine.server_id} begins after {log.start.index} at the high watermark "
                f"{commit}, and its snapshot is {log.snapshot}"
            )

    def check_response(self, answerer: ServerId, request: Request, response: QuorumResponse) -> None:
        """Check a response when it leaves."""
        self._check_leader(answerer, response)
        partition = _of_fetch(response)
        if partition is None or not isinstance(request, Fetch):
            return
        epoch = partition.current_leader.leader_epoch
        if partition.high_watermark >= 0:
            self._record_sent(answerer, epoch, partition.high_watermark)
        expected, before = request.position.index, request.position.term
        for _, head in batch_heads(partition.records or b""):
            if head.base_offset != expected or not before <= head.leader_epoch <= epoch:
                raise ViolationError(f"batches: {answerer} sends {head} in epoch {epoch} where {expected} follows")
            expected, before = head.last_offset + 1, head.leader_epoch

    def response_received(self, asker: ServerId, request: Request, response: QuorumResponse) -> None:
        """Check a received response; it counts only if it belongs to the asker's current epoch."""
        partition, machine = _of_fetch(response), self._machines[asker]
        if partition is None or not isinstance(request, Fetch) or partition.high_watermark < 0 or machine.run is None:
            return
        if partition.diverging_epoch.epoch >= 0 or partition.snapshot_id.epoch >= 0:
            return
        if partition.current_leader.leader_epoch != machine.term or request.term != machine.term:
            return
        count = sum(head.count for _, head in batch_heads(partition.records or b""))
        received = min(partition.high_watermark, request.position.index + count)
        run, known = self._received.get(asker, (machine.crashes, 0))
        known = known if run == machine.crashes else 0
        end = len(self._checker.shadows[asker].volatile)
        if received < known and request.position.index == end:
            raise ViolationError(f"high watermark: {asker} receives {received} after {known}")
        self._received[asker] = machine.crashes, max(known, received)

    def records_restored(self, server: ServerId, index: Index, log: QuorumLog) -> None:
        """Check a state restored from a snapshot at `index`."""
        whole = QuorumLog(2**30)
        entries: tuple[Entry, ...] = tuple(self._checker.committed[:index])
        finish_in_turns(whole.apply(1, entries))
        if content_of(whole) != content_of(log):
            raise ViolationError(f"records: {server} begins from a snapshot of {index} with others than the log has")

    def _check_leader(self, answerer: ServerId, response: QuorumResponse) -> None:
        topics = response.responses if isinstance(response, FetchResponse) else response.topics
        for topic in topics:
            for partition in topic.partitions:
                named = partition if isinstance(partition, _OF_ELECTIONS) else partition.current_leader
                known = self._checker.leaders.get(named.leader_epoch)
                if (
                    self._are_leaders_elected
                    and named.leader_id >= 0
                    and (known is None or replica(known).id != named.leader_id)
                ):
                    raise ViolationError(f"single leader: {answerer} names {named}, and {known} was elected")

    def _record_sent(self, leader: ServerId, epoch: Term, sent: Index) -> None:
        for other, (lowest, highest) in self._sent.items():
            if (other < epoch and sent < highest) or (other > epoch and sent > lowest):
                raise ViolationError(
                    f"high watermark: {leader} sends {sent} in epoch {epoch}, and {lowest} to {highest} was sent in "
                    f"epoch {other}"
                )
        lowest, highest = self._sent.get(epoch, (sent, sent))
        self._sent[epoch] = min(lowest, sent), max(highest, sent)


_OF_ELECTIONS = (VoteResponsePartition, BeginQuorumEpochResponsePartition, EndQuorumEpochResponsePartition)


def _of_fetch(response: QuorumResponse) -> FetchResponsePartition | None:
    if not isinstance(response, FetchResponse) or response.error_code or not response.responses:
        return None
    partition = response.responses[0].partitions[0]
    return None if partition.error_code else partition
