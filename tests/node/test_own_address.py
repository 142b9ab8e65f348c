"""The address chosen by a node without a configured one, for each kind of machine."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.cli.run import ADDRESS_WAIT_S, loaded_when_addressed
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, Overrides, load_configuration
from bridge.node.settings.machine import Machine, Network, NoAddressError, Reach, choose_address, reach_of
from gossip import Address
from gossip.node import LanInterface
from tests.effort import each_case

LAN = LanInterface("eth0", "10.1.2.3", "10.1.2.255")
SECOND_LAN = LanInterface("eth1", "10.1.2.4", "10.1.2.255")
OTHER_LAN = LanInterface("wlan0", "192.168.7.5", "192.168.7.255")
LAN_DOWN = LanInterface("eth0", "10.1.2.3", "10.1.2.255", is_up=False)
PUBLIC = LanInterface("eth0", "203.0.113.7", "203.0.113.255")
BEFORE_LEASE = LanInterface("eth0", "169.254.7.7", "169.254.255.255")
DOCKER = LanInterface("docker0", "172.17.0.1", "172.17.255.255")
LIBVIRT = LanInterface("virbr0", "192.168.122.1", "192.168.122.255")
TUNNEL = LanInterface("tun0", "10.8.0.2")
TAILSCALE = LanInterface("tailscale0", "100.64.0.5")
WIREGUARD = LanInterface("wg0", "10.9.0.4", "10.9.0.255")
PROVIDER = LanInterface("eth0", "100.64.0.5", "100.127.255.255")
IPV6 = LanInterface("eth0", "fd00::5", "ff02::1")
IPV6_LINK = LanInterface("eth0", "fe80::5")
UNPLUGGED = LanInterface("eth1", "", is_up=False)
WAITING = LanInterface("eth0", "")


@dataclass(frozen=True, slots=True)
class Case:
    """A machine, and the address to choose; None if the configuration must be refused."""

    interfaces: tuple[LanInterface, ...]
    route: str | None
    host: str | None
    waits_for: tuple[str, ...] = ()


CASES = {
    "public default route with docker": Case((PUBLIC, DOCKER), "203.0.113.7", None),
    "LAN with libvirt, default route by a tunnel": Case((LAN, LIBVIRT, TUNNEL), "10.8.0.2", "10.1.2.3"),
    "tailscale alone": Case((TAILSCALE,), None, "100.64.0.5"),
    "two interfaces in one subnet": Case((LAN, SECOND_LAN), "10.1.2.4", "10.1.2.4"),
    "LAN without a route, and docker": Case((LAN, DOCKER), None, "10.1.2.3"),
    "IPv6 alone": Case((IPV6_LINK, IPV6), None, "fd00::5"),
    "link-local before the lease": Case((BEFORE_LEASE,), None, None, ("eth0",)),
    "link-local and tailscale": Case((BEFORE_LEASE, TAILSCALE), "100.64.0.5", "100.64.0.5", ("eth0",)),
    "LAN not up yet, and docker": Case((LAN_DOWN, DOCKER), None, None, ("eth0",)),
    "no address yet, and docker with the route": Case((WAITING, DOCKER), "172.17.0.1", None, ("eth0",)),
    "LAN and a default route by docker": Case((LAN, DOCKER), "172.17.0.1", "10.1.2.3"),
    "one LAN": Case((LAN, UNPLUGGED), None, "10.1.2.3"),
    "one LAN and a VPN with the default route": Case((LAN, WIREGUARD), "10.9.0.4", "10.1.2.3"),
    "wireguard alone": Case((WIREGUARD,), None, "10.9.0.4"),
    "two VPNs before the lease of a LAN": Case((WAITING, TAILSCALE, WIREGUARD), None, None, ("eth0",)),
    "two LANs without a route": Case((LAN, OTHER_LAN), None, None),
    "two LANs with a route": Case((LAN, OTHER_LAN), "192.168.7.5", "192.168.7.5"),
    "two LANs and a public route": Case((LAN, OTHER_LAN, LanInterface("ppp0", "203.0.113.7")), "203.0.113.7", None),
    "public interface and a LAN": Case((LanInterface("ens3", "203.0.113.7"), LAN), "203.0.113.7", "10.1.2.3"),
    "addresses of a provider": Case((PROVIDER,), "100.64.0.5", None),
    "IPv4 and IPv6": Case((IPV6, LAN), "fd00::5", "10.1.2.3"),
    "IPv6 link-local alone": Case((IPV6_LINK,), None, None, ("eth0",)),
    "a cloud machine with one address of 32 bits": Case(
        (LanInterface("ens4", "10.128.0.2"),), "10.128.0.2", "10.128.0.2"
    ),
    "loopback alone": Case((), None, None),
}


def network(*interfaces: LanInterface, route: str | None = None) -> Network:
    return Network(lambda: list(interfaces), lambda: route)


@each_case("name", CASES)
def test_address_is_chosen_by_interface_and_route(name: str) -> None:
    case = CASES[name]
    machine = network(*case.interfaces, route=case.route)
    if case.host is not None:
        chosen = choose_address(machine)
        assert (chosen.host, chosen.waits_for) == (case.host, case.waits_for)
        assert chosen.interface in str(chosen)
        return
    with pytest.raises(NoAddressError) as refused:
        choose_address(machine)
    assert refused.value.waits_for == case.waits_for
    own = [
        each.host for each in case.interfaces if each.host and each.name != "ppp0" and not each.host.startswith("fe80")
    ]
    assert all(host in str(refused.value) for host in own)
    # Only a machine without any address reachable by others gets the example for farms of a single machine.
    assert refused.value.example in (own or ["127.0.0.1"])
    assert refused.value.example != DOCKER.host or own == [DOCKER.host]


@each_case("name", [name for name, case in CASES.items() if case.host is None])
def test_example_of_refusal_is_accepted_as_printed(name: str, tmp_path: Path) -> None:
    machine = Machine("r", tmp_path, network(*CASES[name].interfaces, route=CASES[name].route))
    with pytest.raises(ConfigurationError, match=r"gossip\.bind: ") as refused:
        load_configuration(None, Overrides(farm_key=Path("k")), machine)
    text = str(refused.value)
    written = text.partition("for instance with ")[2].partition(" in [gossip]")[0].partition(" and allow_wan")[0]
    wide = "allow_wan = true\n" if "allow_wan" in text else ""
    file = tmp_path / "node.toml"
    file.write_text(f'farm_key = "k"\n[gossip]\n{wide}{written}\n')
    assert load_configuration(file, machine=machine).gossip is not None


@each_case(
    "interface",
    [
        *("docker0", "docker_gwbridge", "br-0a1b2c3d4e5f", "veth12ab", "virbr0", "virbr0-nic", "lxcbr0", "lxdbr0"),
        *("cni0", "cni-podman0", "flannel.1", "cali1234", "podman0", "vmnet8", "vboxnet0", "kube-ipvs0", "incusbr0"),
    ],
)
def test_machine_local_interfaces_are_not_candidates(interface: str) -> None:
    assert reach_of(interface) is Reach.MACHINE
    only = LanInterface(interface, "172.20.0.1", "172.20.255.255")
    with pytest.raises(NoAddressError):
        choose_address(network(only, route="172.20.0.1"))
    assert choose_address(network(only, LAN, route="172.20.0.1")).host == LAN.host


@each_case("interface", ["eth0", "enp3s0", "wlan0", "wlp2s0", "br0", "br-lan", "bond0", "en0", "vlan7"])
def test_lan_interfaces_are_candidates(interface: str) -> None:
    assert choose_address(network(LanInterface(interface, "172.20.0.1", "172.20.255.255"))).host == "172.20.0.1"


def test_ipv6_address_is_announced_to_its_link() -> None:
    machine = Machine("r", Path("/var/state"), network(IPV6))
    gossip = load_configuration(None, Overrides(farm_key=Path("k")), machine).gossip
    assert gossip is not None
    assert (gossip.bind, gossip.broadcast, gossip.interface) == (
        Address("fd00::5", 7668),
        Address("ff02::1", 7668),
        "eth0",
    )


def test_vpn_address_is_not_announced() -> None:
    machine = Machine("r", Path("/var/state"), network(WIREGUARD))
    gossip = load_configuration(None, Overrides(farm_key=Path("k")), machine).gossip
    assert gossip is not None
    assert (gossip.bind.host, gossip.broadcast) == ("10.9.0.4", None)


def test_configured_address_lacks_reason_of_choice(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('farm_key = "k"\n[gossip]\nbind = "10.1.2.3:7668"\n')
    gossip = load_configuration(file, machine=Machine("r", tmp_path, network(LAN))).gossip
    assert gossip is not None
    assert gossip.chosen is None


class Boot:
    """A machine that gets an address while the node waits."""

    def __init__(self, *steps: tuple[LanInterface, ...]) -> None:
        self.steps = list(steps)
        self.now_s = 0.0

    def load(self, toml: str = "") -> NodeConfiguration:
        """Load the configuration with the present interfaces."""
        file = self.directory / "node.toml"
        file.write_text(f'farm_key = "k"\n{toml}')
        return load_configuration(file, machine=Machine("r", self.directory, network(*self.steps[0])))

    def sleep(self, duration_s: float) -> None:
        """Advance time to the next step."""
        self.now_s += duration_s
        if len(self.steps) > 1:
            del self.steps[0]

    directory: Path


@pytest.fixture
def boot(tmp_path: Path) -> Boot:
    found = Boot((LAN_DOWN, DOCKER), (BEFORE_LEASE, DOCKER), (LAN, DOCKER))
    found.directory = tmp_path
    return found


def test_node_waits_for_interface_that_is_not_up_yet(boot: Boot) -> None:
    configuration = loaded_when_addressed(boot.load, boot.sleep, lambda: boot.now_s)
    assert configuration.gossip is not None
    assert configuration.gossip.bind.host == LAN.host


def test_node_uses_vpn_only_after_waiting_for_lan(boot: Boot) -> None:
    boot.steps = [(BEFORE_LEASE, TAILSCALE)]
    configuration = loaded_when_addressed(boot.load, boot.sleep, lambda: boot.now_s)
    assert configuration.gossip is not None
    assert (configuration.gossip.bind.host, boot.now_s) == (TAILSCALE.host, ADDRESS_WAIT_S)


def test_node_refuses_to_start_without_address(boot: Boot) -> None:
    boot.steps = [(LAN_DOWN, DOCKER)]
    with pytest.raises(ConfigurationError, match=r"eth0: 10\.1\.2\.3 is down"):
        loaded_when_addressed(boot.load, boot.sleep, lambda: boot.now_s)
    assert boot.now_s == ADDRESS_WAIT_S


def test_node_with_invalid_configuration_does_not_wait(boot: Boot) -> None:
    boot.steps = [(LAN_DOWN, DOCKER)]
    with pytest.raises(ConfigurationError):
        loaded_when_addressed(lambda: boot.load("unknown = 1\n"), boot.sleep, lambda: boot.now_s)
    assert boot.now_s == 0.0
