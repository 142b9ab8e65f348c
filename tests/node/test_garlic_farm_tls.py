"""Garlic Farm over real loopback sockets and TLS: certificates, pins, standard HTTP clients, malformed input."""

import hashlib
import http.client
import shutil
import socket
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from msgspec.structs import replace

from consensus.core import messages as core
from consensus.core.effects import Outcome
from consensus.core.model import LogId
from consensus.net.tls import (
    CERTIFICATE_FILE,
    CertificateError,
    NodeCertificate,
    UntrustedCertificateError,
    check_pinned,
    client_context,
    load_or_create_certificate,
)
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.connection import ConnectionOptions
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.links import PeerLinks
from consensus.protocols.garlic_farm.node.listener import ConnectionLimits
from consensus.protocols.garlic_farm.node.metrics import ConnectionEvent, Metrics
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.protocols.garlic_farm.wire.messages import RemoveServerRequest
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from consensus.protocols.garlic_farm.wire.values import ClusterServer, LogEntry
from tests.node.certificates import self_signed
from tests.node.garlic_farm_stage import ALICE, BOB, CREDENTIALS, PASSWORD, Host, expect_fault, peers_of
from tests.node.recorded_receiver import RecordedReceiver
from tests.processes import hold_for_sockets

PATH = "/GarlicFarm/farm/1/websocket"


@dataclass
class ListeningServer:
    """Bob's server on a real socket."""

    host: Host
    certificate: NodeCertificate
    port: int

    @property
    def address(self) -> PeerAddress:
        """Return Bob's address with the right fingerprint."""
        return PeerAddress("127.0.0.1", self.port, self.certificate.fingerprint)


@pytest.fixture
async def listening(tmp_path: Path) -> AsyncIterator[ListeningServer]:
    host = Host(BOB, connection_limits=ConnectionLimits(handshakes_max=16))
    certificate = load_or_create_certificate(tmp_path)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(host.server.listen, "127.0.0.1", 0, certificate)
        yield ListeningServer(host, certificate, port)
        nursery.cancel_scope.cancel()


def dialer(password: str = PASSWORD) -> Dialer:
    return Dialer(
        Initiator(
            "farm",
            lambda: (replace(CREDENTIALS, password=password),),
            lambda: Identity("cluster-a", ALICE),
            Random(4).randbytes,
            peers_of(ALICE),
            ConnectionRole.SERVER,
        )
    )


