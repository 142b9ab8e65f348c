"""Test bench of a leader whose group changes: peers store the received appends, and new servers catch up."""

from typing import Self

from consensus.core.effects import ConfigurationResolved, Effect, Persist, Role, Send
from consensus.core.events import ChangeConfiguration, Event
from consensus.core.messages import AppendEntries
from consensus.core.model import Configuration, Entry, Server, ServerId
from tests.spec.raft_bench import Bench


def servers(*numbers: int) -> tuple[Server, ...]:
    return tuple(Server(number, f"tcp://{number}") for number in numbers)


def plain(*numbers: int, learners: tuple[int, ...] = ()) -> Configuration:
    return Configuration(servers(*numbers), (), servers(*learners))


def joint(old: tuple[int, ...], new: tuple[int, ...]) -> Configuration:
    return Configuration(servers(*new), servers(*old))


class Group(Bench):
    """Server 1 of the voters 1 to `voters`. Records the last append to each peer and every reply to a change."""

    def __init__(self, *terms: int, **options: object) -> None:
        self.sent: dict[ServerId, AppendEntries] = {}
        self.answers: list[ConfigurationResolved] = []
        self.appended: list[Entry] = []
        super().__init__(*terms, **options)  # type: ignore[arg-type]  # the bench's own options, passed through

    def step(self, event: Event, after_ms: int = 0) -> list[Effect]:
        effects = super().step(event, after_ms)
        for effect in effects:
            match effect:
                case Send(recipient, AppendEntries() as append):
                    self.sent[recipient] = append
                case ConfigurationResolved():
                    self.answers.append(effect)
                case Persist(entries=entries):
                    self.appended += entries
                case _:
                    pass
        return effects

    def become_leader(self) -> Self:
        """Win the election, and commit the first entry of the term; return this bench."""
        self.lead()
        self.store(*sorted(self.about.configuration.voter_ids - {self.about.server_id}))
        assert self.about.commit_index == self.about.last.index
        return self

    def store(self, *peers: ServerId) -> None:
        """Let the peers store and acknowledge all sent entries, one peer after another."""
        for peer in peers:
            answered = None
            while self.sent[peer] is not answered:
                answered = self.sent[peer]
                self.matched(peer, answered)

    def bring_up(self, *newcomers: int) -> None:
        """Let servers with empty logs store the entries that were in the log when the leader first reached them."""
        for peer in newcomers:
            while peer not in self.sent:
                self.expire()
            self.refused(peer, self.sent[peer], hint=1)
            self.matched(peer, self.sent[peer])

    def pass_time(self, duration_ms: int, *answering: int) -> None:
        """Pass time while these peers reply to appends."""
        until = self.now + duration_ms
        while self.now < until and self.about.role is Role.LEADER:
            self.expire()
            self.store(*(peer for peer in answering if peer in self.sent))

    def change(self, target: Configuration, change_id: int = 1) -> None:
        self.step(ChangeConfiguration(change_id, target))

    @property
    def configuration(self) -> Configuration:
        return self.about.configuration

    @property
    def replicated_to(self) -> list[ServerId]:
        return [follower.server_id for follower in self.about.followers]


def in_joint_consensus() -> Group:
    """Return server 1 as the leader of 1 2 3, with C_old,new toward 3 4 5 that only its own log contains."""
    bench = Group().become_leader()
    bench.change(plain(3, 4, 5))
    bench.bring_up(4, 5)
    assert bench.configuration == joint((1, 2, 3), (3, 4, 5))
    return bench
