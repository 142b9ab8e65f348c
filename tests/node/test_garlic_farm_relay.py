"""An attacker that relays a handshake, with omissions or changes, does not prove an identity to either side.

The attacker in the middle is a TLS server. The client accepts its certificate: either a member announced it, or the
same authority signed it. The attacker also has the password and Bob's address.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio

from consensus.net.tls import NodeCertificate, authority_context, load_or_create_certificate, secured
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.connectors import Connector, TlsConnector
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from tests.node.certificates import Authority
from tests.node.garlic_farm_stage import ALICE, BOB, CREDENTIALS, Host, peers_of

LOOPBACK = "127.0.0.1"
LONG_S = 60
Change = Callable[[bytes], bytes]
PROVES = (b"X-Garlic-Proof", b"X-Garlic-Server", b"X-Garlic-Peer")


def unchanged(data: bytes) -> bytes:
    return data


def nameless(data: bytes) -> bytes:
    """Return a head without identity and proofs."""
    return b"\r\n".join(line for line in data.split(b"\r\n") if not line.startswith(PROVES))


@dataclass
class Middle:
    """A relay from each connection to Bob, with TLS on both sides."""

    certificate: NodeCertificate
    bob: PeerAddress
    change: Change
    passed: int = 0

    async def listen(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Relay until canceled, and report the port."""
        listeners = await trio.open_tcp_listeners(0, host=LOOPBACK)
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._relay, listeners)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    async def _relay(self, transport: trio.SocketStream) -> None:
        async with transport, await trio.open_tcp_stream(LOOPBACK, self.bob.port) as onward:
            inbound = TlsStream(transport, self.certificate.server_context(), server_side=True)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await inbound.do_handshake()
                outbound = await secured(onward, self.bob.fingerprint or b"")
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, inbound, outbound, nursery.cancel_scope)
                    nursery.start_soon(self._pump, outbound, inbound, nursery.cancel_scope)

    async def _pump(self, source: TlsStream, sink: TlsStream, scope: trio.CancelScope) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := bytes(await source.receive_some()):
                self.passed += 1
                await sink.send_all(self.change(data))
        scope.cancel()


@asynccontextmanager
async def relayed(
    at_bob: NodeCertificate, in_the_middle: NodeCertificate, change: Change
) -> AsyncIterator[tuple[Host, Middle, int]]:
    host = Host(BOB)
    with trio.fail_after(LONG_S):
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(host.server.listen, LOOPBACK, 0, at_bob)
            middle = Middle(in_the_middle, PeerAddress(LOOPBACK, port, at_bob.fingerprint), change)
            leads_to: int = await nursery.start(middle.listen)
            yield host, middle, leads_to
            nursery.cancel_scope.cancel()


async def refusal(address: PeerAddress, transport: Connector) -> GarlicFarmError:
    """Return the error of Alice, a server that calls Bob, for the peer at `address`."""
    identity = Identity("cluster-a", ALICE)
    caller = Initiator(
        "farm", lambda: (CREDENTIALS,), lambda: identity, Random(4).randbytes, peers_of(ALICE), ConnectionRole.SERVER
    )
    with pytest.raises(GarlicFarmError) as failure:
        await Dialer(caller, transport=transport).dial(address, BOB)
    return failure.value


def was_never_alice(host: Host) -> bool:
    """Return True if Bob did not get a message, and did not accept a connection as Alice's."""
    return host.handler.requests == [] and len(host.server.places._established) == 0


async def test_member_relaying_challenge_is_refused(tmp_path: Path) -> None:
    """Alice has an announcement of Bob with Mallory's address and certificate."""
    bob, mallory = (load_or_create_certificate(tmp_path / name) for name in ("bob", "mallory"))
    async with relayed(bob, mallory, unchanged) as (host, middle, port):
        failure = await refusal(PeerAddress(LOOPBACK, port, mallory.fingerprint), TlsConnector())
        assert failure.fault is Fault.UNPROVEN
        assert "an attacker may relay the connection" in str(failure)
        assert middle.passed >= 4, "challenge and response were relayed"
        assert host.faults == {Fault.UNPROVEN}
        text = "a peer that claims to be server 1 sent a proof that is not valid for this connection"
        assert text in host.incidents[0].text
        assert was_never_alice(host)


async def test_middle_with_certificate_of_same_authority_is_refused(tmp_path: Path) -> None:
    """The certificate names the dialed address, so TLS accepts it."""
    authority = Authority(tmp_path)
    bob, other = authority.certificate(LOOPBACK), authority.certificate(LOOPBACK)
    transport = TlsConnector(authority_context(authority.file))
    async with relayed(bob, other, unchanged) as (host, middle, port):
        failure = await refusal(PeerAddress(LOOPBACK, port, None), transport)
        assert failure.fault is Fault.UNPROVEN
        assert middle.passed >= 4
        assert host.faults == {Fault.UNPROVEN}
        assert was_never_alice(host)


async def test_middle_without_identity_is_not_accepted_as_server(tmp_path: Path) -> None:
    """Bob accepts the relay as an unidentified client, but Bob's reply is not valid for Alice's connection."""
    bob, mallory = (load_or_create_certificate(tmp_path / name) for name in ("bob", "mallory"))

    def leave_out(data: bytes) -> bytes:
        return nameless(data) if data.startswith(b"GET ") else data

    async with relayed(bob, mallory, leave_out) as (host, _, port):
        failure = await refusal(PeerAddress(LOOPBACK, port, mallory.fingerprint), TlsConnector())
        assert failure.fault is Fault.UNPROVEN
        assert "an attacker relays or changes it" in str(failure)
        assert host.metrics.counts[ConnectionEvent.CONNECTIONS_ESTABLISHED] == 1, "without an identity"
        assert host.handler.requests == []


async def test_middle_omitting_proof_of_server_is_refused(tmp_path: Path) -> None:
    bob, mallory = (load_or_create_certificate(tmp_path / name) for name in ("bob", "mallory"))

    def leave_out(data: bytes) -> bytes:
        if data.startswith(b"GET "):
            return nameless(data)
        return data.replace(b"x-garlic-proof", b"x-nothing").replace(b"X-Garlic-Proof", b"X-Nothing")

    async with relayed(bob, mallory, leave_out) as (_, _, port):
        failure = await refusal(PeerAddress(LOOPBACK, port, mallory.fingerprint), TlsConnector())
        assert failure.fault is Fault.UNPROVEN
        assert "does not prove an identity" in str(failure)
