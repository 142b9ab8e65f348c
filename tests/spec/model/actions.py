"""The transitions of the model: each takes a state and returns the next, or None if the rules do not permit it.

    Timeout          section 5.2, rules for candidates; pre-vote only delays it, so it is not an action
    UpdateTerm       figure 2, rules for all servers: a message of a later term arrives
    Vote             figure 2, RequestVote
    BecomeLeader     section 5.2
    AppendEntry      section 5.3, rules for leaders: a command, a no-op, or the present configuration again
    ChangeServers    section 6 (C_old,new) and thesis 4.1 (one server); LeaveJoint appends C_new
    AcceptEntry      figure 2, AppendEntries, one entry; several entries are several steps
    FetchEntry       KIP-595, Fetch: the position is part of the leader's log, one record follows
    FetchTruncate    KIP-595, Fetch: the position diverges
    AdvanceCommit    section 5.3 and 5.4.2, rules for leaders; KIP-595: the high watermark
    LearnCommit      figure 2, AppendEntries, rule 5; KIP-595: the high watermark of a reply
    InstallSnapshot  figure 13, for committed entries
    Resign           check-quorum, EndQuorumEpoch, or a leader outside C_new: a follower in the same term
    Unsync           from now on, writes wait in memory; Sync: the oldest waiting write is durable
    Crash            memory is lost; the disk keeps its version and any prefix of the waiting writes

Lost, repeated, late and reordered messages do not need actions (`state`). A production server does several of these
in one step, such as UpdateTerm and Vote.
"""

from collections.abc import Iterator
from typing import TypeVar

from tests.spec.model.rules import Rules
from tests.spec.model.state import (
    CANDIDATE,
    FOLLOWER,
    LEADER,
    NO_SERVER,
    Configuration,
    Entry,
    Log,
    Node,
    State,
    TermRecord,
    Version,
    agreement,
    configuration_of,
    configurations_of,
    empty_record,
    end_of,
    first_of,
    term_at,
)

_Value = TypeVar("_Value")


