"""Runs a Raft story: a text file of commands, each with the exact effects that it must have.

A paragraph is a command line, a line of four dashes, and the effects; `#` begins a comment. Only commands cause events:
messages wait for delivery, and clocks stop until a command advances them. A command is a method `_do_…` of `Story`,
whose docstring has an example; brackets contain optional words. Effects have these forms:

    1: persist term 2 vote 1; from 3 cut; 3..4 of terms 2 2        effects: server 1's actions
    1->2: append term 2 after 2/1 of terms 2, commit 1             a sent message; `(held)` if it waits for the disk
"""

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import assert_never

from msgspec.structs import replace

from consensus.core.effects import (
    Announcement,
    Answer,
    Apply,
    CheckSnapshot,
    Compact,
    ConfigurationChanged,
    ConfigurationResolved,
    Effect,
    Halt,
    Install,
    Persist,
    ProposalAccepted,
    ProposalResolved,
    ReadEntries,
    ReadReady,
    ReadRefused,
    ReadSnapshot,
    Restore,
    RoleChanged,
    Send,
    SnapshotEffect,
    StoreChunk,
    TakeSnapshot,
    TransferEnded,
)
from consensus.core.events import (
    ChangeConfiguration,
    DeadlineReached,
    Event,
    PeerExtensions,
    Persisted,
    Proposed,
    ReadRequested,
    Received,
    SnapshotChecked,
    SnapshotRead,
    SnapshotTaken,
    SnapshotWanted,
    TransferLeadership,
)
from consensus.core.features import GARLIC_FARM, KRAFT, KRAFT_STATIC, Extensions
from consensus.core.log import describe_entries
from consensus.core.messages import (
    AppendAnswer,
    AppendEntries,
    AppendReply,
    AppendRequest,
    FetchMessage,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import Configuration, Entry, HardState, LogId, Server, SnapshotDescription, Term, integer_id
from consensus.core.options import lan
from consensus.core.raft import Raft
from tests.scenarios import fetch_words

Link = tuple[int, int]
DEADLINES_MAX = 10
_IMAGE = b"0123456789"
"""A snapshot's bytes; chunks have six."""
PrintableEffect = Apply | ReadEntries | Answer | Announcement | Halt | SnapshotEffect


@dataclass
class Actor:
    """One server of a story."""

    core: Raft
    entries: list[Entry]
    hard_state: HardState
    now: int = 0
    slow: bool = False
    durable: int = 0
    persists: list[Persist] = field(default_factory=list)
    snapshot_reads: list[ReadSnapshot | CheckSnapshot] = field(default_factory=list)
    held: list[Send] = field(default_factory=list)


class Story:
    """The group of one story, and its messages in transit."""

    def __init__(self) -> None:
        self._actors: dict[int, Actor] = {}
        self._down: dict[int, tuple[list[Entry], HardState]] = {}
        self._features = GARLIC_FARM
        self._configuration = Configuration(())
        self._extensions = Extensions()
        self._request_count = 0
        self._options = replace(lan(), commit_notice_ms=0, snapshot_chunk_bytes=6)
        self._wire: list[tuple[Link, Message]] = []
        self._cut: set[Link] = set()
        self._lines: list[str] = []
        self._joining: set[int] = set()
        self._proposals = 0
        self._changes = 0

    def perform(self, line: str) -> list[str]:
        """Run one command; return the effects."""
        self._lines = []
        verb, *words = line.split()
        getattr(self, f"_do_{verb}")(words)
        return self._lines

    def _do_servers(self, words: list[str]) -> None:
        """`servers 1 2 3`: make a group with empty logs.

        `without pre-vote`: the handshakes did not agree on it. `without transfer`: no server supports TimeoutNow. `with
        leases`: the clock bound is half a minimum election timeout. `one entry at a time`: appends have one entry.
        `fetching`: the followers fetch (`fetch_words`); `fetching static`: the log never has the voters.
        """
        options = [word.rstrip(",") for word in words]
        fetching = KRAFT_STATIC if "static" in options else KRAFT
        self._features = fetching if "fetching" in options else GARLIC_FARM
        self._extensions = Extensions("pre-vote" not in options, "transfer" not in options, configurations=True)
        if "leases" in options:
            self._options = replace(self._options, lease_clock_bound_ms=lan().election_timeout_min_ms // 2)
            self._extensions = replace(self._extensions, lease_ms=self._options.lease_promise_ms)
        if "one" in words:
            self._options = replace(self._options, max_entries_per_append=1)
        ids = [int(word) for word in words if word.isdigit()]
        self._configuration = Configuration(_servers(words))
        for number in ids:
            self._start(number, [], HardState(0))

    def _do_empty(self, words: list[str]) -> None:
        """`empty 4`: start servers with an empty log and without a configuration."""
        for word in words:
            self._joining.add(int(word))
            self._start(int(word), [], HardState(0))

    def _do_log(self, words: list[str]) -> None:
        """`log 2 terms 1 1 4 4 current-term 4 [vote 1]`: start a server with this log and hard state."""
        number, rest = int(words[0]), words[2:]
        terms = [int(word) for word in rest[: rest.index("current-term")]]
        vote = int(rest[rest.index("vote") + 1]) if "vote" in rest else None
        entries = [Entry.command(term, f"{index}.{term}".encode()) for index, term in enumerate(terms, start=1)]
        self._start(number, entries, HardState(int(rest[rest.index("current-term") + 1]), vote))

    def _do_expire(self, words: list[str]) -> None:
        """`expire 1`: advance the clock until a deadline has an effect; a leader's may come before anything is due."""
        actor, count = self._actors[int(words[0])], len(self._lines)
        for _ in range(DEADLINES_MAX):
            actor.now = actor.core.deadline
            self._step(int(words[0]), DeadlineReached())
            if len(self._lines) > count:
                break

    def _do_campaign(self, words: list[str]) -> None:
        """`campaign 1`: advance the clock to the deadline of the election timer, past earlier deadlines."""
        actor = self._actors[int(words[0])]
        actor.now = max(actor.now, actor.core._role.current.deadline)
        self._step(int(words[0]), DeadlineReached())

    def _do_pass(self, words: list[str]) -> None:
        """`pass 1 500`: advance the clock by 500 ms, and check the timer."""
        actor = self._actors[int(words[0])]
        actor.now += int(words[1])
        self._step(int(words[0]), DeadlineReached())

    def _do_fade(self, words: list[str]) -> None:
        """`fade 1 2 3`: advance the clocks by a minimum election timeout, without a check of timers."""
        for word in words:
            self._actors[int(word)].now += lan().election_timeout_min_ms

    def _do_propose(self, words: list[str]) -> None:
        """`propose 1 x`: submit the command x to server 1."""
        self._proposals += 1
        self._step(
            int(words[0]), Proposed(proposal_id=self._proposals, commands=tuple(word.encode() for word in words[1:]))
        )

    def _do_change(self, words: list[str]) -> None:
        """`change 1 to 2 3 4 [learners 5]`: request this configuration from server 1."""
        self._changes += 1
        at = words.index("learners") if "learners" in words else len(words)
        target = Configuration(_servers(words[2:at]), (), _servers(words[at + 1 :]))
        self._step(int(words[0]), ChangeConfiguration(self._changes, target))

    def _do_read(self, words: list[str]) -> None:
        """`read 1`: request a linearizable read from server 1."""
        self._request_count += 1
        self._step(int(words[0]), ReadRequested(self._request_count))

    def _do_transfer(self, words: list[str]) -> None:
        """`transfer 1 [2]`: transfer leadership from server 1, to server 2 if it is named."""
        self._request_count += 1
        target = int(words[1]) if len(words) > 1 else None
        self._step(int(words[0]), TransferLeadership(self._request_count, target))

    def _do_deliver(self, words: list[str]) -> None:
        """`deliver [1->2]`: let the waiting messages on these links arrive, or all of them, once."""
        links = {_link(word) for word in words}
        arriving = [(link, message) for link, message in self._wire if not links or link in links]
        self._wire = [(link, message) for link, message in self._wire if links and link not in links]
        for link, message in arriving:
            self._arrive(link, message)

    def _do_repeat(self, words: list[str]) -> None:
        """`repeat 1->2`: let copies of the waiting messages on these links arrive, newest first."""
        links = {_link(word) for word in words}
        for link, message in reversed([waiting for waiting in self._wire if waiting[0] in links]):
            self._arrive(link, message)

    def _do_settle(self, _words: list[str]) -> None:
        """`settle`: deliver until no message waits."""
        while self._wire:
            self._arrive(*self._wire.pop(0))

    def _do_lose(self, words: list[str]) -> None:
        """`lose [1->2]`: drop the waiting messages on these links, or all of them."""
        links = {_link(word) for word in words}
        self._wire = [(link, message) for link, message in self._wire if links and link not in links]

    def _do_cut(self, words: list[str]) -> None:
        """`cut 1 2` or `cut 1->2`: let links lose their messages, in both directions or in one."""
        if "->" in words[0]:
            self._cut |= {_link(word) for word in words}
        else:
            one, other = int(words[0]), int(words[1])
            self._cut |= {(one, other), (other, one)}

    def _do_mend(self, _words: list[str]) -> None:
        """`mend`: let all links work again."""
        self._cut.clear()

    def _do_compact(self, words: list[str]) -> None:
        """`compact 1 4`: take a snapshot of server 1 at index 4, and drop the log up to there."""
        number, index = int(words[0]), int(words[1])
        self._step(number, SnapshotWanted(index))
        last = LogId(index, self._actors[number].core._replica.log.term_at(index) or 0)
        self._step(number, SnapshotTaken(self._description(last), index + 1))

    def _description(self, last: LogId) -> SnapshotDescription:
        return SnapshotDescription(last, self._configuration, len(_IMAGE), 0)

    def _do_slow(self, words: list[str]) -> None:
        """`slow 1`: delay the writes of a disk."""
        self._actors[int(words[0])].slow = True

    def _do_sync(self, words: list[str]) -> None:
        """`sync 1`: complete the writes of a disk, from now on immediately."""
        self._actors[int(words[0])].slow = False
        self._sync(int(words[0]))

    def _do_crash(self, words: list[str]) -> None:
        """`crash 1`: drop the volatile state of a server, and stop it."""
        actor = self._actors.pop(int(words[0]))
        self._down[int(words[0])] = (actor.entries, actor.hard_state)

    def _do_start(self, words: list[str]) -> None:
        """`start 1`: start a stopped server with its durable state."""
        self._start(int(words[0]), *self._down.pop(int(words[0])))

    def _do_logs(self, _words: list[str]) -> None:
        """Show the terms in each log, and the commit index: `logs`."""
        for number, actor in self._actors.items():
            about = actor.core.describe()
            first = about.log_start.index + 1
            terms = [actor.core._replica.log.term_at(index) or 0 for index in range(first, about.last.index + 1)]
            after = f" after {_position(about.log_start)}" if about.log_start.index else ""
            self._lines.append(f"{number}: terms {_terms(terms)}{after}, commit {about.commit_index}")

    def _do_roles(self, _words: list[str]) -> None:
        """Show role, term and leader of each server: `roles`."""
        for number, actor in self._actors.items():
            about = actor.core.describe()
            self._lines.append(f"{number}: {about.role.value} term {about.term}, leader {about.leader or 'unknown'}")

    def _start(self, number: int, entries: list[Entry], hard_state: HardState) -> None:
        core = Raft(
            number,
            Configuration(()) if number in self._joining else self._configuration,
            hard_state,
            describe_entries(entries),
            replace(self._options, check_invariants=True),
            self._features,
            Random(number),
            0,
        )
        self._actors[number] = Actor(core, list(entries), hard_state)
        for server in self._configuration.voters:
            if server.server_id != number:
                core.step(PeerExtensions(server.server_id, self._extensions), 0)

    def _arrive(self, link: Link, message: Message) -> None:
        sender, recipient = link
        if recipient in self._actors and link not in self._cut:
            self._step(recipient, Received(sender, message))

    def _step(self, number: int, event: Event) -> None:
        actor = self._actors[number]
        for effect in actor.core.step(event, actor.now):
            self._lines.append(self._perform(number, actor, effect))
        if not actor.slow:
            self._sync(number)

    def _sync(self, number: int) -> None:
        actor = self._actors[number]
        while actor.persists or actor.snapshot_reads:
            if not actor.persists:
                self._answer(number, actor.snapshot_reads.pop(0))
                continue
            persist = actor.persists.pop(0)
            actor.hard_state = persist.hard_state or actor.hard_state
            if persist.truncate_from is not None:
                del actor.entries[persist.truncate_from - 1 :]
            actor.entries.extend(persist.entries)
            actor.durable = persist.number
            released = [send for send in actor.held if send.after <= actor.durable]
            actor.held = [send for send in actor.held if send.after > actor.durable]
            for send in released:
                self._wire.append(((number, integer_id(send.recipient)), send.message))
            self._step(number, Persisted(persist.number))

    def _answer(self, number: int, read: ReadSnapshot | CheckSnapshot) -> None:
        """Complete a read of a chunk of a sent snapshot, or a check of a received snapshot."""
        match read:
            case ReadSnapshot(request_id=request_id, last=last, offset=offset, limit_bytes=limit):
                data = _IMAGE[offset : offset + limit]
                self._step(
                    number,
                    SnapshotRead(
                        request_id=request_id, last=last, offset=offset, data=data, done=offset + limit >= len(_IMAGE)
                    ),
                )
            case CheckSnapshot(request_id, last):
                self._step(number, SnapshotChecked(request_id, self._description(last)))

    def _perform(self, number: int, actor: Actor, effect: Effect) -> str:
        match effect:
            case Persist():
                actor.persists.append(effect)
                return f"{number}: persist {_persist(effect)}"
            case Send(recipient, message, after):
                if after <= actor.durable:
                    self._wire.append(((number, integer_id(recipient)), message))
                else:
                    actor.held.append(effect)
                held = " (held)" if after > actor.durable and actor.slow else ""
                return f"{number}->{recipient}: {_message(message)}{held}"
            case ReadSnapshot() | CheckSnapshot():
                actor.snapshot_reads.append(effect)
                return f"{number}: {_sentence(effect)}"
            case _:
                return f"{number}: {_sentence(effect)}"


def run_story(path: Path) -> tuple[str, str]:
    """Return the text of the file, and the actual effects in the same form."""
    story = Story()
    expected = path.read_text(encoding="utf-8")
    happened: list[str] = []
    lines = iter(expected.splitlines())
    for line in lines:
        happened.append(line)
        if not line or line.startswith("#"):
            continue
        happened.append("----")
        happened += story.perform(line)
        happened.append("")
        for skipped in lines:
            if not skipped:
                break
    return expected, "\n".join(happened).rstrip() + "\n"


def _sentence(effect: PrintableEffect) -> str:  # noqa: PLR0911 - one sentence per kind of effect
    match effect:
        case Apply(first, entries):
            return f"apply {_range(first, entries)}"
        case ReadEntries(first=first, last=last):
            return f"read {first}..{last}"
        case ProposalAccepted(proposal_id, position):
            return f"proposal {proposal_id} accepted at {_position(position)}"
        case ProposalResolved() | ConfigurationResolved() | ConfigurationChanged() | RoleChanged():
            return _announcement(effect)
        case ReadReady(read_id, index):
            return f"read {read_id} ready at {index}"
        case ReadRefused(read_id, reason, leader):
            return f"read {read_id} refused, {reason.value}, leader {leader or 'unknown'}"
        case TransferEnded(transfer_id, transferred, leader):
            return f"transfer {transfer_id} {transferred.value}, leader {leader or 'unknown'}"
        case TakeSnapshot() | ReadSnapshot() | CheckSnapshot() | Restore():
            return _snapshot_sentence(effect)
        case Halt(reason):
            return f"halt: {reason}"
        case _:
            assert_never(effect)


def _snapshot_sentence(effect: SnapshotEffect) -> str:
    match effect:
        case TakeSnapshot(last):
            return f"take a snapshot of {_position(last)}"
        case ReadSnapshot(last=last, offset=offset):
            return f"read the snapshot of {_position(last)} from byte {offset}"
        case CheckSnapshot(_, last):
            return f"check the snapshot of {_position(last)}"
        case Restore(snapshot):
            return f"restore the state machine from {_position(snapshot.last)}"
        case _:
            assert_never(effect)


def _link(word: str) -> Link:
    sender, recipient = word.split("->")
    return int(sender), int(recipient)


def _position(position: LogId) -> str:
    return f"{position.index}/{position.term}"


def _announcement(effect: ProposalResolved | ConfigurationResolved | ConfigurationChanged | RoleChanged) -> str:
    match effect:
        case ProposalResolved(proposal_id=proposal_id, outcome=outcome, position=position, leader=leader):
            where = f" at {_position(position)}" if position else ""
            return f"proposal {proposal_id} {outcome.value}{where}, leader {leader or 'unknown'}"
        case ConfigurationResolved(outcome=changed, refusal=refusal, position=position):
            reason = f": {refusal.value}" if refusal else ""
            where = f" at {_position(position)}" if position else ""
            return f"change {changed.value}{where}{reason}"
        case ConfigurationChanged(configuration, newcomers):
            return f"members {_members(configuration, newcomers)}"
        case RoleChanged(role, term, leader):
            return f"{role.value} term {term}, leader {leader or 'unknown'}"


def _servers(words: list[str]) -> tuple[Server, ...]:
    return tuple(Server(int(word), f"tcp://{word}") for word in words if word.isdigit())


def _ids(servers: tuple[Server, ...]) -> str:
    return " ".join(str(server.server_id) for server in servers) or "none"


def _members(configuration: Configuration, newcomers: tuple[Server, ...]) -> str:
    parts = [_ids(configuration.voters)]
    if configuration.is_joint:
        parts = [f"{_ids(configuration.old_voters)} and {_ids(configuration.voters)}"]
    if configuration.learners:
        parts.append(f"learners {_ids(configuration.learners)}")
    if newcomers:
        parts.append(f"newcomers {_ids(newcomers)}")
    return ", ".join(parts)


def _terms(terms: list[Term]) -> str:
    return " ".join(map(str, terms)) if terms else "none"


def _range(first: int, entries: tuple[Entry, ...]) -> str:
    last = first + len(entries) - 1
    return f"{first}..{last} of terms {_terms([entry.term for entry in entries])}"


def _persist(persist: Persist) -> str:
    parts = []
    if persist.hard_state is not None:
        parts.append(f"term {persist.hard_state.term} vote {persist.hard_state.voted_for or 'none'}")
    if persist.truncate_from is not None:
        parts.append(f"cut from {persist.truncate_from}")
    if persist.entries:
        parts.append(_range(persist.first, persist.entries))
    match persist.snapshot:
        case StoreChunk(last, offset, data):
            parts.append(f"bytes {offset}..{offset + len(data)} of the snapshot of {_position(last)}")
        case Install(snapshot):
            parts.append(f"the snapshot of {_position(snapshot.last)} in place of the log")
        case Compact(snapshot, first_kept):
            parts.append(f"the snapshot of {_position(snapshot.last)}; the log from {first_kept} on")
        case None:
            pass
    return "; ".join(parts)


def _message(message: Message) -> str:
    return fetch_words.words_of(message) if isinstance(message, FetchMessage) else _append_sentence(message)


def _append_sentence(message: RequestVote | VoteReply | AppendRequest | AppendAnswer) -> str:  # noqa: PLR0911 - one sentence per kind of message
    match message:
        case RequestVote(term=term, last=last, pre_vote=pre_vote, transfer=transfer):
            kind = "pre-vote" if pre_vote else "transfer vote" if transfer else "vote"
            return f"{kind}? term {term}, last {_position(last)}"
        case TimeoutNow(term):
            return f"timeout now, term {term}"
        case TimeoutNowReply(term, accepted):
            return f"timeout now {'accepted' if accepted else 'refused'}, term {term}"
        case VoteReply(term=term, granted=granted, pre_vote=pre_vote):
            return f"{'pre-vote' if pre_vote else 'vote'} {'granted' if granted else 'refused'}, term {term}"
        case AppendEntries(term=term, previous=previous, entries=entries, commit=commit):
            what = f"append of terms {_terms([entry.term for entry in entries])}" if entries else "heartbeat"
            return f"{what}, term {term}, after {_position(previous)}, commit {commit}"
        case InstallSnapshot(term=term, last=last, offset=offset, data=data, done=done):
            end = ", the last" if done else ""
            return f"snapshot of {_position(last)}, term {term}, bytes {offset}..{offset + len(data)}{end}"
        case SnapshotReply(term=term, accepted=accepted, next_offset=next_offset, installed=installed):
            what = "installed" if installed else "stored" if accepted else "refused"
            return f"snapshot {what}, next {next_offset}, term {term}"
        case AppendReply(term=term, success=success, next_index=next_index):
            return f"{'matched' if success else 'refused'}, next {next_index}, term {term}"
        case _:
            assert_never(message)
