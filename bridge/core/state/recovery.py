"""The first state of a new cluster, made from the state of one survivor of an old cluster.

    old farm of A, B, C ──▶ B's state ──▶ new cluster of B alone: Raft id 1, publications, weights, log time

Each cluster counts its Raft ids from 1 again. An id is valid only together with the cluster id, which every connection
names. A node never opens the storage of the old cluster for the new cluster. So only the survivor is admitted; other
servers return as new servers, under any name. Evicted and retired identities stay excluded.

The reports of the other servers are dropped. These servers are lost, and it is better to omit their leaves than to list
dead leaves for another hour. A node that joins again reports its leaves. The last publications are kept, so that the
next publications have later timestamps. Client keys stay admitted; their entries for the old cluster do not have an
effect in the new one.

Forged numbers would also be kept: a term or log time near its limit, a publication's timestamp years ahead, or the last
possible era. A running farm can only correct log time (`log_time_correction`). A new cluster may reset all these
numbers (`Reset`), because its servers and the servers of the old cluster refuse each other. A reset changes all numbers
of a kind, in all tables of the state (`numbers`), for example the terms in the offsets of Kafka's groups. Routers may
still have a structure with the old timestamp, and refuse earlier timestamps for a time (`refused_until_s`).
"""

from msgspec import Struct
from msgspec.structs import replace

from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.membership.admission import Admitted, raft_id_of
from bridge.core.membership.eviction import Rekeying
from bridge.core.state.farm_state import Choice, FarmState, MasterState
from bridge.core.state.kafka_clients import KafkaClients
from bridge.core.state.numbers import Number, NumberKind, with_numbers

SURVIVOR_ID = 1
NO_SERVER_ID = 0
"""The Raft id of a publisher outside the new cluster; no server has this id."""


FIRST_TERM = 1
UNKNOWN_TERM = -1
LEASE_SET_SECONDS_MAX = 0xFFFF + 60
"""Largest distance of a structure's end from now that a router accepts (16 bits of seconds, and Java's tolerance)."""


class Reset(Struct, frozen=True):
    """The values to reset in the new cluster."""

    term: bool = False
    """Reduce each term to at most `FIRST_TERM`, and set the terms of clients to `UNKNOWN_TERM`."""
    log_time_ms: int | None = None
    """The start of log time; None if log time continues."""
    second: bool = False
    """Drop the last publication of each master, and set the timestamps of publications in reports to 0."""
    era: bool = False
    """Reset the eras of the keys."""


def refused_until_s(farm: FarmState, now_s: int) -> int | None:
    """Return the last time when routers may refuse a structure of the new cluster, after a reset; None if they do not.

    A router refuses an earlier timestamp until its latest structure ends. It also refuses structures that end too far
    ahead.
    """
    publications = (each.publication for each in farm.masters.values())
    is_later = any(each is not None and each.published_s >= now_s for each in publications)
    return now_s + LEASE_SET_SECONDS_MAX if is_later else None


def recovered(farm: FarmState, node_id: bytes, reset: Reset | None = None) -> FarmState:
    """Return the state of the new cluster with the identity `node_id` as its only server."""
    reset = reset or Reset()
    farm = with_numbers(farm, lambda number, value: _reset(number, value, farm, reset))
    if reset.log_time_ms is not None:
        servers = {
            each: replace(server, reported_ms=reset.log_time_ms, lag_ms=0, clock_off=False)
            for each, server in farm.servers.items()
        }
        farm = replace(farm, log_time_ms=reset.log_time_ms, servers=servers)
    if reset.second:
        forgotten = {each: replace(master, publication=None) for each, master in farm.masters.items()}
        farm = replace(farm, masters=forgotten)
    if reset.era:
        farm = replace(farm, rekeying=Rekeying())
    farm = replace(farm, kafka=_without_owners(farm.kafka))
    old_id = raft_id_of(farm.admitted, node_id)
    own = None if old_id is None else farm.servers.get(old_id)
    out = [each for _, each in sorted(farm.admitted.items()) if not each.is_member and each.node_id != node_id]
    # The entries that admitted these identities are signed for the old cluster, so they are not proof in the new one.
    survivor = Admitted(node_id) if old_id is None else replace(farm.admitted[old_id], entry=b"")
    out = [replace(each, entry=b"") for each in out]
    return replace(
        farm,
        admitted=dict(enumerate([survivor, *out], start=SURVIVOR_ID)),
        admitted_by={},
        servers={} if own is None else {SURVIVOR_ID: replace(own, report=replace(own.report, server_id=SURVIVOR_ID))},
        masters={each: _recovered_master(master, old_id) for each, master in farm.masters.items()},
        removed=(),
        # From here on only the new cluster's single voter limits log time.
        clocks=VoterClocks(farm.log_time_ms, ((SURVIVOR_ID,),)),
    )


def _without_owners(kafka: KafkaClients) -> KafkaClients:
    """Return the tables with empty owners: an owner is a hash over the old cluster id. The next entry sets it."""
    producers = {each: replace(producer, principal="") for each, producer in kafka.producers.items()}
    groups = {each: replace(noted, principal="") for each, noted in kafka.groups.items()}
    return replace(kafka, producers=producers, groups=groups)


def _reset(number: Number, value: int, farm: FarmState, reset: Reset) -> int:  # noqa: PLR0911 - one case per kind
    match number.kind:
        case NumberKind.TERM if reset.term:
            return min(value, FIRST_TERM)
        case NumberKind.CLIENT_TERM if reset.term:
            return UNKNOWN_TERM
        case NumberKind.LOG_TIME | NumberKind.CLOCK if reset.log_time_ms is not None:
            return min(value, reset.log_time_ms)
        case NumberKind.SECOND_MS if reset.second:
            return 0
        case NumberKind.INDEX:
            return min(value, farm.applied_index)
        case NumberKind.NEXT_INDEX:
            return min(value, farm.applied_index + 1)
        case _:
            return value


def _recovered_master(master: MasterState, old_id: int | None) -> MasterState:
    publication = master.publication
    if publication is not None:
        publication = replace(publication, server_id=SURVIVOR_ID if publication.server_id == old_id else NO_SERVER_ID)
    chosen = old_id is not None and master.choice.server_id == old_id
    return replace(master, choice=Choice(SURVIVOR_ID if chosen else None), publication=publication)
