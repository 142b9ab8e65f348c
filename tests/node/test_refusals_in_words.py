"""Refused connections over TLS on loopback, and single refusals: counts, events and alarms for both operators."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from bridge.api.alarms import PEERS_REFUSED, REFUSED_BY_PEERS
from bridge.api.trace import TraceEvent
from bridge.api.view import AlarmView
from bridge.node.events.alarms import Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.raft.refused_connections import QUIET_AFTER_S, RefusedConnections
from consensus.net.tls import NodeCertificate, load_or_create_certificate, secured
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Incident, Metrics
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.proof import tls_channel
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Challenged, Initiator, Session, UpgradeClient
from tests.node.certificates import self_signed
from tests.node.garlic_farm_stage import ALICE, BOB, CREDENTIALS, Host, peers_of
from tests.node.recorded_receiver import RecordedReceiver

LOOPBACK = "127.0.0.1"


class Operator:
    """The events, alarms and metrics of one side."""

    def __init__(self, name: str) -> None:
        self.events: list[TraceEvent] = []
        trace = EventLog(name, lambda: 0, on_event=self.events.append)
        self.alarms = Alarms(trace)
        self.refused = RefusedConnections(trace, self.alarms)
        self.metrics = Metrics(self.refused.incident, self.refused.connected)

    def alarm(self, kind: str) -> AlarmView | None:
        return next((each for each in self.alarms.active() if each.kind == kind), None)


@dataclass
class Scene:
    """Alice's links to Bob's server."""

    alice: Operator
    bob: Operator
    links: PeerLinks
    address: PeerAddress

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until the condition is true."""
        with trio.fail_after(60):
            while not holds():  # noqa: ASYNC110 - the condition has several causes
                await trio.sleep(0.005)


ALICE_HERE = Identity("cluster-a", ALICE)
CALLER = Initiator("farm", lambda: (CREDENTIALS,), lambda: ALICE_HERE, Random(7).randbytes, peers_of(ALICE))


@asynccontextmanager
async def scene(
    certificate: NodeCertificate, caller: Initiator = CALLER, *, fingerprint: bytes | None = None
) -> AsyncIterator[Scene]:
    alice, bob, host = Operator("alice"), Operator("bob"), Host(BOB)
    host.server._metrics = host.server.places._metrics = bob.metrics
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(host.server.listen, LOOPBACK, 0, certificate)
        address = PeerAddress(LOOPBACK, port, fingerprint or certificate.fingerprint)
        links = PeerLinks(Dialer(caller), lambda _: address, metrics=alice.metrics, random=Random(5))
        await nursery.start(links.run, RecordedReceiver())
        links.connect([BOB])
        yield Scene(alice, bob, links, address)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("caller", "at_alice", "at_bob", "alice_reads", "bob_reads", "alice_does", "bob_does"),
    [
        pytest.param(
            replace(CALLER, credentials=lambda: (Credentials(CREDENTIALS.user, "wrong"),)),
            Fault.WRONG_CREDENTIALS,
            Fault.WRONG_CREDENTIALS,
            "does not accept user 'router'",
            "wrong user or password (user 'router')",
            "present key file",
            "present key file",
            id="wrong password",
        ),
        pytest.param(
            replace(CALLER, cluster="other"),
            Fault.WRONG_PATH,
            Fault.WRONG_CLUSTER,
            "it serves another cluster or another version",
            "requested the cluster 'other', but this server serves 'farm'",
            "leads to a server of this farm",
            "which farm's key file",
            id="wrong cluster name",
        ),
        pytest.param(
            replace(CALLER, identity=lambda: Identity("cluster-b", ALICE)),
            Fault.WRONG_CLUSTER,
            Fault.WRONG_CLUSTER,
            "the server belongs to cluster cluster-a, this one to cluster-b",
            "a member of cluster cluster-b, while this server belongs to cluster-a",
            "if `garlicfarm recover` created this farm again: stop this node, move its state directory away",
            "a member of this farm from before `garlicfarm recover`",
            id="wrong cluster id",
        ),
        pytest.param(
            replace(CALLER, version="2"),
            Fault.WRONG_PATH,
            Fault.WRONG_VERSION,
            "another version",
            "requested version '2' of the protocol, but this server has version '1'",
            "leads to a server of this farm",
            "update the older",
            id="wrong version",
        ),
        pytest.param(
            replace(CALLER, peers=None),
            Fault.UNPROVEN,
            Fault.UNPROVEN,
            "the server does not accept this node's proof of its identity",
            "a peer that claims to be server 1 did not prove its identity",
            "find the program between",
            "a program has this farm's key file without an identity of the farm",
            id="claim without proof",
        ),
        pytest.param(
            replace(CALLER, peers=peers_of(77)),
            Fault.UNKNOWN_IDENTITY,
            Fault.UNKNOWN_IDENTITY,
            "does not know this node's identity under the Raft id that it claims",
            "is not the listed key of server 1",
            "restore the right one",
            "replace the keys (`garlicfarm help copied-key-file`)",
            id="identity of other node",
        ),
    ],
)
async def test_refusal_is_reported_to_both_sides_with_remedy(
    tmp_path: Path,
    caller: Initiator,
    at_alice: Fault,
    at_bob: Fault,
    alice_reads: str,
    bob_reads: str,
    alice_does: str,
    bob_does: str,
) -> None:
    async with scene(load_or_create_certificate(tmp_path), caller) as found:
        await found.until(lambda: found.alice.alarm(REFUSED_BY_PEERS.kind) and found.bob.alarm(PEERS_REFUSED.kind))
        ours, theirs = found.alice.alarm(REFUSED_BY_PEERS.kind), found.bob.alarm(PEERS_REFUSED.kind)
        assert ours is not None
        assert theirs is not None
        assert alice_reads in ours.text
        assert alice_does in ours.action
        assert bob_reads in theirs.text
        assert bob_does in theirs.action
        assert found.alice.metrics.counts[at_alice] >= 1
        assert found.bob.metrics.counts[at_bob] >= 1
        assert any(event.kind == "connection-failed" for event in found.alice.events)
        assert any(event.kind == "connection-refused" for event in found.bob.events)
        assert found.bob.metrics.counts[ConnectionEvent.CONNECTIONS_ESTABLISHED] == 0


