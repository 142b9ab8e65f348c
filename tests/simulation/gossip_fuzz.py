"""Fuzzing of gossip nodes with their complete wire layer: `python -m tests.simulation gossip-fuzz --count N`.

    a group settles ─▶ attackers with and without the key send ROUND datagrams ─▶ a burst of lies: no two nodes agree
                    ─▶ no attacks ─▶ all agree, and receive one another's events, within 20 periods

The checks: a datagram raises only the wire's one error, which `offer` returns as a reason. Datagrams without the key
are all refused, so nothing changes. With the key, the invariants of a core hold after every step. Every table remains
within its limit, and the process within its memory. Without the final burst the group would agree immediately, and the
required agreement would prove nothing. Each round has its own seed, which repeats it.
"""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from gossip.core.member import INCARNATION_LIMIT, Incarnation, NodeId, Status
from gossip.core.options import SwimOptions
from gossip.wire.identity import VERIFIED_LIMIT
from gossip.wire.seal import SALT_LIMIT, Sealed
from tests.simulation.fuzzing import FuzzError, print_lines, resident_mib
from tests.simulation.gossip_hostility import Liar, Outsider
from tests.simulation.gossip_wire_group import CAPACITY, WireGroup, WireNode

NODES = 5
ROUND = 2_000
SETTLING_MS = 3_000
PERIODS_TO_AGREE = 20
WORDS_EVERY_PERIODS = 4
LEAST_TORN = 0.9
"""Minimum share of groups that disagree after the burst; otherwise a later agreement proves nothing."""
DIRECTORY_LIMIT = 24
OPTIONS = replace(SwimOptions.loopback(), directory_limit=DIRECTORY_LIMIT, relays_limit=32)
MEMORY_GROWTH_LIMIT_MIB = 64