def test_certificate_is_made_once_as_private_neutral_file(tmp_path: Path) -> None:
    first = load_or_create_certificate(tmp_path / "state")
    assert load_or_create_certificate(tmp_path / "state") == first
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    certificate = x509.load_pem_x509_certificate(first.path.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=localhost"
    assert [*first.path.parent.iterdir()] == [first.path]


def test_nodes_have_different_certificates(tmp_path: Path) -> None:
    one, other = load_or_create_certificate(tmp_path / "1"), load_or_create_certificate(tmp_path / "2")
    assert one.fingerprint != other.fingerprint
    assert len(one.fingerprint) == 32


@pytest.mark.parametrize("damage", ["all", "key", "certificate", "other key", "encrypted"])
def test_damaged_certificate_is_not_overwritten(tmp_path: Path, damage: str) -> None:
    path = load_or_create_certificate(tmp_path).path
    pem = path.read_bytes()
    begin = pem.index(b"-----BEGIN PRIVATE")
    other = load_or_create_certificate(tmp_path / "other").path.read_bytes()
    other = other[other.index(b"-----BEGIN PRIVATE") :]
    key = serialization.load_pem_private_key(pem, None)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    damaged = {
        "all": b"rubbish",
        "key": pem[:-40],
        "certificate": pem[begin:],
        "other key": pem[:begin] + other,
        "encrypted": pem[:begin] + key.private_bytes(*formats, serialization.BestAvailableEncryption(b"x")),
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(CertificateError, match="move it away"):
        load_or_create_certificate(tmp_path)
    assert path.read_bytes() == damaged


def test_key_readable_by_others_is_refused(tmp_path: Path) -> None:
    load_or_create_certificate(tmp_path).path.chmod(0o640)
    with pytest.raises(CertificateError, match="chmod 600"):
        load_or_create_certificate(tmp_path)


def test_certificate_other_than_pinned_is_refused(tmp_path: Path) -> None:
    pem = load_or_create_certificate(tmp_path).path.read_text()
    der = ssl.PEM_cert_to_DER_cert(pem[: pem.index("-----BEGIN PRIVATE")])
    pin = hashlib.sha256(der).digest()
    check_pinned(der, pin)
    with pytest.raises(UntrustedCertificateError, match="another program listens"):
        check_pinned(der, bytes(32))
    with pytest.raises(UntrustedCertificateError, match="another program listens"):
        check_pinned(None, pin)


def test_certificate_dates_are_independent_of_clock(tmp_path: Path) -> None:
    begins, ends = load_or_create_certificate(tmp_path).dates()
    assert (f"{begins:%Y-%m-%d}", f"{ends:%Y-%m-%d}") == ("1970-01-01", "9999-12-31")


@pytest.mark.parametrize("days", [(5_000, 8_650), (-20_000, -16_350), (-2, 3_650)])
def test_certificate_with_dates_of_clock_is_replaced(tmp_path: Path, days: tuple[int, int]) -> None:
    dated = self_signed(tmp_path, days=days)
    dated.path.rename(tmp_path / CERTIFICATE_FILE)
    found = load_or_create_certificate(tmp_path)
    assert found.fingerprint != dated.fingerprint
    assert load_or_create_certificate(tmp_path) == found


async def test_peers_exchange_votes_over_tls(listening: ListeningServer, nursery: trio.Nursery) -> None:
    links, receiver = (
        PeerLinks(dialer(), lambda _: listening.address, metrics=Metrics(), random=Random(5)),
        RecordedReceiver(),
    )
    await nursery.start(links.run, receiver)
    links.send(BOB, core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=77, pre_vote=True))
    with trio.fail_after(60):
        replies = await receiver.wait_replies(1)
    assert replies == [core.VoteReply(term=3, granted=True, correlation=77, pre_vote=True)]


async def test_client_submits_over_tls(listening: ListeningServer, nursery: trio.Nursery) -> None:
    client = GarlicFarmClient(dialer(), lambda _: listening.address, [BOB], random=Random(6))
    await nursery.start(client.run)
    submission = await client.submit([b"{}"])
    assert submission.outcome is Outcome.COMMITTED
    assert listening.host.handler.log == [b"{}"]


async def test_other_certificate_is_refused_before_sending_credentials(listening: ListeningServer) -> None:
    failure = await expect_fault(dialer(), replace(listening.address, fingerprint=bytes(32)))
    assert failure.fault is Fault.WRONG_CERTIFICATE
    await trio.testing.wait_all_tasks_blocked()
    assert listening.host.metrics.counts[ConnectionEvent.CHALLENGES] == 0


async def test_wrong_password_is_refused_over_tls(listening: ListeningServer) -> None:
    failure = await expect_fault(dialer("wrong"), listening.address)
    assert failure.fault is Fault.WRONG_CREDENTIALS


async def test_closed_port_is_explained() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        failure = await expect_fault(dialer(), PeerAddress("127.0.0.1", reserved.getsockname()[1], bytes(32)))
    assert failure.fault is Fault.UNREACHABLE
    assert str(failure).endswith("cannot be reached: Connection refused")


@pytest.mark.parametrize("host", ["no..name", "...", "a" * 64 + ".example"])
async def test_unresolvable_name_is_explained(host: str) -> None:
    refused = await expect_fault(dialer(), PeerAddress(host, 7669, bytes(32)))
    assert refused.fault is Fault.UNREACHABLE
    assert "not a name that can be looked up" in str(refused)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_gets_101_with_digest(listening: ListeningServer) -> None:
    command = [
        *("curl", "--silent", "--insecure", "--http1.1", "--digest", "--user", f"{CREDENTIALS.user}:{PASSWORD}"),
        *("--header", "Connection: keep-alive, Upgrade", "--header", "Upgrade: websocket"),
        *("--include", "--max-time", "20", f"https://127.0.0.1:{listening.port}{PATH}"),
    ]
    finished = await trio.run_process(command, capture_stdout=True, check=False)
    assert b"HTTP/1.1 401 Unauthorized" in finished.stdout
    assert b"HTTP/1.1 101 Switching Protocols" in finished.stdout
    assert listening.host.metrics.counts[ConnectionEvent.CONNECTIONS_ESTABLISHED] == 1


async def test_digest_client_of_standard_library_gets_101(listening: ListeningServer) -> None:
    url = f"https://127.0.0.1:{listening.port}{PATH}"
    passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url, CREDENTIALS.user, PASSWORD)
    digest = urllib.request.HTTPDigestAuthHandler(passwords)

    def get_response(headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPSConnection("127.0.0.1", listening.port, context=client_context(), timeout=60)
        with closing(connection):
            connection.request("GET", PATH, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers["WWW-Authenticate"]

    def both() -> tuple[int, int]:
        first, challenge = get_response({"Connection": "close"})
        scheme, _, parameters = challenge.partition(" ")
        assert scheme == "Digest"
        parsed = urllib.request.parse_keqv_list(urllib.request.parse_http_list(parameters))
        answer = digest.get_authorization(urllib.request.Request(url), parsed)
        upgrade = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket"}
        second, _ = get_response({**upgrade, "Authorization": f"Digest {answer}"})
        return first, second

    assert await trio.to_thread.run_sync(both) == (401, 101)


async def test_request_for_root_gets_404(listening: ListeningServer) -> None:
    url = f"https://127.0.0.1:{listening.port}/"

    def get_response() -> tuple[int, bytes]:
        try:
            urllib.request.urlopen(url, context=client_context(), timeout=60)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        raise AssertionError("no error")

    assert await trio.to_thread.run_sync(get_response) == (404, b"Not Found\n")


async def read_to_the_end(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    await stream.aclose()


async def test_malformed_or_half_open_connections_are_limited(
    listening: ListeningServer, autojump_clock: trio.testing.MockClock
) -> None:
    hold_for_sockets(autojump_clock)
    random = Random(8)
    streams = []
    for number in range(150):
        stream = await trio.open_tcp_stream("127.0.0.1", listening.port)
        streams.append(stream)
        if number % 3 == 0:
            await stream.send_all(random.randbytes(random.randrange(1, 500)))
    assert len(listening.host.server.places._handshakes) <= 16
    dialed = await dialer().dial(listening.address, BOB)
    assert dialed.peer == Identity("cluster-a", BOB)
    await trio.aclose_forcefully(dialed.stream)
    with trio.fail_after(30):
        for stream in streams:
            await read_to_the_end(stream)
    assert len(listening.host.server.places._handshakes) == 0
    assert len(listening.host.incidents) < 10


async def test_tls_below_1_3_is_refused(listening: ListeningServer) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    transport = await trio.open_tcp_stream("127.0.0.1", listening.port)
    stream = trio.SSLStream(transport, context)
    with pytest.raises(trio.BrokenResourceError):
        await stream.do_handshake()
    await trio.aclose_forcefully(transport)


async def test_answered_request_does_not_time_out(
    tmp_path: Path, mock_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    # Given an answered request
    host = Host(BOB, connection=ConnectionOptions(answer_s=1.0, idle_s=60.0))
    certificate = load_or_create_certificate(tmp_path)
    port: int = await nursery.start(host.server.listen, "127.0.0.1", 0, certificate)
    links, receiver = await linked(nursery, PeerAddress("127.0.0.1", port, certificate.fingerprint))
    links.send(BOB, core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=77))
    await receiver.wait_replies(1)
    # When no bytes arrive for longer than the reply timeout
    mock_clock.jump(30)
    await trio.testing.wait_all_tasks_blocked(0.01)
    # Then the connection is still usable
    links.send(BOB, core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=78))
    assert (await receiver.wait_replies(2))[1].correlation == 78
    assert host.incidents == []
    assert host.metrics.counts[ConnectionEvent.CONNECTIONS_ESTABLISHED] == 1


async def test_thousand_requests_do_not_starve_other_tasks(tmp_path: Path, nursery: trio.Nursery) -> None:
    # Given a peer whose requests can all be answered immediately, and a task that is always ready to run
    host = Host(BOB, connection=ConnectionOptions(window=8))
    certificate = load_or_create_certificate(tmp_path)
    most = 0

    async def take_turns() -> None:
        nonlocal most
        while True:
            before = host.handler.refused
            await trio.lowlevel.checkpoint()
            most = max(most, host.handler.refused - before)

    port: int = await nursery.start(host.server.listen, "127.0.0.1", 0, certificate)
    dialed = await dialer().dial(PeerAddress("127.0.0.1", port, certificate.fingerprint), BOB)
    nursery.start_soon(take_turns)
    # When a thousand requests arrive together
    one = encode_request(RemoveServerRequest(entries=(LogEntry(0, ClusterServer(ALICE, None)),)))
    await dialed.stream.send_all(one * 1000)
    with trio.fail_after(60):
        while host.handler.refused < 1000:  # noqa: ASYNC110 - the handler has no event
            await trio.sleep(0.001)
    await trio.aclose_forcefully(dialed.stream)
    # Then at most two windows of requests are handled between two runs of the task
    assert most <= 2 * 8


async def test_window_of_one_admits_requests_one_at_a_time(tmp_path: Path, nursery: trio.Nursery) -> None:
    host = Host(BOB, connection=ConnectionOptions(window=1))
    certificate = load_or_create_certificate(tmp_path)
    port: int = await nursery.start(host.server.listen, "127.0.0.1", 0, certificate)
    links, receiver = await linked(nursery, PeerAddress("127.0.0.1", port, certificate.fingerprint))
    for correlation in range(5):
        links.send(BOB, core.RequestVote(term=3, candidate=ALICE, last=LogId(9, 2), correlation=correlation))
    with trio.fail_after(60):
        assert [reply.correlation for reply in await receiver.wait_replies(5)] == [*range(5)]


async def linked(nursery: trio.Nursery, address: PeerAddress) -> tuple[PeerLinks, RecordedReceiver]:
    """Return Alice's links, connected to Bob, and the receiver of Bob's replies."""
    links, receiver = PeerLinks(dialer(), lambda _: address, metrics=Metrics(), random=Random(5)), RecordedReceiver()
    await nursery.start(links.run, receiver)
    links.connect([BOB])
    await receiver.connected.wait()
    return links, receiver
