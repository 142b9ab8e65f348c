"""Processor time of what a proof adds: to one handshake, and to one report.

The handshakes pass no socket: request, challenge, request, answer, client and server in one thread. *Without proofs* is
the same code with a directory that signs nothing and accepts everything, and a client that checks nothing. A TLS 1.3
handshake in memory stands beside them, since every connection has one. A report is what a node with one leaf writes
each period.
"""

import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from os import urandom
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.figures import Figure
from bridge.core.log.records import LeafStatus, MetaStatus, PublishConfig, Report, RouterStatus
from bridge.wire.log.entries import encode
from bridge.wire.log.proof import proven, sign_entry
from consensus.net import client_context, load_or_create_certificate
from consensus.protocols.garlic_farm import (
    SIGNATURE_BYTES,
    Authenticator,
    Caller,
    Claim,
    ConnectionRole,
    Credentials,
    Identity,
    ListedPeers,
    NonceBook,
    PeerDirectory,
    Session,
    Switched,
    UpgradeClient,
    Upgraded,
    UpgradeServer,
    tls_channel,
)

CLUSTER_ID = bytes(range(16))
CHANNEL = tls_channel(bytes(32))
HANDSHAKES = 200
ENTRIES = 2_000
CLIENT, SERVER = 1, 2
_NOW_MS = 1_000
"""A constant time, so that no challenge expires."""
_CREDENTIALS = Credentials("router", "not a secret: both ends are in this process")


def measure(directory: Path, runs: int) -> list[Figure]:
    """The figures; the variants take turns."""
    key = Ed25519PrivateKey.generate()
    with_proofs, without = handshake(proving=True), handshake(proving=False)
    entry, numbers = report(), iter(range(1, 2**53))
    tls = _tls_handshake(directory)
    signed = sign_entry(entry, key, CLUSTER_ID, next(numbers))
    costs: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, count, work in (
            ("with proofs", HANDSHAKES, with_proofs),
            ("without", HANDSHAKES, without),
            ("tls", HANDSHAKES, tls),
            ("sign", ENTRIES, lambda: sign_entry(entry, key, CLUSTER_ID, next(numbers))),
            ("verify", ENTRIES, lambda: proven(signed, CLUSTER_ID)),
        ):
            costs.setdefault(name, []).append(_processor_us(work, count))
    ratios = tuple(proved / bare for proved, bare in zip(costs["with proofs"], costs["without"], strict=True))
    group = "identity, one handshake, both ends together"
    of_report = "identity, one report"
    return [
        Figure(group, "processor, with proofs", "us", tuple(costs["with proofs"])),
        Figure(group, "processor, without proofs", "us", tuple(costs["without"])),
        Figure(group, "with proofs / without", "x", ratios),
        Figure(group, "processor, TLS 1.3 beside it", "us", tuple(costs["tls"])),
        Figure(of_report, "processor, signed", "us", tuple(costs["sign"])),
        Figure(of_report, "processor, verified", "us", tuple(costs["verify"])),
        Figure(of_report, "bytes, signed", "B", (float(len(signed)),)),
        Figure(of_report, "bytes of the proof", "B", (float(len(signed) - len(entry)),), f"of {len(signed)}"),
    ]


def report(server: int = 1) -> bytes:
    """What a node with one leaf behind one master writes, without a proof and a request."""
    leaf, master = _destination(1), _destination(2)
    return encode(
        Report(
            cluster="benchmark",
            date_ms=1_700_000_000_000,
            server_id=server,
            router=RouterStatus(attached=True, uptime_ms=3_600_000, job_lag_ms=0.0),
            masters=(MetaStatus(master, PublishConfig.ON, publishing=False, last_published_time_ms=0),),
            destinations=(LeafStatus(leaf, healthy=True, uptime_ms=3_600_000),),
        )
    )


def _destination(fill: int) -> str:
    """Ed25519, 391 bytes, in I2P's base64, without a private key."""
    return b64encode(bytes([fill]) * 384 + bytes.fromhex("05000400070000"), altchars=b"-~").decode()


def handshake(*, proving: bool) -> Callable[[], None]:
    """Carries one handshake out, from no challenge to the switch, each time it is called."""
    keys: dict[int, bytes] = {}
    sides: dict[int, PeerDirectory] = {}
    for server in (CLIENT, SERVER):
        key = Ed25519PrivateKey.generate()
        keys[server] = key.public_key().public_bytes_raw()
        sides[server] = ListedPeers(key, keys) if proving else _Believing()
    identities = {server: Identity("benchmark", server) for server in (CLIENT, SERVER)}
    caller = Caller(
        "farm",
        lambda: (_CREDENTIALS,),
        lambda: identities[CLIENT] if proving else Identity("benchmark"),
        urandom,
        sides[CLIENT] if proving else None,
        ConnectionRole.SERVER if proving else ConnectionRole.CLIENT,
    )
    authenticator = Authenticator(
        "farm",
        {_CREDENTIALS.user: _CREDENTIALS.password}.get,
        NonceBook(urandom(32), urandom),
        lambda: identities[SERVER],
        peers=sides[SERVER],
    )

    def once() -> None:
        session, outcome = Session(), None
        while not isinstance(outcome, Switched):
            client = UpgradeClient(caller, session, "127.0.0.1:7669", _NOW_MS, channel=CHANNEL, called=SERVER)
            server = UpgradeServer(authenticator, CHANNEL)
            verdict = server.receive(client.request(), _NOW_MS)
            if verdict is None:
                raise AssertionError("the server waits for more of a whole request")
            outcome = client.receive(verdict.response)
            if isinstance(outcome, Switched):
                _check(proving, outcome, verdict)

    return once


def _check(proving: bool, client: Switched, server: object) -> None:  # noqa: FBT001 - what is compared
    """What is measured must be what its name says."""
    proven_there = isinstance(server, Upgraded) and server.proven is not None
    if (client.proven is not None, proven_there) != (proving, proving):
        raise AssertionError(f"proving: {proving}, but client and server found {client.proven} and {server}")


class _Believing:
    """A directory that costs nothing."""

    public_key = bytes(32)

    def sign(self, _data: bytes) -> bytes:
        """No signature."""
        return bytes(SIGNATURE_BYTES)

    def admissions(self) -> tuple[bytes, ...]:
        """None."""
        return ()

    def judge(self, _claim: Claim) -> None:
        """Accept every claim."""

    def voucher_of(self, _claim: Claim) -> None:
        """None: each peer has a share of its own."""


def _tls_handshake(directory: Path) -> Callable[[], None]:
    accepting, calling = load_or_create_certificate(directory).server_context(), client_context()

    def once() -> None:
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        client, server = calling.wrap_bio(back, there), accepting.wrap_bio(there, back, server_side=True)
        waiting = [client, server]
        while waiting:
            for side in tuple(waiting):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                waiting.remove(side)

    return once


def _processor_us(work: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count * 1e6
