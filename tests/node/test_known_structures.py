"""The structures for clients: the newest valid one of each master, from reports and from this node's hand-overs."""

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.core.log.records import MetaStatus, PublishConfig
from bridge.core.state.farm_state import SERVERS_MAX, MasterState
from bridge.node.tasks.known_structures import KnownStructures
from bridge.wire.i2p import structure_exchange
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, MetaLeaseSet, Verification, encode, verify
from bridge.wire.i2p.structure_exchange import ReplyStatus, StructureReply
from bridge.wire.i2p.structures import base64_encode
from tests.effort import each_case
from tests.node.farm_stage import MASTER, NOW_S, Stage, rival_report

ADDRESS, NAME = MASTER.destination.hash, MASTER.destination.base64
OTHER = new_master_key(demo=True)
MASTERS = {NAME: MasterState()}
UNKNOWN = StructureReply(ReplyStatus.UNKNOWN_ADDRESS)
NOTHING = StructureReply(ReplyStatus.NOTHING_PUBLISHED)


def structure(published_s: int = NOW_S, *, key: MasterKey = MASTER, life_s: int = 900) -> bytes:
    leases = (MetaLease(b"leaf" * 8, cost=5, ends_s=published_s + life_s),)
    return encode(key.as_signing_key().sign(published_s, leases))


def known(*structures: bytes) -> KnownStructures:
    found = KnownStructures()
    for server_id, each in enumerate(structures, 1):
        found.offer(NAME, server_id, base64_encode(each))
    return found


def reply(structures: KnownStructures, *, later_s: int = 0) -> StructureReply:
    return structures.reply_for(ADDRESS, MASTERS, NOW_S + later_s)


def test_newest_structure_of_several_servers_is_returned() -> None:
    newest = structure(NOW_S)
    found = known(structure(NOW_S - 20), newest, structure(NOW_S - 10))
    assert reply(found) == StructureReply(ReplyStatus.STRUCTURE, newest)
    assert reply(found, later_s=899).structure == newest
    assert reply(found, later_s=900) == NOTHING


def test_structure_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verified: list[MetaLeaseSet] = []

    def counted(structure: MetaLeaseSet) -> Verification:
        verified.append(structure)
        return verify(structure)

    monkeypatch.setattr(structure_exchange, "verify", counted)
    newest = structure(NOW_S + 7)
    found = known(newest)
    for later_s in (0, 1, 2):
        assert reply(found, later_s=later_s).structure == newest
    assert len(verified) == 1


def test_older_structure_offered_later_is_ignored() -> None:
    newest = structure(NOW_S)
    found = known(newest)
    assert reply(found).structure == newest
    found.offer(NAME, 2, base64_encode(structure(NOW_S - 100)))
    assert reply(found).structure == newest
    found.offer(NAME, 2, base64_encode(structure(NOW_S + 30)))
    assert reply(found).structure == structure(NOW_S + 30)


@each_case(
    "wrong",
    [
        b"garbage",
        structure()[:-1],
        structure()[:-1] + b"x",
        structure(key=OTHER),
        structure(NOW_S + 3_600),
        structure(NOW_S - 1_000),
    ],
)
def test_invalid_structure_does_not_displace_valid_one(wrong: bytes) -> None:
    valid = structure(NOW_S - 10)
    assert reply(known(wrong)) == NOTHING
    assert reply(known(valid, wrong)).structure == valid


def test_unreadable_base64_in_report_is_ignored() -> None:
    found = KnownStructures()
    found.offer(NAME, 1, "not base64!")
    assert reply(found) == NOTHING


def test_address_outside_of_farm_is_unknown() -> None:
    found = known(structure())
    assert found.reply_for(OTHER.destination.hash, MASTERS, NOW_S) == UNKNOWN
    assert found.reply_for(ADDRESS, {}, NOW_S) == UNKNOWN
    assert reply(KnownStructures()) == NOTHING


async def test_structure_for_unknown_master_in_report_is_not_kept() -> None:
    found = KnownStructures()
    report = rival_report()
    [part] = report.masters
    report = replace(report, masters=(replace(part, last_published_lease_set=base64_encode(structure())),))
    found.reported(report, {})
    assert reply(found) == NOTHING
    found.reported(report, MASTERS)
    assert reply(found).structure == structure()


async def test_structures_of_removed_masters_and_servers_are_dropped() -> None:
    found = KnownStructures()
    for server_id in range(SERVERS_MAX + 20):
        found.offer(NAME, server_id, base64_encode(structure(NOW_S - server_id)))
    assert len(found._offered[NAME]) == SERVERS_MAX
    found.reported(rival_report(), {OTHER.destination.base64: MasterState()})
    assert found._offered == {}


@pytest.mark.usefixtures("machine_clock")
async def test_reported_structure_of_other_server_is_known(autojump_clock: MockClock) -> None:
    stage = Stage()
    part = MetaStatus(NAME, PublishConfig.ON, publishing=True, last_published_time_ms=NOW_S * 1000)
    await stage.append_record(
        replace(rival_report(), masters=(replace(part, last_published_lease_set=base64_encode(structure())),))
    )
    await stage.append_record(replace(rival_report(2), masters=(part,)))
    masters = stage.applied_state.state.masters
    assert stage.structures.reply_for(ADDRESS, masters, NOW_S).structure == structure()


@pytest.mark.usefixtures("machine_clock")
async def test_own_published_structure_is_known(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage()
    nursery.start_soon(stage.background_tasks.run)
    await trio.sleep(60)
    found = stage.structures.reply_for(ADDRESS, stage.applied_state.state.masters, NOW_S + 60)
    assert found.structure == stage.router.published[-1]
    assert autojump_clock.current_time() >= 60
