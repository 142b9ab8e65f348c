"""Three machines on a LAN, each with the Debian package: they find each other, publish, and take over from one another.

The configuration is that of the package. It names no address and no other node; a test adds what a farm is to
publish. A router's stand-in writes structures to files, which the tests read and verify.
"""

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.layout import Read, read_meta_lease_set
from tests.packages.lan import Lan
from tests.packages.machine import Machine
from tests.packages.on_loopback import DEMO
from tests.packages.service import READY_BOUND_S, Service

pytestmark = pytest.mark.packages

NODES = 3
FARM_BOUND_S = 120.0
POLL_S = 0.2
PUBLISHES = """
[publishing]
signing_key = "/etc/garlicfarm/signing.key"
pace = "reporting-period"
reporting_period_ms = 2000
[[leaf]]
destination = "{leaf}"
"""
KEYS = "etc/garlicfarm"
STATE = "var/lib/garlicfarm"


@dataclass(frozen=True)
class Node:
    """One machine with the package, and its address, which only the LAN knows."""

    machine: Machine
    address: str

    def give(self, name: str, content: bytes) -> None:
        """Put a key file where the package wants it, as an operator does."""
        file = self.machine.root / KEYS / name
        file.write_bytes(content)
        file.chmod(0o600)

    def begin_anew(self, host_name: str, farm_key: bytes) -> None:
        """A machine of this name without a state, with this key file."""
        self.machine.run("sh", "-c", f"echo {host_name} >/proc/sys/kernel/hostname; rm -rf /{STATE}/*")
        self.give("farm.key", farm_key)

    def verdict(self) -> str:
        """The first line of `garlicfarm status`, as root calls it."""
        return self.machine.run("garlicfarm", "status", check=False).stdout.partition("\n")[0]

    def view(self) -> dict[str, Any]:
        """What its node sees; nothing while it does not answer."""
        told = self.machine.run("garlicfarm", "status", "--json", check=False).stdout
        return dict(json.loads(told)) if told else {}

    def published(self) -> Read | None:
        """The structure that its router's stand-in has."""
        files = sorted((self.machine.root / STATE / "published").glob("*.meta-ls2"))
        return read_meta_lease_set(files[0]) if files else None


@dataclass(frozen=True)
class Site:
    """The machines, and two keys of farms."""

    nodes: list[Node]
    farm_key: bytes
    other_key: bytes


def prepare(node: Node, maker: Machine, number: int) -> None:
    """What a node needs to publish, beside the farm's key: a signing key of its own, and a destination."""
    root = maker.root / "srv"
    maker.run("garlicfarm", "keys", "new-destination", f"/srv/leaf-{number}.key")
    offline = ("--master", "/srv/master.key", "--out", f"/srv/signing-{number}.key")
    maker.run("garlicfarm", "keys", "offline", *offline)
    node.give("signing.key", (root / f"signing-{number}.key").read_bytes())
    leaf = tomllib.loads((root / f"leaf-{number}.key").read_text())["destination"]
    configuration = node.machine.root / KEYS / "node.toml"
    told = configuration.read_text()
    # Without a router a node publishes for a demonstration alone.
    configuration.write_text(told.partition("\n[gossip]\n")[0].replace(*DEMO) + PUBLISHES.format(leaf=leaf))


