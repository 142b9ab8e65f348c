"""Clients of a farm on the closed network, while routers and machines are killed.

    three routers, each with a node and a leaf        three other routers with five `garlicfarm connect`

Each client sends small requests in sequence. Services record the number of each request. The story measures, for each
client and each kill, the longest time between two successes; it prints the times. Each kill has new clients, because a
client puts a failed leaf last for ten minutes, the life of the leases that its router keeps. OUTAGES sets the number of
kills of each kind, and KIND selects kinds by a part of their name.
"""

import json
import os
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count, pairwise
from math import inf
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.end_to_end.farm import call, command, wait_until
from tests.end_to_end.settings import free_port
from tests.interop.i2p.counting_service import CountingService
from tests.interop.i2p.farm import NetworkFarm, lan_farm
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import LOOPBACK, Router
from tests.processes import END_S, child

pytestmark = pytest.mark.interop
OUTAGES: Final = int(os.environ.get("OUTAGES", "1"))
KIND: Final = os.environ.get("KIND", "")
CLIENTS: Final = 5
BETWEEN_S: Final = 0.25
BEFORE_S: Final = 20.0
AFTER_S: Final = 30.0
READY_S: Final = 300.0
REQUEST_S: Final = 60.0
LOAD_S: Final = 60.0
SHOWN_S: Final = 30.0
SHOWN_FROM_S: Final = 4.0
"""The requests of a client are printed if it had a longer time between two successes."""
FACTOR: Final = 2
"""Factor on the cost of one leaf, whose cost is then about twice the costs of the others."""
HIGHER: Final = 1.5
DETECTION_S: Final = 12.0
"""Time after the first failed request; later, no request fails because of the dead leaf while other leaves reply."""


ONE_HOP: Final = ("--hops", "1")
"""With twenty routers, each router is in one of seven tunnels of three hops, also in those to living leaves."""


