"""The decisions of the paper, one method each, so that a mutant of the model replaces exactly one.

Each docstring names its source. The methods receive only plain values. Predicates return True if the step is permitted.
"""

from tests.spec.model.state import Configuration, End, Log, Node, Version


def has_majority(servers: int, voters: int) -> bool:
    """Return True if more than half of the voters are among the servers; both are bit masks."""
    return 2 * (servers & voters).bit_count() > voters.bit_count()


def diverging_epoch(log: Log, fetch_epoch: int) -> End:
    """KIP-595, Fetch: the largest epoch in the leader's log up to the epoch of the fetch, and its end."""
    index = len(log)
    while index and log[index - 1].term > fetch_epoch:
        index -= 1
    return End(log[index - 1].term if index else 0, index)


class Rules:
    """Raft as in the paper."""

    def has_won(self, votes: int, configuration: Configuration) -> bool:
        """Section 5.2: a candidate wins with votes from a majority; section 6: of each of C_old and C_new."""
        return self.is_majority(votes, configuration)

    def is_majority(self, servers: int, configuration: Configuration) -> bool:
        """Section 6: agreement requires separate majorities from both the old and new configurations."""
        return bool(configuration) and all(has_majority(servers, voters) for voters in configuration)

    def may_vote(self, node: Node, candidate: int, request: End) -> bool:
        """Figure 2, RequestVote, rule 2: votedFor is null or the candidate, and its log is at least as up to date."""
        return self.is_free_to_vote(node, candidate) and self.is_up_to_date(request, node.log)

    def is_free_to_vote(self, node: Node, candidate: int) -> bool:
        """Section 5.2: at most one candidate in a given term, first come first served."""
        return node.vote in (-1, candidate)

    def is_up_to_date(self, request: End, log: Log) -> bool:
        """Section 5.4.1: the later last term wins, then the longer log."""
        last = End(log[-1].term, len(log)) if log else End(0, 0)
        return request >= last

    def may_commit(self, entry_term: int, current_term: int) -> bool:
        """Section 5.4.2: only entries of the current term are committed by counting replicas."""
        return entry_term == current_term

    def may_append_after(self, previous_term: int | None, leaders_term: int | None) -> bool:
        """Figure 2, AppendEntries, rule 2: the log contains an entry at prevLogIndex with prevLogTerm."""
        return previous_term is not None and previous_term == leaders_term

    def learned_commit(self, leader_commit: int, matched: int, length: int) -> int:
        """Figure 2, AppendEntries, rule 5: min(leaderCommit, index of last new entry)."""
        return min(leader_commit, matched, length)

    def truncates(self, entry_term: int, leaders_term: int) -> bool:
        """Figure 2, AppendEntries, rule 3: only a conflicting entry and all later entries are deleted."""
        return entry_term != leaders_term

    def may_change_after(self, committed_own_entry: bool, latest_committed: bool) -> bool:  # noqa: FBT001 - two facts
        """Section 6 and the thesis: the latest configuration and an entry of the leader's term are committed."""
        return committed_own_entry and latest_committed

    def may_switch_directly(self, old: int, new: int) -> bool:
        """Thesis, section 4.1: a change of at most one server keeps all majorities overlapping."""
        return (old ^ new).bit_count() <= 1

    def may_cut_to(self, index: int, agreeing: int) -> bool:
        """KIP-595, Fetch: DivergingEpoch is such that subsequent records are known to diverge."""
        return index >= agreeing

    def holds_durably(self, node: Node) -> Version:
        """Figure 2: persistent state is updated on stable storage before responding to RPCs."""
        return node.disk

    def recovered(self, version: Version) -> Version:
        """Figure 2: currentTerm, votedFor and log are persistent."""
        return version
