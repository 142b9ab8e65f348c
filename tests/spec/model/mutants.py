"""Faults planted in the rules of the model. The search must find each fault: this shows that a claim detects it."""

from dataclasses import dataclass, replace

from tests.spec.model.rules import Rules, has_majority
from tests.spec.model.state import Configuration, End, Log, Node, Version
from tests.spec.model.worlds import World, voters


class _OldTermByCounting(Rules):
    def may_commit(self, entry_term: int, current_term: int) -> bool:
        return entry_term <= current_term


class _VoteTwice(Rules):
    def is_free_to_vote(self, node: Node, candidate: int) -> bool:
        return node.vote != candidate


class _VoteForgotten(Rules):
    def recovered(self, version: Version) -> Version:
        return version._replace(vote=-1)


class _VoteForAnyLog(Rules):
    def is_up_to_date(self, request: End, log: Log) -> bool:
        return request.term >= 0 <= len(log)


class _LongerLogWins(Rules):
    def is_up_to_date(self, request: End, log: Log) -> bool:
        return request.length >= len(log)


class _MinorityCommits(Rules):
    def is_majority(self, servers: int, configuration: Configuration) -> bool:
        return bool(servers and configuration)

    def has_won(self, votes: int, configuration: Configuration) -> bool:
        return Rules.is_majority(self, votes, configuration)


class _HalfIsEnough(Rules):
    def is_majority(self, servers: int, configuration: Configuration) -> bool:
        return all(2 * (servers & each).bit_count() >= each.bit_count() for each in configuration)


class _SentBeforeDurable(Rules):
    def holds_durably(self, node: Node) -> Version:
        return node.memory


class _MatchByIndexOnly(Rules):
    def may_append_after(self, previous_term: int | None, leaders_term: int | None) -> bool:
        return previous_term is not None and leaders_term is not None


class _CutBeforeEveryAppend(Rules):
    def truncates(self, entry_term: int, leaders_term: int) -> bool:
        return entry_term >= 0 <= leaders_term


class _NeverCut(Rules):
    def truncates(self, entry_term: int, leaders_term: int) -> bool:
        return entry_term < 0 <= leaders_term


class _CommitBeyondMatch(Rules):
    def learned_commit(self, leader_commit: int, matched: int, length: int) -> int:
        return min(leader_commit, max(matched, length))


class _ChangeDuringChange(Rules):
    def may_change_after(self, committed_own_entry: bool, latest_committed: bool) -> bool:  # noqa: FBT001 - two facts
        return committed_own_entry and latest_committed in (True, False)


class _ChangeBeforeOwnCommit(Rules):
    def may_change_after(self, committed_own_entry: bool, latest_committed: bool) -> bool:  # noqa: FBT001 - two facts
        return latest_committed and committed_own_entry in (True, False)


class _AlwaysDirectly(Rules):
    def may_switch_directly(self, old: int, new: int) -> bool:
        return old != new


class _MajorityOfTheUnion(Rules):
    def is_majority(self, servers: int, configuration: Configuration) -> bool:
        return bool(configuration) and has_majority(servers, configuration[0] | configuration[-1])


class _MajorityOfTheNew(Rules):
    def is_majority(self, servers: int, configuration: Configuration) -> bool:
        return bool(configuration) and has_majority(servers, configuration[0])


class _CutsAgreement(Rules):
    def may_cut_to(self, index: int, agreeing: int) -> bool:
        return index >= agreeing - 1


@dataclass(frozen=True, slots=True)
class ModelMutant:
    """A fault of the rules, the world that shows it, and the claim that it breaks there."""

    name: str
    rules: Rules
    world: World
    breaks: str