class Actions:
    """The transitions under given rules."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()

    def timeout(self, state: State, server: int) -> State | None:
        """Increment currentTerm, vote for self, send RequestVote to all other servers."""
        node = state.nodes[server]
        if not configuration_of(node):
            return None
        return self._with(state, server, node._replace(term=node.term + 1, vote=server, role=CANDIDATE))

    def update_term(self, state: State, server: int, term: int) -> State | None:
        """Take the term of a message: set currentTerm, convert to follower."""
        node = state.nodes[server]
        was_sent = term <= len(state.records) and any(state.records[term - 1].requests)
        if term <= node.term or not was_sent:
            return None
        return self._with(state, server, node._replace(term=term, vote=NO_SERVER, role=FOLLOWER))

    def vote(self, state: State, server: int, candidate: int) -> State | None:
        """Grant a vote to a candidate of our term."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        request = record.requests[candidate] if record is not None else None
        if request is None or candidate == server or not self._rules.may_vote(node, candidate, request):
            return None
        return self._with(state, server, node._replace(vote=candidate, role=FOLLOWER))

    def become_leader(self, state: State, server: int) -> State | None:
        """Lead with votes of a majority."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if node.role != CANDIDATE or record is None:
            return None
        votes = _mask(voter for voter, given in enumerate(record.votes) if given >> server & 1)
        if not self._rules.has_won(votes, configuration_of(node)):
            return None
        record = record._replace(leaders=record.leaders | 1 << server, log=node.log, commit=node.commit)
        state = _with_record(state, node.term, record)
        state = self._with(state, server, node._replace(role=LEADER))
        for other in range(len(state.nodes)):
            state = self._sent(state, other)
        return state

    def append_entry(self, state: State, server: int, configuration: Configuration = ()) -> State | None:
        """Append an entry of the leader's term that does not change the configuration."""
        node = state.nodes[server]
        if node.role != LEADER or configuration not in ((), configuration_of(node)):
            return None
        return self._append(state, server, configuration)

    def change_servers(self, state: State, server: int, target: Configuration) -> State | None:
        """Append C_new directly, C_old,new, or C_new after C_old,new."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if node.role != LEADER or record is None:
            return None
        index, present = configurations_of(node.log, node.initial)[-1]
        own = term_at(node.log, record.commit) == node.term
        if not self._rules.may_change_after(own, record.commit >= index) or target == present:
            return None
        leaves = len(present) == 2 and target == present[:1]
        enters = len(present) == 1 and len(target) == 2 and target[1] == present[0]
        direct = len(present) == len(target) == 1 and self._rules.may_switch_directly(present[0], target[0])
        if not leaves and not enters and not direct:
            return None
        return self._append(state, server, target)

    def accept_entry(self, state: State, server: int, previous: int) -> State | None:
        """Take the leader's entry after `previous`; delete a conflicting entry and all later entries."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if record is None or not record.leaders or node.role == LEADER or previous >= len(record.log):
            return None
        if not self._rules.may_append_after(term_at(node.log, previous), term_at(record.log, previous)):
            return None
        entry, log = record.log[previous], node.log
        if previous == len(log) or self._rules.truncates(log[previous].term, entry.term):
            log = (*log[:previous], entry)
        return self._with(state, server, node._replace(log=log, role=FOLLOWER))

    def fetch_entry(self, state: State, server: int) -> State | None:
        """Take the leader's record after our end, if our log is part of the leader's log."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if record is None or not record.leaders or node.role == LEADER or len(node.log) >= len(record.log):
            return None
        if not self._rules.may_append_after(end_of(node.log).term, term_at(record.log, len(node.log))):
            return None
        return self._with(state, server, node._replace(log=(*node.log, record.log[len(node.log)]), role=FOLLOWER))

    def fetch_truncate(self, state: State, server: int, index: int) -> State | None:
        """Cut our log after `index`; the leader's reply shows that the rest diverges."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if record is None or not record.leaders or node.role == LEADER or index >= len(node.log):
            return None
        last = end_of(node.log)
        diverges = term_at(record.log, last.length) != last.term
        if not diverges or not self._rules.may_cut_to(index, agreement(node.log, record.log)):
            return None
        return self._with(state, server, node._replace(log=node.log[:index], role=FOLLOWER))

    def advance_commit(self, state: State, server: int, index: int) -> State | None:
        """Commit up to an index that a majority holds durably."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if node.role != LEADER or record is None or not record.commit < index <= len(node.log):
            return None
        holders = _mask(holder for holder, held in enumerate(record.acknowledged) if held >= index)
        own_term = self._rules.may_commit(node.log[index - 1].term, node.term)
        if not own_term or not self._rules.is_majority(holders, configuration_of(node)):
            return None
        state = _with_record(state, node.term, record._replace(commit=index))
        return self._with(state, server, node._replace(commit=index))

    def learn_commit(self, state: State, server: int, index: int) -> State | None:
        """Take the leader's commit index, up to the last entry of the proved agreement between the two logs."""
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if record is None or not record.leaders or node.role == LEADER or index <= node.commit:
            return None
        if index > self._rules.learned_commit(record.commit, agreement(node.log, record.log), len(node.log)):
            return None
        return self._with(state, server, node._replace(commit=index, role=FOLLOWER))

    def install_snapshot(self, state: State, server: int, index: int) -> State | None:
        """Replace the log by the leader's committed entries up to `index`; keep it if it has them.

        A server without a configuration gets the first one, too: a snapshot has the configuration of its last entry.
        """
        node, record = state.nodes[server], _record(state, state.nodes[server].term)
        if record is None or not record.leaders or node.role == LEADER or not node.commit < index <= record.commit:
            return None
        known = term_at(node.log, index) == term_at(record.log, index)
        log = node.log if known else record.log[:index]
        initial = node.initial or state.nodes[first_of(record.leaders)].initial
        return self._with(state, server, node._replace(log=log, commit=index, role=FOLLOWER, initial=initial))

    def resign(self, state: State, server: int) -> State | None:
        """Become a follower in the same term."""
        node = state.nodes[server]
        return None if node.role == FOLLOWER else self._with(state, server, node._replace(role=FOLLOWER))

    def unsync(self, state: State, server: int) -> State:
        """Begin a write: the disk holds the present version until the next version is durable."""
        node = state.nodes[server]
        return _with_node(state, server, node._replace(unsynced=(*node.unsynced, node.memory)))

    def sync(self, state: State, server: int) -> State | None:
        """Make the oldest write durable, and send the messages that waited for it."""
        node = state.nodes[server]
        if not node.unsynced:
            return None
        node = node._replace(unsynced=node.unsynced[1:])
        written = node.unsynced[0] if node.unsynced else node.memory
        if node.ahead == (written.term, written.vote):
            node = node._replace(ahead=())
        # A later term on the disk does not stop an acknowledgment that waited for these entries.
        return self._with(self._claimed(state, server, written), server, node)

    def sync_votes(self, state: State, server: int, count: int) -> State:
        """Make term and vote of the first `count` writes durable before their entries."""
        node = state.nodes[server]
        versions = (*node.unsynced, node.memory)
        newest = versions[count]
        if newest.vote == server:
            # The request contains the end of the log in memory. A winner keeps this log until a crash ends its term.
            campaign = next(each for each in versions if (each.term, each.vote) == (newest.term, server))
            state = self._requested(state, server, campaign)
        return self._with(state, server, node._replace(ahead=(newest.term, newest.vote)))

    def crash(self, state: State, server: int, version: Version, commit: int = 0) -> State | None:
        """Restart with `version` from the disk; `commit` is the index of a durable snapshot of committed entries."""
        node = state.nodes[server]
        if version not in crash_outcomes(node) or commit > min(node.commit, len(version.log)):
            return None
        version = self._rules.recovered(version)
        restarted = Node(version.term, version.vote, version.log, FOLLOWER, commit, node.initial)
        return self._with(state, server, restarted)

    def _append(self, state: State, server: int, configuration: Configuration) -> State:
        node = state.nodes[server]
        log = (*node.log, Entry(node.term, configuration))
        record = state.records[node.term - 1]
        state = _with_record(state, node.term, record._replace(log=log))
        return self._with(state, server, node._replace(log=log))

    def _with(self, state: State, server: int, node: Node) -> State:
        return self._sent(_with_node(state, server, node), server)

    def _sent(self, state: State, server: int) -> State:
        """Record all messages that the server may send with the present content of its disk."""
        return self._claimed(state, server, self._rules.holds_durably(state.nodes[server]))

    def _claimed(self, state: State, server: int, held: Version) -> State:
        """Record the vote and the acknowledgment that this version permits."""
        if not held.term:
            return state
        if held.vote == server:
            state = self._requested(state, server, held)
        state = _with_records_up_to(state, held.term)
        record = state.records[held.term - 1]
        if held.vote != NO_SERVER and not record.votes[server] >> held.vote & 1:
            votes = _changed(record.votes, server, record.votes[server] | 1 << held.vote)
            record = record._replace(votes=votes)
        if record.leaders:
            proved = agreement(held.log, record.log)
            if proved > record.acknowledged[server]:
                record = record._replace(acknowledged=_changed(record.acknowledged, server, proved))
        return state if record is state.records[held.term - 1] else _with_record(state, held.term, record)

    def _requested(self, state: State, server: int, campaign: Version) -> State:
        """Record the vote request of a campaign, once."""
        state = _with_records_up_to(state, campaign.term)
        record = state.records[campaign.term - 1]
        if record.requests[server] is not None:
            return state
        requests = _changed(record.requests, server, end_of(campaign.log))
        return _with_record(state, campaign.term, record._replace(requests=requests))


