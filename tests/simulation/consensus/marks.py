"""Coverage marks: named rare paths, counted in every run to prove that they run.

They are derived from the input and output of a core and from the judge's view of its log; the core does not contain
them. A run over enough seeds fails if one of the demanded marks never appears. Then either the faults of the world have
become too rare, or the path is dead.
"""

from collections import Counter
from collections.abc import Sequence

from consensus.core.effects import (
    ChangeOutcome,
    ChangeRefusal,
    Compact,
    ConfigurationResolved,
    Effect,
    Install,
    Persist,
    ReadEntries,
    ReadReady,
    ReadRefused,
    Role,
    RoleChanged,
    Send,
    TransferEnded,
    TransferOutcome,
)
from consensus.core.events import DeadlineReached, DiskSpace, Event, ReadRequested, Received
from consensus.core.messages import (
    AppendReply,
    EndQuorumEpoch,
    Fetch,
    FetchReply,
    FetchSnapshot,
    RequestVote,
    SnapshotReply,
    VoteReply,
)
from consensus.core.model import Configuration, Entry, EntryKind, ServerId, Term
from consensus.storage.planner import RecoveryReport

COMMON = (
    "conflicting suffix truncated",
    "configuration removed by truncation",
    "leader elected with uncommitted entries of older terms",
    "leader stepped down without a majority",
    "leader received a later term",
    "candidate refused by a server with a leader",
    "term without a leader",
    "old entries read back from storage",
    "log compacted",
    "snapshot installed",
    "snapshot installed over a conflicting suffix",
    "snapshot chunk refused, transfer resumed from the requested offset",
    "voter removed",
    "leader removed itself",
    "change refused: another under way",
    "change refused: nothing committed in the term yet",
    "newcomer abandoned",
    "change lost with its leader",
    "read by a round of requests",
    "read refused by a deposed leader",
    "write repeated and executed once",
    "session expired",
    "transfer done",
    "transfer aborted",
    "torn tail cut",
    "slot of the hard state repaired",
    "truncation finished by recovery",
    "crash during recovery",
    "rot refused by recovery",
    "rot healed or harmless",
    "rotten server replaced by a configuration change",
    "leader resigned because its disk was full",
    "write continued after a full disk",
    "term or vote written while a group waits for space",
    "snapshot canceled because the disk was full",
)
APPEND = (
    "installation finished by recovery",
    "pre-vote refused",
    "voter added",
    "append refused, leader backs off",
    "snapshot superfluous to its receiver",
    "several servers changed at once",
    "joint change finished by a new leader",
    "learner added",
    "learner promoted",
    "read under a lease",
    "vote granted to the leader's chosen successor",
)
FETCH = (
    "installation finished by recovery",
    "pre-vote refused",
    "voter added",
    "diverging fetch",
    "fetch parked",
    "parked fetch completed by entries",
    "parked fetch completed by a new commit index",
    "parked fetch ended by its timeout",
    "late fetch reply dropped",
    "snapshot named in the reply to a fetch of compacted entries",
    "successor campaigned after the leader resigned",
)
ZMQ = (
    "append refused, leader backs off",
    "append refused without a hint",
    "reply that the wire cannot express",
    "late reply to a replaced request",
    "leader elected without appending",
    "message ids wrapped around",
    "repetition answered by the same reply",
    "repetition passed on as a heartbeat",
    "request replaced by a newer one",
    "several servers changed at once",
    "joint change finished by a new leader",
    "snapshot superfluous to its receiver",
)
KRAFT = (
    *(mark for mark in FETCH if mark != "installation finished by recovery"),
    "response without information about the quorum",
    "connection to a server with another directory than the peer's",
    "directory lost, another server in its place",
    "pre-vote unsupported by the peer's version",
    "request for another directory refused",
    "request refused by a busy server",
    "request sent again after a pause",
    "request to a replica without a known address",
)
DEMANDED = {
    "append": (*COMMON, *APPEND),
    "fetch": (*COMMON, *FETCH),
    "zmq": (*COMMON, *ZMQ),
    "kraft": (*COMMON, *KRAFT),
}
"""Paths that must have run, by strategy."""
NO_ELECTION_LEFT = "rot left no electable server"
"""The only accepted reason for a history without progress; in a long run, at most one history of 200 may have it."""