_THREE = voters(0b111, 0b111, 0b111)
_FOUR = voters(0b1111, 0b1111, 0b1111, 0b1111)
_ONE_TERM = World("one term", _THREE, terms=1, entries=0)
_TWO_TERMS = World("two terms", _THREE, terms=2, entries=1)
_LED = replace(
    _TWO_TERMS,
    name="led",
    entries=1,
    opening=(("Timeout", 0), ("UpdateTerm", 1), ("Vote", 1), ("BecomeLeader", 0), ("AppendEntry", 0)),
)
"""Server 0 leads term 1, with one entry in its own log only."""
_TWO_LEADERS = World(
    "two leaders",
    _THREE,
    terms=4,
    entries=2,
    opening=(
        *(("Timeout", 0), ("UpdateTerm", 1), ("Vote", 1), ("BecomeLeader", 0), ("AppendEntry", 0)),
        *(("Timeout", 2), ("Timeout", 2), ("UpdateTerm", 1), ("Vote", 1), ("BecomeLeader", 2), ("AppendEntry", 2)),
    ),
)
"""Servers 0 and 2 have led the terms 1 and 2, with one entry each in their own logs only."""
_FIGURE_8 = replace(
    _TWO_LEADERS,
    name="figure 8 (c)",
    entries=1,
    opening=(
        *_TWO_LEADERS.opening,
        *(("Timeout", 0), ("Timeout", 0), ("UpdateTerm", 1), ("Vote", 1), ("BecomeLeader", 0)),
    ),
)
"""Server 0 leads again, in term 3."""
_REMOVED_TWICE = World(
    "two removals",
    _FOUR,
    terms=3,
    entries=1,
    changes=2,
    targets=voters(0b0111, 0b1110),
    opening=(
        *(("Timeout", 0), ("UpdateTerm", 1), ("Vote", 1), ("UpdateTerm", 2), ("Vote", 2), ("BecomeLeader", 0)),
        *(("ChangeServers", 0), ("Timeout", 1), ("UpdateTerm", 2), ("Vote", 2), ("UpdateTerm", 3)),
        *(("UpdateTerm", 3), ("Vote", 3), ("BecomeLeader", 1)),
    ),
)
"""Four servers: the first leader has removed the last server, in its own log only, when another leader is elected."""

MUTANTS = (
    ModelMutant("old-term-by-counting", _OldTermByCounting(), _FIGURE_8, "Leader Completeness"),
    ModelMutant("vote-twice", _VoteTwice(), _ONE_TERM, "Election Safety"),
    ModelMutant("vote-forgotten", _VoteForgotten(), replace(_ONE_TERM, crashes=1), "Election Safety"),
    ModelMutant(
        "vote-before-durable", _SentBeforeDurable(), replace(_ONE_TERM, crashes=1, late_votes=True), "Election Safety"
    ),
    ModelMutant(
        "acknowledged-before-durable", _SentBeforeDurable(), replace(_TWO_TERMS, crashes=1), "Majority Reached"
    ),
    ModelMutant("vote-for-any-log", _VoteForAnyLog(), _TWO_TERMS, "Leader Completeness"),
    ModelMutant("longer-log-wins", _LongerLogWins(), _TWO_LEADERS, "Leader Completeness"),
    ModelMutant("minority-commits", _MinorityCommits(), _TWO_TERMS, "Majority Reached"),
    ModelMutant("half-is-enough", _HalfIsEnough(), replace(_TWO_TERMS, initial=voters(0b11, 0b11)), "Election Safety"),
    ModelMutant("match-by-index-only", _MatchByIndexOnly(), _TWO_LEADERS, "Log Matching"),
    ModelMutant("cut-before-every-append", _CutBeforeEveryAppend(), replace(_TWO_TERMS, entries=2), "Majority Reached"),
    ModelMutant(
        "commit-beyond-match",
        _CommitBeyondMatch(),
        replace(_TWO_LEADERS, terms=2, entries=1, learns=True),
        "State Machine Safety",
    ),
    ModelMutant(
        "change-during-change",
        _ChangeDuringChange(),
        replace(_LED, entries=3, changes=2, targets=voters(0b011, 0b001)),
        "Leader Completeness",
    ),
    ModelMutant("change-before-own-commit", _ChangeBeforeOwnCommit(), _REMOVED_TWICE, "Leader Completeness"),
    ModelMutant(
        "always-directly",
        _AlwaysDirectly(),
        replace(_TWO_TERMS, entries=2, changes=1, targets=voters(0b001)),
        "Leader Completeness",
    ),
    ModelMutant(
        "joint-majority-of-the-union",
        _MajorityOfTheUnion(),
        replace(_TWO_TERMS, initial=voters(0b001, 0, 0), entries=3, changes=1, targets=((0b110, 0b001),)),
        "Majority Reached",
    ),
    ModelMutant(
        "joint-majority-of-the-new",
        _MajorityOfTheNew(),
        replace(_TWO_TERMS, entries=3, changes=1, targets=((0b001, 0b111),)),
        "Majority Reached",
    ),
    ModelMutant("fetch-cuts-agreement", _CutsAgreement(), replace(_LED, entries=2, fetches=True), "Majority Reached"),
    ModelMutant("fetch-by-offset-only", _MatchByIndexOnly(), replace(_TWO_LEADERS, fetches=True), "Log Matching"),
)
