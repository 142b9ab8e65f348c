"""Bounds on the effects of unknown senders, and the stored peers of a node."""

import os
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gossip.core.effects import Alarm, AlarmKind, UserEventReceived
from gossip.core.member import Address, Incarnation, NodeInfo
from gossip.core.messages import JoinReq
from gossip.node.group import Group
from gossip.node.limits import ERRORS_BURST, FOREIGN_SENDERS_LIMIT, FOREIGN_VERSION_ALARM_MS
from gossip.node.state_files import (
    PEERS_EVERY_S,
    PEERS_FILE,
    PEERS_FIRST_KEPT_S,
    PEERS_REMEMBERED,
    keep_peers,
    known_peers,
    remember_peers,
)
from gossip.wire.codec import Code
from gossip.wire.identity import Signer
from gossip.wire.seal import VERSION, SealFault
from gossip.wire.secure_codec import SECRETS_BYTES, SecureCodec
from tests.node.gossip_farm import RING, in_simulated_time, new_events, running_farm, sees, until, until_all_see_all
from tests.node.gossip_network import MemoryNetwork

BROADCAST = Address("127.255.255.255", 7946)
VICTIM = Address("127.0.0.99", 53)


def unknown_join() -> bytes:
    """Return a JoinReq with the farm's key, without a token."""
    signer = Signer(Ed25519PrivateKey.generate())
    info = NodeInfo(signer.node_id, VICTIM, Incarnation(1, 0), capacity=8)
    return SecureCodec(signer, RING, os.urandom(SECRETS_BYTES)).outgoing(JoinReq(info))


def footprint(agent: Group) -> tuple[int, ...]:
    """Return the sizes of the core's tables."""
    core = agent._core
    description = core.describe()
    return (
        len(description.members),
        description.joins_in_flight,
        description.seed_count,
        len(core._queue.queued),
        len(core._user_events.queue),
        len(core._prober._pending),
        len(core._prober._relays.passed_on),
    )


@in_simulated_time
async def test_spoofed_join_gets_smaller_reply_without_state() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed = await farm.start()
        before = footprint(seed)
        requests = [unknown_join() for _ in range(200)]
        start = len(network.sent)
        for request in requests:
            network.deliver(request, VICTIM, seed.info.address)
        await trio.sleep(1)
        answers = [each for source, target, each in network.sent[start:] if target == VICTIM]
        assert 0 < len(answers) <= ERRORS_BURST + 20, "replies to one source address are limited"
        assert {answer[0] for answer in answers} == {Code.JOIN_NAK}
        assert max(map(len, answers)) < min(map(len, requests))
        assert footprint(seed) == before


@pytest.mark.parametrize("is_new", [True, False], ids=["new-member", "restarted-member"])
@in_simulated_time
async def test_replayed_datagrams_do_not_affect_started_member(tmp_path: Path, *, is_new: bool) -> None:
    """A node starts without replay windows, so a second copy of a datagram must be harmless."""
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        seed, alice = await farm.start_many(2)
        boris = await farm.start(seed, state_directory=tmp_path)
        await until_all_see_all([seed, alice, boris])
        alice.set_metadata(b"old words")
        alice.send_event("deploy", b"yesterday")
        await until(boris, lambda: any(each.info.metadata == b"old words" for each in boris.members()))
        await trio.sleep(5)
        alice.set_metadata(b"new words")
        await until(boris, lambda: any(each.info.metadata == b"new words" for each in boris.members()))
        recorded = [datagram for _, _, datagram in network.sent]
        if is_new:
            await boris.leave()
        await farm.crash(boris)
        fresh = await farm.start(seed, state_directory=None if is_new else tmp_path)
        assert (fresh.node_id != boris.node_id) == is_new
        await until_all_see_all([seed, alice, fresh])
        await trio.sleep(10)  # until each member has its links
        members = {each.node_id: (each.info.metadata, each.status, each.incarnation) for each in fresh.members()}
        peers = {each.node_id for each in fresh.members() if each.is_peer}
        for datagram in recorded:
            network.deliver(datagram, Address("127.0.0.66", 6), fresh.info.address)
        await trio.sleep(5)
        after = {each.node_id: (each.info.metadata, each.status, each.incarnation) for each in fresh.members()}
        assert {each: after[each] for each in members} == members
        assert {each.node_id for each in fresh.members() if each.is_peer} == peers
        events = new_events(fresh)
        assert [each for each in events if isinstance(each, UserEventReceived)] == [], "events sent before it joined"


