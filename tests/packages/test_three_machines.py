"""Three machines on a LAN with the Debian package: they discover each other, publish, and take over publishing.

The configuration is the package's. It does not contain an address or another node; the test adds the settings for
publishing. A simulated router writes structures to files, which the tests read and verify.
"""

import json
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
    """One machine with the package, and its address on the LAN, which the configuration does not contain."""

    machine: Machine
    address: str

    def give(self, name: str, content: bytes) -> None:
        """Install a key file in the package's directory, as an operator does."""
        file = self.machine.root / KEYS / name
        file.write_bytes(content)
        file.chmod(0o600)

    def reset(self, host_name: str, farm_key: bytes) -> None:
        self.machine.run("sh", "-c", f"echo {host_name} >/proc/sys/kernel/hostname; rm -rf /{STATE}/*")
        self.give("farm.key", farm_key)

    def verdict(self) -> str:
        """Return the first line of `garlicfarm status`, run by root."""
        return self.machine.run("garlicfarm", "status", check=False).stdout.partition("\n")[0]

    def view(self) -> dict[str, Any]:
        """Return the view of its node; empty while the node does not reply."""
        output = self.machine.run("garlicfarm", "status", "--json", check=False).stdout
        return dict(json.loads(output)) if output else {}

    def published(self) -> Read | None:
        """Return the latest structure of its simulated router."""
        files = sorted((self.machine.root / STATE / "published").glob("*.meta-ls2"))
        return read_meta_lease_set(files[0]) if files else None


@dataclass(frozen=True)
class Site:
    """The machines, and the keys of two farms."""

    nodes: list[Node]
    farm_key: bytes
    other_key: bytes


def prepare(node: Node, maker: Machine, number: int) -> None:
    """Give a node what it needs to publish, except the farm key: a signing key and a destination."""
    root = maker.root / "srv"
    maker.run("garlicfarm", "keys", "new-destination", f"/srv/leaf-{number}.key")
    offline = ("--master", "/srv/master.key", "--out", f"/srv/signing-{number}.key")
    maker.run("garlicfarm", "keys", "offline", *offline)
    node.give("signing.key", (root / f"signing-{number}.key").read_bytes())
    leaf = tomllib.loads((root / f"leaf-{number}.key").read_text())["destination"]
    configuration = node.machine.root / KEYS / "node.toml"
    text = configuration.read_text()
    # Without a router a node publishes only as a demonstration.
    configuration.write_text(text.partition("\n[gossip]\n")[0].replace(*DEMO) + PUBLISHES.format(leaf=leaf))


