"""Three machines on a LAN, each with the Debian package: they find each other, publish, and take over from one another.

The configuration is that of the package. It names no address and no other router; a test adds what a farm is to
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

ROUTERS = 3
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
class Router:
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

    routers: list[Router]
    farm_key: bytes
    other_key: bytes


def prepare(router: Router, maker: Machine, number: int) -> None:
    """What a router needs to publish, beside the farm's key: a signing key of its own, and a destination."""
    root = maker.root / "srv"
    maker.run("garlicfarm", "keys", "new-destination", f"/srv/leaf-{number}.key")
    offline = ("--master", "/srv/master.key", "--out", f"/srv/signing-{number}.key")
    maker.run("garlicfarm", "keys", "offline", *offline)
    router.give("signing.key", (root / f"signing-{number}.key").read_bytes())
    leaf = tomllib.loads((root / f"leaf-{number}.key").read_text())["destination"]
    configuration = router.machine.root / KEYS / "node.toml"
    told = configuration.read_text()
    # Without a router a node publishes for a demonstration alone.
    configuration.write_text(told.partition("\n[gossip]\n")[0].replace(*DEMO) + PUBLISHES.format(leaf=leaf))


@pytest.fixture(scope="module")
def site(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Installed once; each test begins with empty state directories."""
    with ExitStack() as stack:
        lan = stack.enter_context(Lan())
        routers = []
        for number in range(1, ROUTERS + 1):
            name = f"router-{number}"
            machine = stack.enter_context(Machine(tmp_path_factory.mktemp(name), name=name))
            (machine.root / "srv/garlicfarm.deb").write_bytes(package.read_bytes())
            machine.run("dpkg", "--install", "/srv/garlicfarm.deb", environment={"DEBIAN_FRONTEND": "noninteractive"})
            routers.append(Router(machine, lan.plug_in(machine)))
        maker = routers[0].machine
        for name in ("farm", "other"):
            maker.run("garlicfarm", "keys", "new-farm", "--expect", str(ROUTERS), "--output", f"/srv/{name}.key")
        maker.run("garlicfarm", "keys", "new-destination", "/srv/master.key")
        for number, router in enumerate(routers, start=1):
            prepare(router, maker, number)
        keys = [(maker.root / "srv" / f"{name}.key").read_bytes() for name in ("farm", "other")]
        yield Site(routers, *keys)


def until(holds: Callable[[], object], what: str) -> None:
    """Poll; what the nodes wrote is shown by their services when the test fails."""
    deadline = time.monotonic() + FARM_BOUND_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {FARM_BOUND_S:g} s: {what}"
        time.sleep(POLL_S)


def start(stack: ExitStack, routers: list[Router]) -> list[Service]:
    """The service of each machine, serving."""
    services = [stack.enter_context(Service(router.machine)) for router in routers]
    for service in services:
        service.heard("READY=1", READY_BOUND_S)
    return services


def all_say(routers: list[Router], verdict: str) -> None:
    """Until `status` says so on each."""
    told = {}

    def said() -> bool:
        told.update({router.address: router.verdict() for router in routers})
        return set(told.values()) == {verdict}

    try:
        until(said, verdict)
    except AssertionError as error:
        raise AssertionError(f"{error}; said: {told}") from None


def test_machines_differ_in_name_and_id_and_know_no_address_of_each_other(site: Site) -> None:
    ids = [(router.machine.root / "etc/machine-id").read_text() for router in site.routers]
    names = [router.machine.run("hostname").stdout for router in site.routers]
    assert len(set(ids)) == len(set(names)) == ROUTERS
    for router in site.routers:
        lines = (router.machine.root / KEYS / "node.toml").read_text().splitlines()
        told = [line for line in lines if line.strip() and not line.startswith("#")]
        assert [line for line in told if "192.168" in line or "seeds" in line or "bind" in line] == []


def test_with_the_key_alone_they_found_a_farm_publish_and_one_takes_over_from_a_killed_one(site: Site) -> None:
    # given three machines with one key
    for number, router in enumerate(site.routers, start=1):
        router.begin_anew(f"router-{number}", site.farm_key)
    with ExitStack() as stack:
        # when their services are started
        services = start(stack, site.routers)
        # then each says that the farm is healthy, and one has published the destinations of all
        all_say(site.routers, "Healthy, can lose 1 of 3")
        view = site.routers[0].view()
        assert {member["address"] for member in view["members"]} == {
            f"{router.address}:7668" for router in site.routers
        }
        name = view["publishing"][0]["publisherName"]
        publisher = site.routers[int(name.removeprefix("router-")) - 1]
        others = [router for router in site.routers if router is not publisher]
        until(lambda: (found := publisher.published()) is not None and len(found.entries) == ROUTERS, "all are listed")
        first = publisher.published()
        assert first is not None

        # when the publisher is killed
        services[site.routers.index(publisher)].kill()

        # then another one publishes later, and both of them say who is missing
        def taken_over() -> bool:
            found = [each for router in others if (each := router.published()) is not None]
            return any(each.published_s > first.published_s for each in found)

        until(taken_over, "another one publishes")
        all_say(others, f"Degraded: {name} down, can lose none")
        assert others[0].view()["publishing"][0]["publisherName"] != name
        # and when it is started again, the farm is whole
        again = stack.enter_context(Service(publisher.machine))
        all_say(site.routers, "Healthy, can lose 1 of 3")
        services[site.routers.index(publisher)] = again
        # and each stops in order, the leader as well
        assert [service.stop() for service in services] == [0, 0, 0]


def test_three_machines_of_one_host_name_are_told_apart(site: Site) -> None:
    for router in site.routers:
        router.begin_anew("vm", site.farm_key)
    with ExitStack() as stack:
        start(stack, site.routers)
        all_say(site.routers, "Healthy, can lose 1 of 3")
        names = {member["name"] for member in site.routers[0].view()["members"]}
        assert len(names) == ROUTERS
        assert all(name.startswith("vm") for name in names)


def test_a_machine_with_another_key_file_and_its_neighbors_ask_about_it_and_the_right_one_mends_it(site: Site) -> None:
    for number, router in enumerate(site.routers, start=1):
        router.begin_anew(f"router-{number}", site.farm_key if number < ROUTERS else site.other_key)
    right, wrong = site.routers[:-1], site.routers[-1]
    with ExitStack() as stack:
        services = start(stack, site.routers)
        for router, missing in ((right[0], 1), (right[1], 1), (wrong, 2)):

            def asks(router: Router = router, missing: int = missing) -> bool:
                told = router.verdict()
                return "is the key file the same?" in told and f"waiting for {missing} of {ROUTERS} nodes" in told

            until(asks, f"{router.address} asks about the key file")
        assert services[-1].stop() == 0
        wrong.begin_anew(f"router-{ROUTERS}", site.farm_key)
        stack.enter_context(Service(wrong.machine))
        all_say(site.routers, "Healthy, can lose 1 of 3")


def test_purge_on_a_machine_that_never_had_a_key_leaves_no_file(site: Site) -> None:
    machine = site.routers[-1].machine
    machine.run("sh", "-c", f"rm -rf /{STATE}/* /{KEYS}/*.key")
    told = machine.run("dpkg", "--purge", "garlicfarm").stdout
    assert "is kept" not in told
    roots = [machine.root / top for top in ("etc", "lib", "usr", "var")]
    assert [path for root in roots for path in root.rglob("*garlicfarm*")] == []