@in_simulated_time
async def test_restarted_node_rejoins_through_stored_peers(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        seed, other = await farm.start_many(2)
        alice = await farm.start(seed, state_directory=tmp_path)
        await until_all_see_all([seed, other, alice])
        await trio.sleep(PEERS_EVERY_S + 10)
        assert len((tmp_path / PEERS_FILE).read_text().splitlines()) == 2
        await farm.crash(alice)
        await farm.crash(seed)  # the address of the first seed is never used again
        again = await farm.start(state_directory=tmp_path, bind=Address("127.0.0.1", 41_000))
        await until(again, lambda: sees(again, other))
        await until(other, lambda: sees(other, again))


@pytest.mark.parametrize("runs_s", [0.0, PEERS_FIRST_KEPT_S + 0.1], ids=["stops-immediately", "is-killed-later"])
@in_simulated_time
async def test_node_without_seeds_rejoins_after_short_run(tmp_path: Path, runs_s: float) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        first = await farm.start(state_directory=tmp_path)
        other = await farm.start(first)
        await until_all_see_all([first, other])
        await trio.sleep(runs_s)
        await farm.crash(first)
        again = await farm.start(state_directory=tmp_path, bind=Address("127.0.0.1", 41_000))
        await until(again, lambda: sees(again, other))


@in_simulated_time
async def test_node_without_stored_peers_rejoins_by_pings(tmp_path: Path) -> None:
    async with running_farm(MemoryNetwork()) as farm:
        first = await farm.start(state_directory=tmp_path, metadata=b"m" * 300)
        others = [await farm.start(first, metadata=b"m" * 300) for _ in range(2)]
        await until_all_see_all([first, *others])
        # Pings then contain no updates. An ack to an unproved address is at most as large as its ping.
        await trio.sleep(30)
        await farm.crash(first)
        (tmp_path / PEERS_FILE).unlink()
        again = await farm.start(state_directory=tmp_path, bind=first.info.address, metadata=b"m" * 300)
        await trio.sleep(10)
        assert {each.node_id for each in again.members() if each.is_peer} == {each.node_id for each in others}
        assert all(sees(each, again) for each in others)


@in_simulated_time
async def test_peers_are_stored_when_disk_has_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_for_full_disk(path: Path, _content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    async with running_farm(MemoryNetwork()) as farm:
        first = await farm.start(state_directory=tmp_path)
        with monkeypatch.context() as full_disk:
            full_disk.setattr("gossip.node.state_files.write_durably", fail_for_full_disk)
            other = await farm.start(first)
            await trio.sleep(PEERS_EVERY_S)
            assert known_peers(tmp_path) == ()
        await trio.sleep(PEERS_EVERY_S)
        assert known_peers(tmp_path) == (other.info.address,)


@in_simulated_time
async def test_stored_peers_are_bounded(tmp_path: Path) -> None:
    peers = tuple(Address("10.0.0.1", port) for port in range(1, PEERS_REMEMBERED + 3))
    with trio.move_on_after(PEERS_FIRST_KEPT_S + 1):
        await remember_peers(tmp_path, lambda: peers)
    assert len((tmp_path / PEERS_FILE).read_text().splitlines()) == PEERS_REMEMBERED
    assert known_peers(tmp_path) == peers[:PEERS_REMEMBERED]
    keep_peers(tmp_path, peers)
    assert known_peers(tmp_path) == peers[:PEERS_REMEMBERED]


def test_invalid_lines_of_stored_peers_are_ignored(tmp_path: Path) -> None:
    (tmp_path / PEERS_FILE).write_bytes(
        b"10.0.0.1:7\n\xff\xfe\n:\nrouter.example:7\n[fd00::1]:7\n" + b"10.0.0.2:1\n" * 400
    )
    assert known_peers(tmp_path) == (Address("10.0.0.1", 7), Address("fd00::1", 7), Address("10.0.0.2", 1))
    (tmp_path / PEERS_FILE).unlink()
    assert known_peers(tmp_path) == ()


def test_peers_are_not_stored_in_missing_directory(tmp_path: Path) -> None:
    assert not keep_peers(tmp_path / "nowhere", (Address("10.0.0.1", 7),))


def of_another_version(source: Address, farm: MemoryNetwork, target: Address, code: Code = Code.PING_REQUEST) -> None:
    """Deliver a datagram of this farm as a later version may send it."""
    farm.deliver(bytes([code, VERSION + 1]) + RING.label + b"contents of that version", source, target)


def foreign_version_alarms(agent: Group) -> list[Alarm]:
    """Return the alarms about foreign versions since the last call."""
    return [each for each in new_events(agent) if isinstance(each, Alarm) and each.kind is AlarmKind.FOREIGN_VERSION]


@in_simulated_time
async def test_foreign_version_raises_alarm_until_it_stops() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agent = await farm.start(broadcast=BROADCAST)
        for _ in range(3):
            of_another_version(Address("127.0.0.9", 7946), network, agent.info.address)
            await trio.sleep(1)
        (alarm,) = foreign_version_alarms(agent)
        assert "127.0.0.9:7946 (version 2)" in alarm.text
        of_another_version(Address("127.0.0.8", 7946), network, BROADCAST, Code.BROADCAST)
        await trio.sleep(5)
        of_another_version(Address("127.0.0.8", 7946), network, BROADCAST, Code.BROADCAST)
        await trio.sleep(5)
        (alarm,) = foreign_version_alarms(agent)
        assert "127.0.0.8:7946 (version 2), 127.0.0.9:7946 (version 2)" in alarm.text
        assert agent.describe().wire.dropped[SealFault.FOREIGN_VERSION] == 5
        await trio.sleep(FOREIGN_VERSION_ALARM_MS / 1000 + 10)
        assert [alarm.over for alarm in foreign_version_alarms(agent)][-1]


@in_simulated_time
async def test_foreign_version_flood_raises_few_alarms() -> None:
    network = MemoryNetwork()
    async with running_farm(network) as farm:
        agent = await farm.start()
        for number in range(200):
            of_another_version(Address(f"127.1.0.{number}", 7946), network, agent.info.address)
            await trio.sleep(0.05)
        assert 1 <= len(foreign_version_alarms(agent)) <= 4
        assert len(agent._transport.foreign_versions._senders) == FOREIGN_SENDERS_LIMIT
