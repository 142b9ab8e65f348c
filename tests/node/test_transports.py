"""Connections to a server: through an HTTP proxy into I2P, or by TLS with an authority; plain ones are refused."""

from pathlib import Path
from random import Random

import pytest
import trio
from msgspec.structs import replace

from consensus.core.effects import Outcome
from consensus.net.tls import CertificateError, authority_context, operator_certificate
from consensus.protocols.garlic_farm.node.client import GarlicFarmClient
from consensus.protocols.garlic_farm.node.connectors import (
    Connector,
    HttpProxy,
    I2pConnector,
    TlsConnector,
    is_i2p_name,
)
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.proxy import ProxyMode
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from tests.effort import each_case
from tests.i2p_proxy import LOOPBACK, I2pProxy, b32_name
from tests.node.certificates import Authority
from tests.node.garlic_farm_stage import ALICE, BOB, CREDENTIALS, Host, expect_fault, peers_of

NAME = b32_name(1)
BOB_IN_I2P = PeerAddress(NAME, 7669, None)
LOGIN = Credentials("user", "secret")


def dialer(transport: Connector) -> Dialer:
    identity = Identity("cluster-a", ALICE)
    caller = Initiator("farm", lambda: (CREDENTIALS,), lambda: identity, Random(4).randbytes, peers_of(ALICE))
    return Dialer(caller, transport=transport)


def through(proxy: I2pProxy, mode: ProxyMode, credentials: Credentials | None = None) -> Dialer:
    return dialer(I2pConnector(HttpProxy(LOOPBACK, proxy.port, mode, credentials), Random(3).randbytes))


async def listening(nursery: trio.Nursery, host: Host) -> dict[str, int]:
    """Open a server tunnel to `host`, and return its port by its name."""
    port: int = await nursery.start(host.server.listen_plain, LOOPBACK, 0, NAME)
    return {NAME: port}


@pytest.mark.parametrize("mode", ProxyMode)
@pytest.mark.parametrize("scheme", [None, "basic", "digest"])
async def test_entries_are_submitted_through_rewriting_proxy(
    mode: ProxyMode, scheme: str | None, nursery: trio.Nursery
) -> None:
    host = Host(BOB)
    with I2pProxy(await listening(nursery, host), scheme=scheme) as proxy:
        calls = through(proxy, mode, None if scheme is None else LOGIN)
        client = GarlicFarmClient(calls, lambda _: BOB_IN_I2P, [BOB], random=Random(6))
        await nursery.start(client.run)
        submission = await client.submit([b"{}"])
        assert submission.outcome is Outcome.COMMITTED
        assert host.handler.log == [b"{}"]
        # The proxy's challenge is cached: one more connection causes neither a 407 nor a 401.
        requests, refused = len(proxy.requests), proxy.refused_logins
        await trio.aclose_forcefully((await calls.dial(BOB_IN_I2P, BOB)).stream)
        assert (len(proxy.requests), proxy.refused_logins) == (requests + 1, refused)
        verb = "GET http://" if mode is ProxyMode.ABSOLUTE_URI else "CONNECT "
        assert all(line.startswith(verb + NAME) for line in proxy.requests)
        assert not any(b"roxy-Auth" in head for head in proxy.passed_heads)
        assert host.incidents == []


@pytest.mark.parametrize("mode", ProxyMode)
async def test_proxy_refusal_differs_from_server_refusal(mode: ProxyMode, nursery: trio.Nursery) -> None:
    host = Host(BOB)
    with I2pProxy(await listening(nursery, host), scheme="basic") as proxy:
        wrong = await expect_fault(through(proxy, mode, replace(LOGIN, password="guess")), BOB_IN_I2P)  # noqa: S106 - the test's own
        assert (wrong.fault, "[proxy] user and password_file" in str(wrong)) == (Fault.PROXY_REFUSED, True)
        none = await expect_fault(through(proxy, mode), BOB_IN_I2P)
        assert (none.fault, "requires a password" in str(none)) == (Fault.PROXY_REFUSED, True)
        unknown = await expect_fault(through(proxy, mode, LOGIN), PeerAddress(b32_name(2), 7669, None))
        assert unknown.fault is Fault.UNREACHABLE
        assert "cannot be reached at the moment" in str(unknown)
    stopped = await expect_fault(through(proxy, mode, LOGIN), BOB_IN_I2P)
    assert "is the router's HTTP proxy running there?" in str(stopped)


@pytest.mark.parametrize("mode", ProxyMode)
async def test_i2p_handshake_is_bound_to_dialed_name(mode: ProxyMode, nursery: trio.Nursery) -> None:
    """Given a relay with its own I2P name, when a client dials this name, then Bob's proof does not verify."""
    host, middle = Host(BOB), b32_name(2)
    names = await listening(nursery, host)
    with I2pProxy({**names, middle: names[NAME]}) as proxy:
        relayed = await expect_fault(through(proxy, mode), PeerAddress(middle, 7669, None), BOB)
        assert (relayed.fault, host.faults) == (Fault.UNPROVEN, {Fault.UNPROVEN})
        assert "I2P" in str(relayed)
        await trio.aclose_forcefully((await through(proxy, mode).dial(BOB_IN_I2P, BOB)).stream)


@pytest.mark.parametrize("place", ["192.168.1.1", "192.0.2.7", "router.lan"])
async def test_proxy_on_other_machine_is_not_called(place: str) -> None:
    """The connection to the proxy is plain, and the handshake's proof does not protect later data."""
    refused = await expect_fault(dialer(I2pConnector(HttpProxy(place, 4444), Random(3).randbytes)), BOB_IN_I2P)
    assert refused.fault is Fault.PLAIN_REFUSED
    assert "a machine between could change data after the handshake" in str(refused)