_REFUSALS = {
    ChangeRefusal.CHANGE_UNDER_WAY: "change refused: another under way",
    ChangeRefusal.NO_COMMIT_IN_TERM: "change refused: nothing committed in the term yet",
    ChangeRefusal.CATCH_UP_STALLED: "newcomer abandoned",
    ChangeRefusal.CATCH_UP_TOO_SLOW: "newcomer abandoned",
}


class Marks:
    """Counts the marks of one history."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._parked: dict[ServerId, set[int]] = {}
        self._fetching: dict[ServerId, int] = {}
        self._candidacies: set[Term] = set()

    def see(self, mark: str) -> None:
        self.counts[mark] += 1

    def stepped(
        self, server: ServerId, event: Event, effects: Sequence[Effect], log: Sequence[Entry], *, led: bool
    ) -> None:
        """Count the paths of a step; `log` is the server's log before it, `led` is True if the server led."""
        if isinstance(event, Received) and isinstance(event.message, FetchReply):
            self._fetch_reply_taken(server, event.message)
        for effect in effects:
            match effect:
                case Send(message=Fetch(correlation=correlation)):
                    self._fetching[server] = correlation
                case Send(message=message):
                    self._sent(server, event, message)
                case Persist():
                    self._persist(effect, log)
                case RoleChanged():
                    self._role_changed(event, effect, led=led)
                case ReadEntries():
                    self.see("old entries read back from storage")
                case ReadReady() | ReadRefused() | ConfigurationResolved() | TransferEnded():
                    self._answered(event, effect, led=led)
                case _:
                    pass
        if isinstance(event, Received) and isinstance(event.message, Fetch):
            self._fetch_taken(server, event.message, effects)

    def committed(self, before: Configuration, after: Configuration, *, leads: bool) -> None:
        """Count a configuration change; `leads` is True if the leader is missing in the new configuration."""
        if after.is_joint:
            self.see("several servers changed at once")
            return
        if after.voter_ids - before.voter_ids:
            self.see("voter added")
        if after.learner_ids - before.member_ids:
            self.see("learner added")
        if leads:
            self.see("leader removed itself")

    def requested(self, current: Configuration, after: Configuration) -> None:
        """Count a completed change, without its intermediate configurations."""
        if current.learner_ids & after.voter_ids:
            self.see("learner promoted")
        if current.voter_ids - after.voter_ids:
            self.see("voter removed")

    def recovered(self, report: RecoveryReport) -> None:
        """Count the repairs of a recovery."""
        for seen, mark in (
            (report.torn_bytes, "torn tail cut"),
            (report.hard_state_slot_repaired, "slot of the hard state repaired"),
            (report.truncation_finished, "truncation finished by recovery"),
            (report.install_finished, "installation finished by recovery"),
        ):
            if seen:
                self.see(mark)

    def crashed(self, server: ServerId) -> None:
        """Drop the parked fetches of a crashed server."""
        self._parked.pop(server, None)
        self._fetching.pop(server, None)

    def end(self, led_terms: set[Term], last_term: Term) -> None:
        """Count the terms without a leader at the end of the history."""
        lost = sum(term not in led_terms for term in self._candidacies if term < last_term)
        if lost:
            self.counts["term without a leader"] += lost

    def _sent(self, server: ServerId, event: Event, message: object) -> None:
        match message:
            case AppendReply(success=False):
                self.see("append refused, leader backs off")
            case RequestVote(pre_vote=False, term=term):
                self._candidacies.add(term)
            case VoteReply(granted=False, pre_vote=True):
                self.see("pre-vote refused")
            case VoteReply(granted=False, term=term) if _is_of_later_term(event, term):
                self.see("candidate refused by a server with a leader")
            case VoteReply(granted=True, pre_vote=False) if _was_named(event):
                self.see("vote granted to the leader's chosen successor")
            case SnapshotReply(accepted=False, next_offset=offset) if offset:
                self.see("snapshot chunk refused, transfer resumed from the requested offset")
            case FetchSnapshot(offset=offset) if offset and isinstance(event, DeadlineReached):
                self.see("snapshot chunk refused, transfer resumed from the requested offset")
            case SnapshotReply(installed=True) if isinstance(event, Received):
                self.see("snapshot superfluous to its receiver")
            case FetchReply():
                self._fetch_answered(server, event, message)
            case _:
                pass

    def _persist(self, persist: Persist, log: Sequence[Entry]) -> None:
        cut = persist.truncate_from
        if cut is not None:
            self.see("conflicting suffix truncated")
            if any(entry.kind == EntryKind.CONFIGURATION for entry in log[cut - 1 :]):
                self.see("configuration removed by truncation")
        match persist.snapshot:
            case Install(snapshot):
                self.see("snapshot installed")
                last = snapshot.last
                if len(log) >= last.index and log[last.index - 1].term != last.term:
                    self.see("snapshot installed over a conflicting suffix")
            case Compact(first_kept=first_kept) if first_kept > 1:
                self.see("log compacted")
            case _:
                pass

    def _role_changed(self, event: Event, changed: RoleChanged, *, led: bool) -> None:
        if led and changed.role is not Role.LEADER:
            if isinstance(event, DeadlineReached):
                self.see("leader stepped down without a majority")
            elif isinstance(event, DiskSpace):
                self.see("leader resigned because its disk was full")
            elif isinstance(event, Received):
                self.see("leader received a later term")
        campaigns = changed.role is Role.CANDIDATE
        if campaigns and isinstance(event, Received) and isinstance(event.message, EndQuorumEpoch):
            self.see("successor campaigned after the leader resigned")

    def _answered(
        self, event: Event, answer: ReadReady | ReadRefused | ConfigurationResolved | TransferEnded, *, led: bool
    ) -> None:
        match answer:
            case ReadReady(read_id):
                lease = isinstance(event, ReadRequested) and event.read_id == read_id
                self.see("read under a lease" if lease else "read by a round of requests")
            case ReadRefused():
                if led:
                    self.see("read refused by a deposed leader")
            case ConfigurationResolved():
                self._change_resolved(answer)
            case TransferEnded():
                self._transfer_ended(answer)

    def _change_resolved(self, resolved: ConfigurationResolved) -> None:
        mark = None if resolved.refusal is None else _REFUSALS.get(resolved.refusal)
        if mark is not None:
            self.see(mark)
        if resolved.outcome is ChangeOutcome.UNKNOWN:
            self.see("change lost with its leader")

    def _transfer_ended(self, ended: TransferEnded) -> None:
        if ended.outcome is TransferOutcome.DONE:
            self.see("transfer done")
        elif ended.outcome in (TransferOutcome.TIMED_OUT, TransferOutcome.DECLINED, TransferOutcome.NOT_A_VOTER):
            self.see("transfer aborted")

    def _fetch_taken(self, server: ServerId, fetch: Fetch, effects: Sequence[Effect]) -> None:
        has_reply = any(
            isinstance(effect, Send)
            and isinstance(effect.message, FetchReply)
            and effect.message.correlation == fetch.correlation
            for effect in effects
        )
        if not has_reply:
            self.see("fetch parked")
            self._parked.setdefault(server, set()).add(fetch.correlation)

    def _fetch_reply_taken(self, server: ServerId, reply: FetchReply) -> None:
        """Count a late reply: the core accepts only one reply, to its newest fetch."""
        if self._fetching.pop(server, None) != reply.correlation:
            self.see("late fetch reply dropped")

    def _fetch_answered(self, server: ServerId, event: Event, reply: FetchReply) -> None:
        if reply.diverging is not None:
            self.see("diverging fetch")
        if reply.snapshot is not None:
            self.see("snapshot named in the reply to a fetch of compacted entries")
        parked = self._parked.get(server)
        if parked is None or reply.correlation not in parked:
            return
        parked.discard(reply.correlation)
        if reply.error is not None:
            return
        if reply.entries:
            self.see("parked fetch completed by entries")
        elif isinstance(event, DeadlineReached):
            self.see("parked fetch ended by its timeout")
        else:
            self.see("parked fetch completed by a new commit index")


def _is_of_later_term(event: Event, term: Term) -> bool:
    match event:
        case Received(message=RequestVote(pre_vote=False, term=candidate_term)):
            return candidate_term > term
        case _:
            return False


def _was_named(event: Event) -> bool:
    match event:
        case Received(message=RequestVote(transfer=transfer)):
            return transfer
        case _:
            return False