@dataclass
class Client:
    """A running `garlicfarm connect`, and a thread that sends requests through it."""

    port: int
    sam: str
    socket: Path
    process: psutil.Process
    numbers: Iterator[int]
    method: str = "GET"
    successes: list[tuple[float, float, str]] = field(default_factory=list)
    """Start and end of each request that succeeded, and the name of its service."""
    failures: list[tuple[float, float, str]] = field(default_factory=list)
    """Start and end of each request that failed, and the reason."""

    def request(self) -> bool:
        """Send one request; return True if a service replied."""
        began_s = time.monotonic()
        connection = HTTPConnection(LOOPBACK, self.port, timeout=REQUEST_S)
        try:
            connection.request(self.method, f"/{next(self.numbers)}")
            reply = connection.getresponse()
            text = reply.read().decode()
            status = reply.status
        except (OSError, HTTPException) as error:
            text, status = repr(error), 0
        finally:
            connection.close()
        found = (began_s, time.monotonic(), text.strip())
        (self.successes if status == 200 else self.failures).append(found)
        return status == 200

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two successes that ends after `since_s`, up to the end of the window."""
        ends = [*(end_s for _, end_s, _ in self.successes if end_s < until_s), until_s]
        return max(later - end for end, later in pairwise(ends) if later > since_s)

    def late_failures_s(self, killed_s: float, dead: str) -> list[float]:
        """Return the seconds from the first failure at a dead leaf to each late failure after a success."""
        outcomes = sorted([(*each, True) for each in self.successes] + [(*each, False) for each in self.failures])
        failed_s = [began_s for began_s, _, text in self.failures if began_s > killed_s and dead in text]
        after_success_s = {later[0] for earlier, later in pairwise(outcomes) if earlier[3]}
        return [each - failed_s[0] for each in failed_s if each > failed_s[0] + DETECTION_S and each in after_success_s]

    def requests_around(self, time_s: float) -> str:
        """Return a line for each request near a kill: its start, its duration and its outcome."""
        near = [each for each in sorted(self.successes + self.failures) if abs(each[0] - time_s) < SHOWN_S]
        return "\n".join(f"  {began - time_s:6.2f} s, took {end - began:5.2f} s: {text}" for began, end, text in near)

    def costs(self) -> dict[str, int]:
        """Return the costs of the leaves that the client uses, by their address."""
        status = json.loads(call("connect", "--status", "--json", "--socket", self.socket).stdout)
        return {leaf["address"]: leaf["cost"] for leaf in status["links"][0]["farm"]["leaves"]}


@dataclass(frozen=True)
class Stage:
    """The farm, its services by the name of their node, and the routers of the clients."""

    network: Network
    farm: NetworkFarm
    services: dict[str, CountingService]
    client_routers: Sequence[Router]
    directory: Path

    def repair(self) -> None:
        """Start the killed routers, nodes and services, and wait until the farm publishes all leaves."""
        self.network.repair()
        for site in self.farm.sites:
            if not site.node.running:
                self.services[site.node.name].start()
                site.node.start()
        wait_until(self.farm.publishes_all_leaves, READY_S, "the farm publishes all leaves", self.farm.state)

    def serves(self, client: Client) -> bool:
        """Return True if a client reaches a leaf. Restart crashed routers of clients: SAM of i2pd 2.45.1 can crash."""
        for each in self.client_routers:
            if not each.running:
                print(f"{each.name} has crashed", flush=True)
                each.start()
        return client.request()


@pytest.fixture
def stage(network: Network, tmp_path: Path) -> Iterator[Stage]:
    """Yield a running farm next to one Java router and two i2pd."""
    routers = [network.java[1], network.i2pd[3], network.i2pd[4]]
    services = {f"site-{letter}": CountingService(f"site-{letter}") for letter in "abc"}
    with ExitStack() as stack:
        for each in services.values():
            each.start()
            stack.callback(each.stop)
        farm = stack.enter_context(lan_farm(network, tmp_path, routers, [each.port for each in services.values()]))
        farm.start_all()
        yield Stage(network, farm, services, network.i2pd[5:8], tmp_path)


@contextmanager
def clients(stage: Stage, numbers: Iterator[int], method: str = "GET") -> Iterator[list[Client]]:
    """Start clients, and yield them as soon as each has reached a leaf."""
    link = call("link", "--node", stage.farm.running[0].directory).stdout.strip()
    assert link.startswith("garlicfarm:"), link
    with ExitStack() as stack:
        started = []
        for number in range(CLIENTS):
            router = stage.client_routers[number % len(stage.client_routers)]
            assert router.sam is not None
            port = free_port(socket.SOCK_STREAM)
            directory = stage.directory / f"client-{number}"
            own_socket = directory / "socket"
            options = ("--socket", own_socket, "--cache", directory)
            arguments = command(
                "connect", link, "--sam", router.sam, "--http", f"{LOOPBACK}:{port}", *options, *ONE_HOP
            )
            log = stack.enter_context((stage.directory / f"client-{number}.log").open("a"))
            process = stack.enter_context(child(arguments, stdout=log, stderr=log))
            started.append(Client(port, router.sam, own_socket, psutil.Process(process.pid), numbers, method))
        for each in started:
            wait_until(partial(stage.serves, each), READY_S, "a client reaches a leaf", partial(failures_of, started))
        yield started


@contextmanager
def load(started: list[Client]) -> Iterator[None]:
    """Send requests through all clients within the block."""
    over = threading.Event()

    def run(client: Client) -> None:
        while not over.wait(BETWEEN_S):
            client.request()

    threads = [threading.Thread(target=run, args=(each,)) for each in started]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in threads:
            each.join(REQUEST_S + END_S)


def kill_router(stage: Stage, name: str) -> None:
    next(site for site in stage.farm.sites if site.node.name == name).router.kill()


def kill_machine(stage: Stage, name: str) -> None:
    site = next(site for site in stage.farm.sites if site.node.name == name)
    site.node.kill()
    site.router.kill()
    stage.services[name].stop()


KILLS: Final[dict[str, tuple[str, Callable[[Stage, str], None], str]]] = {
    "router of a leaf": ("site-b", kill_router, "GET"),
    "machine": ("site-c", kill_machine, "GET"),
    "router of the publisher": ("site-a", kill_router, "GET"),
    "router of a leaf, POST": ("site-b", kill_router, "POST"),
}


def test_clients_continue_after_kills(stage: Stage) -> None:
    numbers = count(1)
    gaps: dict[str, list[float]] = {kind: [] for kind in KILLS if KIND in kind}
    served: Counter[str] = Counter()
    late: list[float] = []
    for kind in [each for each in gaps for _ in range(OUTAGES)]:
        name, kill, method = KILLS[kind]
        stage.repair()
        with clients(stage, numbers, method) as started, load(started):
            time.sleep(BEFORE_S)
            costs = costs_of(stage)
            served.update(each for client in started for _, _, each in client.successes)
            assert all(connections_elsewhere(client) == [] for client in started)
            kill(stage, name)
            killed_s = time.monotonic()
            time.sleep(AFTER_S)
            until_s = time.monotonic()
        found = {client.port: client.longest_gap_s(killed_s, until_s) for client in started}
        gaps[kind] += found.values()
        dead = next(site.leaf.address for site in stage.farm.sites if site.node.name == name)
        for client in started:
            late += client.late_failures_s(killed_s, dead)
        failures = sum(begun > killed_s for client in started for begun, _, _ in client.failures)
        print(f"\n{kind}: {as_list(gaps[kind][-CLIENTS:])} s; {failures} requests failed; costs {costs};", end=" ")
        print(f"load average {os.getloadavg()[0]:.1f}")
        for client in started:
            if found[client.port] > SHOWN_FROM_S:
                print(f"{found[client.port]:.2f} s, killed {dead}:\n{client.requests_around(killed_s)}", flush=True)
    print("\nlongest time between two successes of a client, s            median  longest  values")
    for kind, values in gaps.items():
        print(f"kill -9: {kind:<24} {statistics.median(values):29.1f} {max(values):8.1f}  {as_list(values)}")
    print(f"requests before the kills, by leaf: {dict(served)}; load average {os.getloadavg()[0]:.1f}")
    twice = [path for each in stage.services.values() for path, times in each.requests.items() if times > 1]
    counted = Counter(path for each in stage.services.values() for path in each.requests)
    assert twice == []
    assert all(times == 1 for times in counted.values())
    assert late == []


def test_load_follows_costs(stage: Stage) -> None:
    numbers = count(1)
    stage.repair()
    dear = stage.farm.sites[1]
    cost = ("publish", "cost", dear.leaf.address, str(FACTOR), "--node", dear.node.directory)
    # A new farm publishes before it has the feature level of this command.
    wait_until(lambda: call(*cost).returncode == 0, READY_S, "the farm accepts the cost", stage.farm.state)
    wait_until(
        lambda: costs_of(stage)[-1] > HIGHER * costs_of(stage)[0],
        READY_S,
        "the farm publishes the cost",
        stage.farm.state,
    )
    served: Counter[str] = Counter()
    with clients(stage, numbers) as started, load(started):
        for each in started:
            wait_until(
                partial(has_higher_cost, each, dear.leaf.address), READY_S, "a client has the cost", stage.farm.state
            )
        began_s = time.monotonic()
        time.sleep(LOAD_S)
        for each in started:
            served.update(name for end_s, _, name in each.successes if end_s > began_s)
    print(f"\ncosts {costs_of(stage)}, requests by leaf in {LOAD_S:g} s: {dict(served)}")
    assert set(served) == set(stage.services)
    assert min(served, key=served.__getitem__) == dear.node.name


def test_clients_survive_restart_of_their_router(stage: Stage) -> None:
    stage.repair()
    with clients(stage, count(1)) as started:
        router = stage.client_routers[0]
        router.kill()
        router.start()
        began_s = time.monotonic()
        for each in started:
            wait_until(partial(stage.serves, each), READY_S, "a client reaches a leaf", partial(failures_of, started))
        print(f"\nall clients reach a leaf {time.monotonic() - began_s:.0f} s after the start of the router of two")


def failures_of(started: Sequence[Client]) -> str:
    return str([each.failures[-1:] for each in started])


def has_higher_cost(client: Client, address: str) -> bool:
    """Return True if a leaf is much more expensive for a client than the others."""
    costs = client.costs()
    return costs.get(address, 0) > HIGHER * max((cost for leaf, cost in costs.items() if leaf != address), default=inf)


def costs_of(stage: Stage) -> list[int]:
    publishing = stage.farm.publishing()
    return [] if publishing is None else sorted(entry.cost for entry in publishing.entries)


def as_list(values: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in sorted(values))


def connections_elsewhere(client: Client) -> list[str]:
    """Return the addresses, other than its SAM bridge and its own listener, of the client's TCP connections."""
    found = client.process.net_connections("tcp")
    remote = [each.raddr for each in found if each.status != psutil.CONN_LISTEN and each.laddr[1] != client.port]
    return [f"{host}:{port}" for host, port in remote if f"{host}:{port}" != client.sam]