@each_case(
    ("name", "expected"),
    [
        (NAME, True),
        ("a" * 56 + ".b32.i2p", True),
        ("Farm.Example.I2P", True),
        ("i2p", False),
        ("example.i2p.example.org", False),
        ("example-i2p", False),
        ("127.0.0.1", False),
        ("a..i2p", False),
        ("a b.i2p", False),
        ("x" * 250 + ".i2p", False),
    ],
)
def test_i2p_names_are_recognized_by_their_end(name: str, expected: bool) -> None:  # noqa: FBT001 - a table
    assert is_i2p_name(name) is expected


async def test_i2p_dialer_leaks_neither_plain_data_nor_names() -> None:
    def dns(*_: object) -> None:
        raise AssertionError("a name was looked up")

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *_: object, **__: object) -> list[object]:  # type: ignore[override]  # never returns
            dns()
            return []

        async def getnameinfo(self, *_: object) -> tuple[str, str]:
            dns()
            return "", ""

    trio.socket.set_custom_hostname_resolver(Resolver())
    into_i2p = dialer(I2pConnector(HttpProxy(LOOPBACK, 9), Random(3).randbytes))
    for address in (PeerAddress("192.0.2.7", 7669, None), PeerAddress("farm.example.org", 7669, bytes(32))):
        plain = await expect_fault(into_i2p, address)
        assert (plain.fault, "not a name within I2P" in str(plain)) == (Fault.PLAIN_REFUSED, True)
    outside = await expect_fault(dialer(TlsConnector()), BOB_IN_I2P)
    assert (outside.fault, 'transport = "i2p"' in str(outside)) == (Fault.PLAIN_REFUSED, True)


async def test_server_without_tls_needs_loopback() -> None:
    with pytest.raises(GarlicFarmError, match="not a loopback address"):
        await Host(BOB).server.listen_plain("0.0.0.0", 0, NAME)  # noqa: S104 - refused


async def test_server_without_announced_certificate_is_not_called() -> None:
    failure = await expect_fault(dialer(TlsConnector()), PeerAddress(LOOPBACK, 9, None))
    assert (failure.fault, "ca_file" in str(failure)) == (Fault.WRONG_CERTIFICATE, True)


async def connect_with_authority(
    tmp_path: Path, named: str, *, days: tuple[int, int] = (-1, 7)
) -> GarlicFarmError | None:
    """Connect Alice to 127.0.0.1, where Bob has a certificate for `named`.

    Return her error, or None if she connects.
    """
    authority, host = Authority(tmp_path), Host(BOB)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(host.server.listen, LOOPBACK, 0, authority.certificate(named, days=days))
        calls = dialer(TlsConnector(authority_context(authority.file)))
        try:
            dialed = await calls.dial(PeerAddress(LOOPBACK, port, None), BOB)
        except GarlicFarmError as error:
            with trio.fail_after(60):
                await host.incident_reported.wait()
            assert host.faults == {Fault.DISTRUSTED}
            return error
        else:
            await trio.aclose_forcefully(dialed.stream)
            return None
        finally:
            nursery.cancel_scope.cancel()


async def test_authority_signed_certificate_for_address_is_accepted(tmp_path: Path) -> None:
    assert await connect_with_authority(tmp_path, LOOPBACK) is None


@pytest.mark.parametrize(
    ("named", "days", "message"),
    [
        ("192.0.2.9", (-1, 7), "IP address mismatch"),
        ("farm.example.org", (-1, 7), "name 127.0.0.1"),
        (LOOPBACK, (-7, -1), "expired"),
        (LOOPBACK, (1, 7), "not yet valid"),
    ],
)
async def test_authority_signed_certificate_must_be_valid_and_match(
    tmp_path: Path, named: str, days: tuple[int, int], message: str
) -> None:
    failure = await connect_with_authority(tmp_path, named, days=days)
    assert failure is not None
    assert failure.fault is Fault.WRONG_CERTIFICATE
    assert message in str(failure)


async def test_certificate_of_other_authority_is_refused(tmp_path: Path, nursery: trio.Nursery) -> None:
    host, theirs = Host(BOB), Authority(tmp_path, "theirs").certificate(LOOPBACK)
    port: int = await nursery.start(host.server.listen, LOOPBACK, 0, theirs)
    own_context = authority_context(Authority(tmp_path, "ours").file)
    failure = await expect_fault(dialer(TlsConnector(own_context)), PeerAddress(LOOPBACK, port, theirs.fingerprint))
    assert failure.fault is Fault.WRONG_CERTIFICATE


def test_unusable_operator_certificate_is_explained(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    good = authority.certificate(LOOPBACK)
    assert operator_certificate(good.path) == good
    with pytest.raises(CertificateError, match="have the authority sign a new one"):
        operator_certificate(authority.certificate(LOOPBACK, days=(-7, -1)).path)
    good.path.chmod(0o644)
    with pytest.raises(CertificateError, match="chmod 600"):
        operator_certificate(good.path)
    authority.file.chmod(0o600)
    with pytest.raises(CertificateError, match="private key"):
        operator_certificate(authority.file)
    with pytest.raises(CertificateError, match="cannot be read"):
        operator_certificate(tmp_path / "nothing")
    with pytest.raises(CertificateError, match="authority's certificate"):
        authority_context(tmp_path / "nothing")