@pytest.mark.parametrize("days", [(-30, -1), (5_000, 8_650)])
async def test_dates_of_pinned_certificate_are_ignored(tmp_path: Path, days: tuple[int, int]) -> None:
    async with scene(self_signed(tmp_path, days=days)) as found:
        await found.until(lambda: found.bob.metrics.counts[ConnectionEvent.CONNECTIONS_ESTABLISHED])
        assert found.alice.alarms.active() == ()


async def test_client_refuses_certificate_of_other_farm(tmp_path: Path) -> None:
    # The server at the address has a genuine certificate, announced by another farm's server.
    shown = load_or_create_certificate(tmp_path / "other")
    expected = load_or_create_certificate(tmp_path / "own").fingerprint
    async with scene(shown, fingerprint=expected) as found:
        await found.until(lambda: found.alice.alarm(REFUSED_BY_PEERS.kind))
        alarm = found.alice.alarm(REFUSED_BY_PEERS.kind)
        assert alarm is not None
        assert "another program listens at its address" in alarm.text
        assert "do not switch the check off" in alarm.action
        assert found.alice.metrics.counts[Fault.WRONG_CERTIFICATE] >= 1
        # The refused side also reports the refusal, although it did not receive a request.
        await found.until(lambda: found.bob.events)
        assert "may not accept this node's certificate" in str(found.bob.events[0].data)
        assert found.bob.metrics.counts[Fault.DISTRUSTED] >= 1
        assert found.bob.metrics.counts[ConnectionEvent.CHALLENGES] == 0
        assert found.bob.alarms.active() == ()