@pytest.fixture(scope="module")
def site(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Install the packages once; each test begins with empty state directories."""
    with site_with(package, tmp_path_factory) as made:
        yield made


@contextmanager
def site_with(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Make the machines with a package, within the block."""
    with ExitStack() as stack:
        lan = stack.enter_context(Lan())
        nodes = []
        for number in range(1, NODES + 1):
            name = f"node-{number}"
            machine = stack.enter_context(Machine(tmp_path_factory.mktemp(name), name=name))
            machine.install(package)
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
    """Poll until `holds` returns a true value. The services show the nodes' output if the test fails."""
    deadline = time.monotonic() + FARM_BOUND_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {FARM_BOUND_S:g} s: {what}"
        time.sleep(POLL_S)


def start(stack: ExitStack, nodes: list[Node]) -> list[Service]:
    """Start the service of each machine; wait until they are ready."""
    services = [stack.enter_context(Service(node.machine)) for node in nodes]
    for service in services:
        service.wait_for_notification("READY=1", READY_BOUND_S)
    return services


def wait_for_verdict(nodes: list[Node], verdict: str) -> None:
    """Wait until `status` shows this verdict on each node."""
    verdicts: dict[str, str] = {}

    def all_have_verdict() -> bool:
        verdicts.update({node.address: node.verdict() for node in nodes})
        return set(verdicts.values()) == {verdict}

    try:
        until(all_have_verdict, verdict)
    except AssertionError as error:
        raise AssertionError(f"{error}; verdicts: {verdicts}") from None


def test_machines_have_different_names_and_ids(site: Site) -> None:
    ids = [(node.machine.root / "etc/machine-id").read_text() for node in site.nodes]
    names = [node.machine.run("hostname").stdout for node in site.nodes]
    assert len(set(ids)) == len(set(names)) == NODES
    for node in site.nodes:
        lines = (node.machine.root / KEYS / "node.toml").read_text().splitlines()
        settings = [line for line in lines if line.strip() and not line.startswith("#")]
        assert [line for line in settings if "192.168" in line or "seeds" in line or "bind" in line] == []


def test_nodes_with_key_file_create_farm_and_publish(site: Site) -> None:
    # Given three machines with the same key
    for number, node in enumerate(site.nodes, start=1):
        node.reset(f"node-{number}", site.farm_key)
    with ExitStack() as stack:
        # When their services start
        services = start(stack, site.nodes)
        # Then each reports a healthy farm, and one has published the destinations of all nodes
        wait_for_verdict(site.nodes, "Healthy, can lose 1 of 3")
        view = site.nodes[0].view()
        assert {member["address"] for member in view["members"]} == {f"{node.address}:7668" for node in site.nodes}
        name = view["publishing"][0]["publisherName"]
        publisher = site.nodes[int(name.removeprefix("node-")) - 1]
        others = [node for node in site.nodes if node is not publisher]
        until(lambda: (found := publisher.published()) is not None and len(found.entries) == NODES, "all are listed")
        first = publisher.published()
        assert first is not None

        # When the publisher is killed
        services[site.nodes.index(publisher)].kill()

        # Then another node publishes later, and both nodes report the missing node
        def taken_over() -> bool:
            found = [each for node in others if (each := node.published()) is not None]
            return any(each.published_s > first.published_s for each in found)

        until(taken_over, "another one publishes")
        wait_for_verdict(others, f"Degraded: {name} down, can lose none")
        assert others[0].view()["publishing"][0]["publisherName"] != name
        # And when the publisher starts again, the farm is complete
        again = stack.enter_context(Service(publisher.machine))
        wait_for_verdict(site.nodes, "Healthy, can lose 1 of 3")
        services[site.nodes.index(publisher)] = again
        # And each service stops normally, including the leader
        assert [service.stop() for service in services] == [0, 0, 0]


def test_machines_with_same_host_name_get_different_names(site: Site) -> None:
    for node in site.nodes:
        node.reset("vm", site.farm_key)
    with ExitStack() as stack:
        start(stack, site.nodes)
        wait_for_verdict(site.nodes, "Healthy, can lose 1 of 3")
        names = {member["name"] for member in site.nodes[0].view()["members"]}
        assert len(names) == NODES
        assert all(name.startswith("vm") for name in names)


def test_wrong_key_file_is_reported_until_replaced(site: Site) -> None:
    for number, node in enumerate(site.nodes, start=1):
        node.reset(f"node-{number}", site.farm_key if number < NODES else site.other_key)
    right, wrong = site.nodes[:-1], site.nodes[-1]
    with ExitStack() as stack:
        services = start(stack, site.nodes)
        for node, missing in ((right[0], 1), (right[1], 1), (wrong, 2)):

            def suspects_key_file(node: Node = node, missing: int = missing) -> bool:
                verdict = node.verdict()
                return "under another farm key" in verdict and f"waiting for {missing} of {NODES} nodes" in verdict

            until(suspects_key_file, f"{node.address} reports a possible wrong key file")
        assert services[-1].stop() == 0
        wrong.reset(f"node-{NODES}", site.farm_key)
        stack.enter_context(Service(wrong.machine))
        wait_for_verdict(site.nodes, "Healthy, can lose 1 of 3")


def test_purge_without_keys_removes_all_files(site: Site) -> None:
    machine = site.nodes[-1].machine
    machine.run("sh", "-c", f"rm -rf /{STATE}/* /{KEYS}/*.key")
    output = machine.run("dpkg", "--purge", "garlicfarm").stdout
    assert "is kept" not in output
    roots = [machine.root / top for top in ("etc", "lib", "usr", "var")]
    found = [path.relative_to(machine.root) for root in roots for path in root.rglob("*garlicfarm*")]
    # The scratch machine also has files of this machine, for example its router's configuration before a change.
    assert [path for path in found if not (Path("/") / path).exists()] == []
