"""Two nodes connect with pinned certificates, with an authority, or over I2P.

They log in as the user of the farm key, or as a user in a server's own `users_file`.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from bridge.node.raft.connecting import Connecting, HandshakeWords, bound_port, load_transport
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.node.settings.configuration import load_configuration
from bridge.node.settings.machine import Machine, Network
from bridge.wire.keys.farm_key import new_farm_key
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.node.metrics import Incident, Metrics
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import ListedPeers
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from gossip.core.member import Address
from gossip.node.discovery import LanInterface
from tests.i2p_proxy import LOOPBACK, I2pProxy, b32_name
from tests.node.certificates import Authority
from tests.node.garlic_farm_stage import ALICE, BOB, SERVER_KEYS, ScriptedHandler, key_of
from tests.node.test_users import private

NAME = b32_name(1)
LAN = LanInterface("eth0", "192.168.7.5", "192.168.7.255")


@dataclass
class Party:
    """Listener and dialer of one node."""

    connecting: Connecting
    incidents: list[Incident]


def party(directory: Path, farm_key: Path, settings: str) -> Party:
    directory.mkdir()
    (directory / "node.toml").write_text(f'farm_key = "{farm_key}"\nstate_dir = "{directory}"\n{settings}')
    machine = Machine("node", directory, Network(lambda: [LAN], lambda: None))
    configuration = load_configuration(directory / "node.toml", machine=machine)
    incidents: list[Incident] = []
    peers = ListedPeers(key_of(BOB if directory.name == "bob" else ALICE), SERVER_KEYS)
    server_id = BOB if directory.name == "bob" else ALICE
    connecting = Connecting(
        configuration,
        load_transport(configuration),
        FarmKeys(farm_key, load_farm_key(farm_key)),
        peers,
        ScriptedHandler(server_id),
        lambda: Identity("c", server_id),
        Metrics(incidents.append),
        HandshakeWords(),
    )
    return Party(connecting, incidents)


async def meet(bob: Party, alice: Party, named: str = LOOPBACK, proxy: I2pProxy | None = None) -> Fault | None:
    """Let the party `alice` connect to the party `bob`; return the fault of the connection, or None."""
    bind = Address(LOOPBACK, 0)
    async with bound_port(bind) as bound, trio.open_nursery() as nursery:
        port = await bob.connecting.listen(nursery, bind, bound)
        if proxy is not None:
            proxy.names[NAME] = port
        address = PeerAddress(named, 7669 if proxy is not None else port, bob.connecting.transport.fingerprint)
        try:
            dialer = alice.connecting.dialer(lambda: Identity("c", ALICE), ConnectionRole.SERVER)
            dialed = await dialer.dial(address, BOB)
            await trio.aclose_forcefully(dialed.stream)
        except GarlicFarmError as error:
            return error.fault
        finally:
            nursery.cancel_scope.cancel()
    return None


@pytest.fixture
def farm_key(tmp_path: Path) -> Path:
    save_farm_key(tmp_path / "farm.key", new_farm_key(3))
    return tmp_path / "farm.key"


async def test_farm_key_with_pinned_certificate_is_enough(tmp_path: Path, farm_key: Path) -> None:
    bob, alice = party(tmp_path / "bob", farm_key, ""), party(tmp_path / "alice", farm_key, "")
    assert await meet(bob, alice) is None
    other = tmp_path / "other.key"
    save_farm_key(other, new_farm_key(3))
    assert await meet(bob, party(tmp_path / "carol", other, "")) is Fault.WRONG_CREDENTIALS


async def test_authority_replaces_pins(tmp_path: Path, farm_key: Path) -> None:
    authority = Authority(tmp_path)

    def settings(host: str) -> str:
        certificate = authority.certificate(host).path
        return f'[consensus]\nca_file = "{authority.file}"\ncertificate = "{certificate}"'

    bob, alice = (
        party(tmp_path / "bob", farm_key, settings(LOOPBACK)),
        party(tmp_path / "alice", farm_key, settings("a.example")),
    )
    assert await meet(bob, alice) is None
    assert await meet(alice, bob) is Fault.WRONG_CERTIFICATE


async def test_i2p_works_without_certificate_or_gossip(tmp_path: Path, farm_key: Path) -> None:
    with I2pProxy({}) as proxy:
        settings = (
            f'transport = "i2p"\n[consensus]\nadvertise = "{NAME}:7669"\n[proxy]\naddress = "{LOOPBACK}:{proxy.port}"'
        )
        bob, alice = party(tmp_path / "bob", farm_key, settings), party(tmp_path / "alice", farm_key, settings)
        assert bob.connecting.transport.fingerprint is None
        assert await meet(bob, alice, NAME, proxy) is None
        assert await meet(bob, alice, LOOPBACK, proxy) is Fault.PLAIN_REFUSED


async def test_server_with_own_users_admits_peer_with_login(tmp_path: Path, farm_key: Path) -> None:
    users = private(tmp_path / "users", "alice:for bob\n")
    with I2pProxy({}) as proxy:
        by_i2p = (
            f'transport = "i2p"\n[consensus]\nadvertise = "{NAME}:7669"\n%s\n'
            f'[proxy]\naddress = "{LOOPBACK}:{proxy.port}"'
        )
        bob = party(tmp_path / "bob", farm_key, by_i2p % f'users_file = "{users}"')
        carol = party(tmp_path / "carol", farm_key, by_i2p % "")
        assert await meet(bob, carol, NAME, proxy) is Fault.WRONG_CREDENTIALS
        assert [each.fault for each in bob.incidents] == [Fault.WRONG_CREDENTIALS]
        logins = private(tmp_path / "logins", f"{NAME}:7669 alice:for bob\n")
        alice = party(tmp_path / "alice", farm_key, by_i2p % f'logins_file = "{logins}"')
        assert await meet(bob, alice, NAME, proxy) is None
