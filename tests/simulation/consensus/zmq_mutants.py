"""Planted bugs of ØMQ Raft's own parts: one request at a time, probes, replies, debouncing, CHECKPOINT."""

from typing import Any

from msgspec.structs import replace

from consensus.core import membership
from consensus.core.effects import ChangeRefusal
from consensus.core.features import JointConsensus
from consensus.core.leader import Leader
from consensus.core.messages import AppendReply
from consensus.core.model import Configuration, Index
from consensus.core.replication.append_leader import AppendLeader
from consensus.core.replication.progress import Progress, ProgressTracker
from consensus.protocols.zmq_raft.wire import mapping
from consensus.protocols.zmq_raft.wire.messages import AppendEntriesResponse, AppendEntriesRpc
from tests.simulation.consensus import zmq_sockets
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import Kind

_first_step = membership.first_step


def _always(*_anything: Any) -> bool:
    return True


def _never(*_anything: Any) -> bool:
    return False


def _nothing(*_anything: Any) -> None:
    return None


def _behind_the_match(_self: AppendLeader, progress: Progress) -> Index:
    return progress.match + 1


def _back_to_the_match(self: Progress, request: Any, hint: Index) -> bool:
    return _refused(self, request, self.match + 1 if hint >= request.previous else hint)


_refused = Progress.refused


def _any_index_commits(_self: ProgressTracker, index: Index) -> bool:
    return index > 0


def _report_success_of_less(reply: AppendReply, request: AppendEntriesRpc) -> AppendEntriesResponse | None:
    whole = request.previous_index + len(request.entries) + 1
    return _append_reply_to_wire(replace(reply, next_index=whole) if reply.success else reply, request)


_append_reply_to_wire = mapping._append_reply_to_wire


def _same_connection(before: Any, _taken: Any, now: Any, _request: Any) -> bool:
    return before is now


def _joint_for_several(
    current: Configuration, target: Configuration, *, joint: JointConsensus, learners: bool
) -> Configuration | ChangeRefusal:
    assert joint is JointConsensus.ALWAYS
    return _first_step(current, target, joint=JointConsensus.FOR_SEVERAL, learners=learners)


ZMQ_MUTANTS = (
    Mutant(
        "zmq-heartbeat-beside-a-request",
        "heartbeats, entries and chunks do not wait for the pending reply of a follower",
        ((AppendLeader, "_may_send_request", _always),),
        "zmq",
    ),
    Mutant(
        "zmq-late-answer-says-where-to-go-on",
        "a leader continues at the index of a late reply, although it has sent a newer request",
        ((AppendLeader, "_is_late", _never),),
        "zmq",
    ),
    Mutant(
        "zmq-probe-behind-the-match",
        "an unresponsive follower is probed from the index where its log last matched",
        ((AppendLeader, "_place_to_probe", _behind_the_match),),
        "zmq",
    ),
    Mutant(
        "zmq-refusal-without-hint-begins-anew",
        "after a refusal without a hint the leader goes back to the last match, not by one entry",
        ((Progress, "refused", _back_to_the_match),),
        "zmq",
    ),
    Mutant(
        "zmq-append-sent-twice",
        "the transport repeats an append that may have arrived, although the follower treats it as a new one",
        ((zmq_sockets, "may_be_repeated", _always),),
        "zmq",
        kind=Kind.GENERAL,
    ),
    Mutant(
        "zmq-success-of-less",
        "a follower reports success, which means all entries, for a part of an append",
        ((mapping, "_append_reply_to_wire", _report_success_of_less),),
        "zmq",
        kind=Kind.GENERAL,
    ),
    Mutant(
        "zmq-reply-of-another-request",
        "the debouncing treats every request on a connection as a repetition",
        ((zmq_sockets, "is_repetition", _same_connection),),
        "zmq",
    ),
    Mutant(
        "zmq-no-checkpoint",
        "a new leader commits entries of older terms by counting, without its own CHECKPOINT",
        ((Leader, "needs_no_entry_yet", _always), (ProgressTracker, "_may_commit", _any_index_commits)),
        "zmq",
        kind=Kind.FIGURE_8,
    ),
    Mutant(
        "zmq-needless-checkpoint",
        "every new leader appends a CHECKPOINT",
        ((Leader, "needs_no_entry_yet", _never),),
        "zmq",
    ),
    Mutant(
        "zmq-read-without-checkpoint",
        "a leader answers reads before it has appended in its term",
        ((Leader, "_knows_commit_index", _always), (Leader, "_append_no_op_if_needed", _nothing)),
        "zmq",
    ),
    Mutant(
        "zmq-one-voter-without-joint-consensus",
        "a change by one voter skips the joint configuration",
        ((membership, "first_step", _joint_for_several),),
        "zmq",
        kind=Kind.MEMBERSHIP,
    ),
)