def crash_outcomes(node: Node) -> Iterator[Version]:
    """Yield the possible versions after a crash. Each write stores term and vote first, then entry by entry.

    Term and vote may be ahead of the entries: one file holds them, another the log.
    """
    versions = (*node.unsynced, node.memory)
    ahead = next((place for place, each in enumerate(versions) if (each.term, each.vote) == node.ahead), 0)
    for place, version in enumerate(versions):
        logs = [version.log] if not place else _partial_logs(versions[place - 1].log, version.log)
        for newer in versions[max(place, ahead) :]:
            for log in logs:
                yield Version(newer.term, newer.vote, log)


def _partial_logs(before: Log, after: Log) -> list[Log]:
    """Return the logs between two versions: the conflicting end is cut, then entries follow."""
    common = 0
    while common < min(len(before), len(after)) and before[common] == after[common]:
        common += 1
    return [after[:length] for length in range(common, len(after) + 1)]


def _record(state: State, term: int) -> TermRecord | None:
    return state.records[term - 1] if 0 < term <= len(state.records) else None


def _with_records_up_to(state: State, term: int) -> State:
    missing = term - len(state.records)
    if missing <= 0:
        return state
    return state._replace(records=(*state.records, *(empty_record(len(state.nodes)),) * missing))


def _with_node(state: State, server: int, node: Node) -> State:
    return state._replace(nodes=_changed(state.nodes, server, node))


def _with_record(state: State, term: int, record: TermRecord) -> State:
    return state._replace(records=_changed(state.records, term - 1, record))


def _changed(values: tuple[_Value, ...], place: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _mask(servers: Iterator[int]) -> int:
    return sum(1 << server for server in servers)
