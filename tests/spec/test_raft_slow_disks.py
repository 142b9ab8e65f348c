"""A leader keeps its role with slow disks: followers reply immediately with the durable entries, while a disk writes.

The setup is three cores, a network of 1 ms, and disks that write one group of entries at a time, with LAN timings.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import pairwise
from random import Random

import pytest

from consensus.core.effects import Effect, Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, Event, PeerExtensions, Persisted, Proposed, Received
from consensus.core.features import GARLIC_FARM, KRAFT, Extensions, Features
from consensus.core.log import describe_entries
from consensus.core.messages import Fetch, Message
from consensus.core.model import HardState, ServerId
from consensus.core.options import lan
from consensus.core.raft import Raft
from tests.spec.raft_bench import ONE, THREE, TWO, entries_of, group

SLOW_MS = 1_600
"""Longer than the minimum election timeout, shorter than the maximum."""
STRATEGIES = pytest.mark.parametrize("features", [GARLIC_FARM, KRAFT], ids=["append", "fetch"])


class Disk:
    """A disk that writes all waiting entries as one group after each write."""

    def __init__(self) -> None:
        self.delay_ms = 1
        self.durable = 0
        self.emitted = 0
        self.writes = False
        self.held: deque[Send] = deque()


class Group:
    """Servers 1 to 3; server 1 campaigns first."""

    def __init__(self, features: Features) -> None:
        self.now = 0
        self.cores: dict[ServerId, Raft] = {}
        self.disks: dict[ServerId, Disk] = {server: Disk() for server in (ONE, TWO, THREE)}
        self.fetches: list[tuple[int, ServerId, Fetch]] = []
        self.resolved: list[ProposalResolved] = []
        self.terms: set[int] = set()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        for server in (ONE, TWO, THREE):
            began_ms = 0 if server == ONE else 500
            log, random = describe_entries(entries_of()), Random(server)
            self.cores[server] = Raft(server, group(3), HardState(0), log, lan(), features, random, began_ms)
        for each in (ONE, TWO, THREE):
            for peer in self.cores.keys() - {each}:
                self.step(each, PeerExtensions(peer, Extensions(pre_vote=True, configurations=True)))

    def at(self, due_ms: int, act: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._agenda, (due_ms, self._number, act))

    def run(self, until_ms: int) -> None:
        """Pass time until `until_ms`."""
        while self.now < until_ms:
            due = min(core.deadline for core in self.cores.values())
            if self._agenda and self._agenda[0][0] <= min(due, until_ms):
                self.now, _, act = heappop(self._agenda)
                act()
            elif due <= until_ms:
                self.now = max(self.now, due)
                server = min(self.cores, key=lambda each: self.cores[each].deadline)
                self.step(server, DeadlineReached())
            else:
                self.now = until_ms

    def step(self, server: ServerId, event: Event) -> None:
        self._carry_out(server, self.cores[server].step(event, self.now))

    @property
    def leaders(self) -> list[ServerId]:
        return [server for server, core in self.cores.items() if core.describe().role is Role.LEADER]

    def _carry_out(self, server: ServerId, effects: list[Effect]) -> None:
        disk = self.disks[server]
        for effect in effects:
            if isinstance(effect, Persist):
                disk.emitted = effect.number
                self._write(server)
            elif isinstance(effect, Send):
                disk.held.append(effect)
            elif isinstance(effect, ProposalResolved):
                self.resolved.append(effect)
        self._send_held(server)

    def _write(self, server: ServerId) -> None:
        disk = self.disks[server]
        if disk.writes or disk.durable == disk.emitted:
            return
        disk.writes, number = True, disk.emitted

        def done() -> None:
            disk.writes, disk.durable = False, number
            self._send_held(server)
            self.step(server, Persisted(number))
            self._write(server)

        self.at(self.now + disk.delay_ms, done)

    def _send_held(self, server: ServerId) -> None:
        disk = self.disks[server]
        still_held = [send for send in disk.held if send.after > disk.durable]
        for send in [send for send in disk.held if send.after <= disk.durable]:
            self._send(server, send.recipient, send.message)
        disk.held = deque(still_held)

    def _send(self, sender: ServerId, recipient: ServerId, message: Message) -> None:
        self.terms.add(message.term)
        if isinstance(message, Fetch):
            self.fetches.append((self.now, sender, message))
        self.at(self.now + 1, lambda: self.step(recipient, Received(sender, message)))


def group_with_slow_followers(features: Features) -> Group:
    """Return a group with server 1 as leader, whose followers have slow disks."""
    found = Group(features)
    found.run(until_ms=4_000)
    (leader,) = found.leaders
    for server in found.cores.keys() - {leader}:
        found.disks[server].delay_ms = SLOW_MS
    found.terms.clear()
    return found


@STRATEGIES
@pytest.mark.parametrize("every_ms", [20, 90, 400, 2_000])
def test_leader_commits_while_followers_write_slowly(features: Features, every_ms: int) -> None:
    found = group_with_slow_followers(features)
    (leader,) = found.leaders
    term = found.cores[leader].describe().term
    began_ms, proposed = found.now, 0
    while found.now < began_ms + 30_000:
        proposed += 1
        found.step(leader, Proposed(proposal_id=proposed, commands=(b"x",)))
        found.run(found.now + every_ms)
    found.run(found.now + 4 * SLOW_MS)
    assert found.leaders == [leader]
    assert found.terms == {term}
    assert [answer.outcome for answer in found.resolved] == [Outcome.COMMITTED] * proposed


def test_follower_with_slow_disk_fetches_from_durable_end() -> None:
    found = group_with_slow_followers(KRAFT)
    (leader,) = found.leaders
    found.fetches.clear()
    for disk in found.disks.values():
        disk.delay_ms = 10_000
    durable = found.cores[TWO].describe().durable_index
    found.step(leader, Proposed(proposal_id=1, commands=(b"x",)))
    began_ms = found.now
    found.run(began_ms + 4_500)
    fetches = [(when, fetch) for when, server, fetch in found.fetches if server == TWO and when > began_ms + 10]
    assert {fetch.position.index for _, fetch in fetches} == {durable}
    times = [began_ms, *(when for when, _ in fetches), began_ms + 4_500]
    longest = max(later - earlier for earlier, later in pairwise(times))
    assert longest <= lan().election_timeout_min_ms // 2


@STRATEGIES
def test_leader_resigns_when_followers_never_write(features: Features) -> None:
    found = group_with_slow_followers(features)
    (leader,) = found.leaders
    for disk in found.disks.values():
        disk.delay_ms = 1_000_000
    found.step(leader, Proposed(proposal_id=1, commands=(b"x",)))
    stalled_ms = lan().stall_timeout_ms
    found.run(found.now + stalled_ms - 1)
    assert found.leaders == [leader]
    found.run(found.now + 1)
    assert found.leaders == []
    assert [answer.outcome for answer in found.resolved] == [Outcome.UNKNOWN]