@pytest.fixture(scope="module")
def site(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Installed once; each test begins with empty state directories."""
    with ExitStack() as stack:
        lan = stack.enter_context(Lan())
        nodes = []
        for number in range(1, NODES + 1):
            name = f"node-{number}"
            machine = stack.enter_context(Machine(tmp_path_factory.mktemp(name), name=name))
            (machine.root / "srv/garlicfarm.deb").write_bytes(package.read_bytes())
            machine.run("dpkg", "--install", "/srv/garlicfarm.deb", environment={"DEBIAN_FRONTEND": "noninteractive"})
            nodes.append(Node(machine, lan.plug_in(machine)))
        maker = nodes[0].machine
        for name in ("farm", "other"):
            maker.run("garlicfarm", "keys", "new-farm", "--expect", str(NODES), "--output", f"/srv/{name}.key")
        maker.run("garlicfarm", "keys", "new-destination", "/srv/master.key")
        for number, node in enumerate(nodes, start=1):
            prepare(node, maker, number)
        keys = [(maker.root / "srv" / f"{name}.key").read_bytes() for name in ("farm", "other")]
        yield Site(nodes, *keys)


def until(holds: Callable[[], object], what: str) -> None:
    """Poll; what the nodes wrote is shown by their services when the test fails."""
    deadline = time.monotonic() + FARM_BOUND_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {FARM_BOUND_S:g} s: {what}"
        time.sleep(POLL_S)


def start(stack: ExitStack, nodes: list[Node]) -> list[Service]:
    """The service of each machine, serving."""
    services = [stack.enter_context(Service(node.machine)) for node in nodes]
    for service in services:
        service.heard("READY=1", READY_BOUND_S)
    return services


def all_say(nodes: list[Node], verdict: str) -> None:
    """Until `status` says so on each."""
    told = {}

    def said() -> bool:
        told.update({node.address: node.verdict() for node in nodes})
        return set(told.values()) == {verdict}

    try:
        until(said, verdict)
    except AssertionError as error:
        raise AssertionError(f"{error}; said: {told}") from None


def test_machines_differ_in_name_and_id_and_know_no_address_of_each_other(site: Site) -> None:
    ids = [(node.machine.root / "etc/machine-id").read_text() for node in site.nodes]
    names = [node.machine.run("hostname").stdout for node in site.nodes]
    assert len(set(ids)) == len(set(names)) == NODES
    for node in site.nodes:
        lines = (node.machine.root / KEYS / "node.toml").read_text().splitlines()
        told = [line for line in lines if line.strip() and not line.startswith("#")]
        assert [line for line in told if "192.168" in line or "seeds" in line or "bind" in line] == []


def test_nodes_with_key_file_create_farm_publish_and_take_over(site: Site) -> None:
    # given three machines with one key
    for number, node in enumerate(site.nodes, start=1):
        node.begin_anew(f"node-{number}", site.farm_key)
    with ExitStack() as stack:
        # when their services are started
        services = start(stack, site.nodes)
        # then each says that the farm is healthy, and one has published the destinations of all
        all_say(site.nodes, "Healthy, can lose 1 of 3")
        view = site.nodes[0].view()
        assert {member["address"] for member in view["members"]} == {f"{node.address}:7668" for node in site.nodes}
        name = view["publishing"][0]["publisherName"]
        publisher = site.nodes[int(name.removeprefix("node-")) - 1]
        others = [node for node in site.nodes if node is not publisher]
        until(lambda: (found := publisher.published()) is not None and len(found.entries) == NODES, "all are listed")
        first = publisher.published()
        assert first is not None

        # when the publisher is killed
        services[site.nodes.index(publisher)].kill()

        # then another one publishes later, and both of them say who is missing
        def taken_over() -> bool:
            found = [each for node in others if (each := node.published()) is not None]
            return any(each.published_s > first.published_s for each in found)

        until(taken_over, "another one publishes")
        all_say(others, f"Degraded: {name} down, can lose none")
        assert others[0].view()["publishing"][0]["publisherName"] != name
        # and when it is started again, the farm is whole
        again = stack.enter_context(Service(publisher.machine))
        all_say(site.nodes, "Healthy, can lose 1 of 3")
        services[site.nodes.index(publisher)] = again
        # and each stops in order, the leader as well
        assert [service.stop() for service in services] == [0, 0, 0]


def test_three_machines_of_one_host_name_are_told_apart(site: Site) -> None:
    for node in site.nodes:
        node.begin_anew("vm", site.farm_key)
    with ExitStack() as stack:
        start(stack, site.nodes)
        all_say(site.nodes, "Healthy, can lose 1 of 3")
        names = {member["name"] for member in site.nodes[0].view()["members"]}
        assert len(names) == NODES
        assert all(name.startswith("vm") for name in names)


def test_a_machine_with_another_key_file_and_its_neighbors_ask_about_it_and_the_right_one_mends_it(site: Site) -> None:
    for number, node in enumerate(site.nodes, start=1):
        node.begin_anew(f"node-{number}", site.farm_key if number < NODES else site.other_key)
    right, wrong = site.nodes[:-1], site.nodes[-1]
    with ExitStack() as stack:
        services = start(stack, site.nodes)
        for node, missing in ((right[0], 1), (right[1], 1), (wrong, 2)):

            def asks(node: Node = node, missing: int = missing) -> bool:
                told = node.verdict()
                return "is the key file the same?" in told and f"waiting for {missing} of {NODES} nodes" in told

            until(asks, f"{node.address} asks about the key file")
        assert services[-1].stop() == 0
        wrong.begin_anew(f"node-{NODES}", site.farm_key)
        stack.enter_context(Service(wrong.machine))
        all_say(site.nodes, "Healthy, can lose 1 of 3")


def test_purge_on_a_machine_that_never_had_a_key_leaves_no_file(site: Site) -> None:
    machine = site.nodes[-1].machine
    machine.run("sh", "-c", f"rm -rf /{STATE}/* /{KEYS}/*.key")
    told = machine.run("dpkg", "--purge", "garlicfarm").stdout
    assert "is kept" not in told
    roots = [machine.root / top for top in ("etc", "lib", "usr", "var")]
    assert [path for root in roots for path in root.rglob("*garlicfarm*")] == []
