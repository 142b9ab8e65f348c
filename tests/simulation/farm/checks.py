"""Checks of a trial: pure functions of the calls and the observer's record; each returns the violations.

acknowledged        each acknowledged write is committed at its index, and is the first with its request
linearizable        an order of writes and reads explains the results (`tests.simulation.consensus.linearizability`)
publications        at most one agreed structure per second and master; acceptable; signed by the master
exclusions          no structure has a leaf excluded by an entry that its publisher had applied, or by an earlier entry
views               the views of all members of a healthy farm agree with each other and with the members
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bridge.api.view import FarmView, RaftRole
from bridge.core.formation.member import MemberStatus
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.wire.i2p.meta_lease_set import LeaseSetError, check_acceptable_to_java_router, decode, verify
from bridge.wire.i2p.structures import address_of
from tests.simulation.consensus.linearizability import NOTHING, Operation, Verdict, judge
from tests.simulation.farm.workload import KEYS, Call, Kind, request_in, written_in

EXCLUSION_S: Final = 2.0
"""A publication may still have a leaf whose exclusion is more recent than this."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: a fault of the product, or of the harness."""

    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass(frozen=True, slots=True)
class Publication:
    """A structure that a router accepted."""

    at_s: float
    host: str
    master: bytes
    structure: bytes
    wall_s: float
    """The publisher's wall clock."""
    is_agreed: bool
    """True if the log has this publication. Without a quorum, each part of a farm publishes alone."""
    excluded: frozenset[str]
    """Leaves that the publisher has known as excluded for `EXCLUSION_S`, in base32."""
    excluded_before: frozenset[str] = frozenset()
    """Leaves that earlier entries of the log exclude, if it has this publication."""


@dataclass(frozen=True, slots=True)
class Write:
    """The first entry of a request in the log."""

    index: int
    key: int
    value: int
    before: int
    """The value of the key before it."""


def writes_in(committed: Mapping[int, tuple[int, int, bytes]]) -> dict[str, Write]:
    """Return the writes in the log by request, without repetitions."""
    values: dict[int, int] = {}
    writes: dict[str, Write] = {}
    for index in sorted(committed):
        data = committed[index][2]
        written = written_in(data)
        if written is None or (request := request_in(data)) in writes:
            continue
        key, value = written
        writes[request] = Write(index, key, value, values.get(key, NOTHING))
        values[key] = value
    return writes


def check_acknowledged(calls: Iterable[Call], writes: Mapping[str, Write]) -> Iterator[Violation]:
    """Find acknowledged writes that the log does not have, or has at another index."""
    for call in calls:
        if call.kind is not Kind.WRITE or not call.is_acknowledged or call.error:
            continue
        write = writes.get(call.request)
        if write is None:
            yield Violation("nothing acknowledged lost", f"{call.request} was acknowledged at {call.index}")
        elif write.index != call.index or write.value != call.value:
            yield Violation("acknowledged index", f"{call.request} was acknowledged at {call.index}, and is {write}")


def check_linearizable(calls: Iterable[Call], writes: Mapping[str, Write]) -> Iterator[Violation]:
    """Find a key whose writes and reads cannot be put in one order."""
    operations: list[Operation] = []
    for call in calls:
        if call.kind is Kind.WRITE and call.request:
            write = writes.get(call.request)
            before = None if write is None else write.before
            if write is None and call.is_acknowledged:
                continue  # reported by `check_acknowledged`
            answered = call.answered if write is not None else None
            operations.append(Operation(call.key, call.value, before, call.called, answered))
        elif call.kind is Kind.READ and call.is_acknowledged:
            # A read of all keys is a read of each key.
            operations.extend(
                Operation(key, None, call.found.get(key, NOTHING), call.called, call.answered) for key in range(KEYS)
            )
    judgment = judge(operations)
    if judgment.verdict is Verdict.CONTRADICTORY:
        yield Violation("linearizability", f"no order explains the calls on key {judgment.key}")


def check_publications(
    publications: Sequence[Publication], masters: frozenset[bytes], signers: frozenset[bytes]
) -> Iterator[Violation]:
    """Find structures that clients should not receive."""
    seconds: dict[tuple[bytes, int], Publication] = {}
    for each in publications:
        try:
            structure = decode(each.structure)
        except LeaseSetError as error:
            yield Violation("readable structure", f"{each.host} published bytes that are not one: {error}")
            continue
        verification = verify(structure)
        if not verification.holds or structure.destination.hash not in masters:
            yield Violation("signed by the master", f"{each.host} at {each.at_s:.1f} s: {verification.reason}")
        reasons = check_acceptable_to_java_router(structure, int(each.wall_s), None)
        if reasons:
            yield Violation("acceptable structure", f"{each.host} at {each.at_s:.1f} s: {'; '.join(reasons)}")
        signer = structure.offline
        if signers and (signer is None or signer.transient_key not in signers):
            yield Violation("admitted signer", f"{each.host} at {each.at_s:.1f} s signed with an unknown key")
        if not each.is_agreed:
            continue
        first = seconds.setdefault((each.master, structure.published_s), each)
        if first.structure != each.structure:
            yield Violation(
                "one structure per second",
                f"{first.host} at {first.at_s:.1f} s, {each.host} at {each.at_s:.1f} s: {structure.published_s}",
            )


def check_exclusions(publications: Iterable[Publication]) -> Iterator[Violation]:
    """Find structures with a leaf excluded by an entry that the publisher had applied, or by an earlier entry."""
    for each in publications:
        named = leaves_in(each.structure)
        for check, excluded in (("excluded leaf", each.excluded), ("earlier exclusion", each.excluded_before)):
            if wrong := sorted(named & excluded):
                yield Violation(check, f"{each.host} at {each.at_s:.1f} s publishes {wrong[0]}")


def leaves_in(structure: bytes) -> set[str]:
    return {base32_of(lease.destination_hash) for lease in decode(structure).leases}


def objection_to_views(views: Mapping[str, FarmView], members: Collection[str]) -> str | None:
    """Return the reason why the views of a healthy farm are not true; None if they are."""
    leaders = {view.raft.leader_name for view in views.values()}
    if len(leaders) != 1 or not leaders <= views.keys():
        return f"the leader is one of {sorted(map(str, leaders))}"
    if views[leader := str(*leaders)].raft.role is not RaftRole.LEADER:
        return f"{leader} leads, and its role is {views[leader].raft.role.value}"
    if len(found := {tuple(each.publisher_name for each in view.publishing) for view in views.values()}) != 1:
        return f"the publishers are one of {sorted(map(str, found))}"
    for name, view in views.items():
        present = {each.name for each in view.members if each.status is MemberStatus.ALIVE}
        servers = {each.name for each in (*view.raft.voters, *view.raft.learners)}
        if present != set(members) or servers != set(members):
            return f"{name} has the members {sorted(present)} and the servers {sorted(map(str, servers))}"
        if view.farm.level != SUPPORTED_LEVEL:
            return f"{name} is at level {view.farm.level}"
    return None


def base32_of(leaf_hash: bytes) -> str:
    return address_of(leaf_hash).removesuffix(".b32.i2p")