@dataclass(slots=True)
class Tally:
    """Statistics of the datagrams."""

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    periods: list[float] = field(default_factory=list)
    halted: int = 0
    torn: int = 0
    """Number of groups that disagreed when the lies ended."""

    def lines(self) -> list[str]:
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        longest = max(self.periods, default=0.0)
        median = sorted(self.periods)[len(self.periods) // 2] if self.periods else 0.0
        return [
            f"{self.sent:,} datagrams in {len(self.periods)} groups: {outcomes}",
            f"groups that disagreed after the lies: {self.torn} of {len(self.periods)}; halted copies: {self.halted}",
            f"agreed again after {median:.1f} periods at the median, {longest:.1f} at most (limit {PERIODS_TO_AGREE})",
        ]


def fuzz_round(random_seed: int, count: int, tally: Tally) -> None:
    """Send `count` datagrams to one group."""
    random = Random(random_seed)
    group = WireGroup(NODES, random_seed, OPTIONS)
    group.run(SETTLING_MS)
    if not group.agreed():
        raise FuzzError("the group did not form")
    group.forget_seeds()
    outsider, liar = Outsider(group, random), Liar(group, random)
    incarnations = {node.node_id: node.core.describe().self_info.incarnation for node in group.nodes}
    for _ in range(count):
        group.run(random.choice((0, 0, 1, 2, 5)))
        with_key = random.random() < 0.5
        node, source, datagram = (liar if with_key else outsider).datagram()
        refusal = group.offer(node, datagram, source)
        tally.sent += 1
        tally.outcomes[f"{'liar' if with_key else 'outsider'}: {refusal.value if refusal else 'accepted'}"] += 1
        if refusal is None:
            if not with_key:
                raise FuzzError("a datagram without the key was accepted")
            _check(node, incarnations)
    for node, source, datagram in liar.burst():
        refusal = group.offer(node, datagram, source)
        tally.sent += 1
        tally.outcomes[f"burst: {refusal.value if refusal else 'accepted'}"] += 1
    for node in group.nodes:
        _check(node, incarnations)
    tally.torn += not group.agreed()
    tally.periods.append(_periods_until_agreed(group))
    tally.halted += sum(node.core.describe().halted for node in group.nodes)


def _periods_until_agreed(group: WireGroup) -> float:
    began = group.now
    words: list[set[bytes]] = []
    while not (group.agreed() and any(all(sent <= node.words for node in group.running) for sent in words)):
        if group.now - began > PERIODS_TO_AGREE * OPTIONS.probe_period_ms:
            agreed = "agreed, but events are not received" if group.agreed() else "no agreement"
            raise FuzzError(f"{agreed} {PERIODS_TO_AGREE} periods after the last lie: {_views(group)}")
        if len(words) * WORDS_EVERY_PERIODS * OPTIONS.probe_period_ms <= group.now - began:
            words.append(_send_events(group, len(words)))
        group.run(OPTIONS.probe_period_ms // 5)
    return (group.now - began) / OPTIONS.probe_period_ms


def _send_events(group: WireGroup, turn: int) -> set[bytes]:
    """Send one event from each node; return the payloads, each already recorded at its sender."""
    payloads = {node.node_id: b"%d " % turn + node.node_id for node in group.running}
    for node in group.running:
        node.words.add(payloads[node.node_id])
        group.send_event(node, payloads[node.node_id])
    return set(payloads.values())


def _views(group: WireGroup) -> str:
    names = {node.node_id: index for index, node in enumerate(group.nodes)}
    return "; ".join(
        f"{index} sees "
        + ", ".join(
            f"{names[member.node_id]} {member.status.name} {member.incarnation}"
            for member in node.core.describe().members
            if member.node_id in names
        )
        for index, node in enumerate(group.nodes)
    )


def _check(node: WireNode, incarnations: dict[NodeId, Incarnation]) -> None:
    core = node.core
    description = core.describe()
    own = description.self_info
    members = description.members
    suspects = {member.node_id for member in members if member.status is Status.SUSPECT}
    peers = [member for member in members if member.is_peer]
    envelope = node.codec._envelope
    holds = {
        "a node is no member of its own directory": own.node_id not in {member.node_id for member in members},
        "its own incarnation only rises": own.incarnation >= incarnations[own.node_id],
        "its own incarnation stays on the scale": max(own.incarnation.generation, own.incarnation.number)
        < INCARNATION_LIMIT,
        "peers within capacity": len(peers) == description.peer_count <= CAPACITY,
        "peers live": all(peer.status in {Status.ALIVE, Status.SUSPECT} for peer in peers),
        "the directory within its limit": len(members) <= DIRECTORY_LIMIT,
        "each suspect has its clock": set(core._updates._suspicions) == suspects,
        "joins within their limit": description.joins_in_flight <= OPTIONS.joins_in_flight,
        "seeds within their limit": description.seed_count <= OPTIONS.seeds_limit,
        "relays within their limit": len(core._prober._relays.passed_on) <= OPTIONS.relays_limit,
        "user messages within their limit": len(core._user_events.queue) <= OPTIONS.user_messages_limit,
        "received messages within their limit": len(core._user_events._received) <= OPTIONS.user_messages_remembered,
        "questions within their limit": len(core._queries._open) <= OPTIONS.queries_limit,
        "the keyring is sound": core.keyring is not None and core.keyring.is_sound(),
        "news within the directory": len(core._queue.queued) <= DIRECTORY_LIMIT + 2,
        "verified signatures within their limit": len(node.codec._verifier.verified) <= VERIFIED_LIMIT,
        "salts within their limit": isinstance(envelope, Sealed) and len(envelope._salts) <= SALT_LIMIT,
        "a deadline unless halted": (core.deadline is None) == description.halted,
    }
    incarnations[own.node_id] = own.incarnation
    for sentence, true in holds.items():
        if not true:
            raise FuzzError(f"{sentence}: broken at {own.address.host}")


def main(arguments: Sequence[str]) -> int:
    """Run rounds; return 0 if every check passed, else 1 after printing the command that repeats the failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation gossip-fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="number of datagrams (default 100000)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first round (default 0)")
    options = parser.parse_args(arguments)
    tally = Tally()
    began = reported_at = time.monotonic()
    settled_mib = 0.0
    seed = options.first
    while tally.sent < options.count:
        try:
            fuzz_round(seed, min(ROUND, options.count - tally.sent), tally)
        except Exception as error:  # noqa: BLE001 - any error is the result of the round
            print_lines([f"round {seed}: {type(error).__name__}: {error}", *tally.lines()])
            print_lines([f"again: python -m tests.simulation gossip-fuzz --count {ROUND} --first {seed}"])
            return 1
        seed += 1
        if not settled_mib and tally.sent >= options.count // 10:
            settled_mib = resident_mib()
        if time.monotonic() - reported_at > 30:
            reported_at = time.monotonic()
            print_lines([f"{tally.sent:,} of {options.count:,}, {reported_at - began:.0f} s, {resident_mib():.0f} MiB"])
    grown_mib = resident_mib() - settled_mib
    print_lines([*tally.lines(), f"{time.monotonic() - began:.0f} s; memory at most {resident_mib():.0f} MiB"])
    print_lines([f"memory grew by {grown_mib:.1f} MiB over the last nine tenths (limit {MEMORY_GROWTH_LIMIT_MIB})"])
    if tally.torn < LEAST_TORN * len(tally.periods):
        print_lines([f"fewer than {LEAST_TORN:.0%} of the groups disagreed after the burst: agreement proves nothing"])
        return 1
    return 0 if grown_mib <= MEMORY_GROWTH_LIMIT_MIB else 1