async def test_replayed_handshake_is_refused_with_alarm(tmp_path: Path) -> None:
    async with scene(load_or_create_certificate(tmp_path)) as found:

        async def exchange(request: bytes) -> bytes:
            stream = await secured(
                await trio.open_tcp_stream(LOOPBACK, found.address.port), found.address.fingerprint or b""
            )
            await stream.send_all(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += await stream.receive_some()
            await trio.aclose_forcefully(stream)
            return answer

        # Given an accepted handshake, recorded by an attacker
        session, channel = Session(), tls_channel(found.address.fingerprint or b"")
        first = UpgradeClient(CALLER, session, str(found.address), 0, channel=channel)
        assert isinstance(first.receive(await exchange(first.request())), Challenged)
        recorded = UpgradeClient(CALLER, session, str(found.address), 0, channel=channel).request()
        assert b" 101 " in await exchange(recorded)
        # When the attacker sends it again
        answer = await exchange(recorded)
        # Then the reply is an ordinary challenge, and the incident is reported as a replay
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"stale=true" in answer
        await found.until(lambda: found.bob.alarm(PEERS_REFUSED.kind))
        alarm = found.bob.alarm(PEERS_REFUSED.kind)
        assert alarm is not None
        assert "sent a repeated request" in alarm.text
        assert "recorded a handshake" in alarm.action
        assert found.bob.metrics.counts[Fault.REPLAYED] == 1


async def test_alarms_end_when_refused_side_is_accepted(tmp_path: Path) -> None:
    shown = [Credentials(CREDENTIALS.user, "wrong")]
    async with scene(load_or_create_certificate(tmp_path), replace(CALLER, credentials=lambda: (shown[0],))) as found:
        await found.until(lambda: found.alice.alarm(REFUSED_BY_PEERS.kind))
        shown[0] = CREDENTIALS
        await found.until(lambda: not found.alice.alarms.active())
        # The refusing side's alarm ends, too: a node that then proves the right password is not an attacker.
        await found.until(lambda: not found.bob.alarms.active())


@pytest.mark.parametrize(
    ("fault", "ends"),
    [
        (Fault.WRONG_CLUSTER, True),
        (Fault.WRONG_VERSION, True),
        (Fault.WRONG_SERVER, True),
        (Fault.REPLAYED, False),
        (Fault.UNPROVEN, False),
        (Fault.UNKNOWN_IDENTITY, False),
    ],
)
async def test_connection_ends_alarm_of_corrected_fault(fault: Fault, *, ends: bool) -> None:
    bob = Operator("bob")
    bob.refused.incident(Incident(fault, "10.0.0.7", "refused"))
    bob.refused.connected("10.0.0.8")
    assert bob.alarm(PEERS_REFUSED.kind) is not None
    bob.refused.connected("10.0.0.7")
    assert (bob.alarm(PEERS_REFUSED.kind) is None) is ends


async def test_alarms_end_without_new_incidents(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    bob = Operator("bob")
    nursery.start_soon(bob.refused.run)
    bob.refused.incident(Incident(Fault.WRONG_CREDENTIALS, "10.0.0.7", "a guess"))
    # The called server leaves the group, so this node does not call it again.
    bob.refused.incident(Incident(Fault.WRONG_CERTIFICATE, "server 2", "another certificate", outgoing=True))
    await trio.sleep(QUIET_AFTER_S / 2)
    bob.refused.incident(Incident(Fault.REPLAYED, "10.0.0.8", "a replay"))
    await trio.sleep(QUIET_AFTER_S / 2 + 10)
    alarm = bob.alarm(PEERS_REFUSED.kind)
    assert alarm is not None
    assert alarm.text == "a replay"
    assert bob.alarm(REFUSED_BY_PEERS.kind) is None
    await trio.sleep(QUIET_AFTER_S)
    assert bob.alarms.active() == ()


async def test_fault_without_credentials_is_not_an_alarm() -> None:
    bob = Operator("bob")
    for fault in (Fault.WRONG_PATH, Fault.MALFORMED, Fault.SILENT, Fault.TOO_LARGE, Fault.DISTRUSTED):
        bob.refused.incident(Incident(fault, "10.0.0.7", "rubbish"))
    assert bob.alarms.active() == ()
    assert len(bob.events) == 5


async def test_flood_of_refusals_keeps_alarm_short() -> None:
    bob = Operator("bob")
    for number in range(1_000):
        bob.refused.incident(Incident(Fault.WRONG_CREDENTIALS, f"peer {number}", f"guess {number}"))
    alarm = bob.alarm(PEERS_REFUSED.kind)
    assert alarm is not None
    assert alarm.text == "guess 996; guess 997; guess 998; guess 999; and 60 more"
