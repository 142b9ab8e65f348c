"""From installed packages to a list that a real router publishes: the test counts the commands and questions.

    machine 1: i2pd, node ──┐                                         ┌── the closed network of i2pd and Java routers
    machine 2: i2pd, node ──┼── LAN 192.168.77.0/24 ── this namespace ┤
    machine 3: i2pd, node ──┘   45.77.0.1 to .3: the routers          └── observer: looks the farm's address up

Each machine runs systemd, Debian's i2pd with one server tunnel, and the package of `make dist`. The test types the
commands of an operator at a terminal, and accepts the default of each question.
"""

import json
import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import Any, Final

import pytest

from bridge.wire.i2p.meta_lease_set import decode, verify
from bridge.wire.i2p.structures import hash_of_address
from tests.end_to_end.farm import wait_until
from tests.interop.i2p.namespace import BUILD
from tests.interop.i2p.network import Network
from tests.interop.i2p.router import NETWORK_ID
from tests.packages.booted_machine import SYSTEMD, BootedMachine
from tests.packages.lan import Lan, ip_in
from tests.packages.machine import clean_environment, debian_package
from tests.processes import END_S

pytestmark = pytest.mark.interop

MACHINES: Final = 3
COMMANDS_FIRST_MAX: Final = 3
COMMANDS_OTHER_MAX: Final = 2
QUESTIONS_MAX: Final = 4
COMMAND_S: Final = 240.0
ROUTER_S: Final = 90.0
HANDED_OVER_S: Final = 300.0
FOUND_S: Final = 300.0
WEB_PORT: Final = 8080
I2PD_CONF: Final = "etc/i2pd/i2pd.conf"
NETWORK_OPTIONS: Final = """\
host = {address}
address4 = {address}
port = 20077
nat = false
reservedrange = false
netid = {network_id}
bandwidth = X
"""
"""Options of the closed network, before the first section of Debian's file."""
NETWORK_SECTIONS: Final = """
[reseed]
threshold = 0
urls =
yggurls =
[nettime]
enabled = false
[upnp]
enabled = false
[ntcp2]
published = true
port = 22077
[ssu2]
published = true
port = 21077
mtu4 = 1500
[exploratory]
inbound.length = 1
outbound.length = 1
"""
TUNNEL: Final = f"""
[web]
type = http
host = 127.0.0.1
port = {WEB_PORT}
keys = web.dat
inbound.length = 1
outbound.length = 1
i2cp.leaseSetEncType = 4
"""
WEB_SERVER: Final = f"""\
[Service]
ExecStart=/usr/bin/python3 -m http.server {WEB_PORT} --bind 127.0.0.1 --directory /srv
"""
QUESTION: Final = re.compile(rb"\[Y/n\]: $")
POLL_S: Final = 1.0


@dataclass
class OperatedMachine:
    """A machine, and the operator who types at it."""

    machine: BootedMachine
    commands: list[str] = field(default_factory=list)
    questions: int = 0

    def type(self, *command: str) -> str:
        """Type a command at a terminal, accept the defaults of its questions, and return the output."""
        self.commands.append(" ".join(command))
        outer, inner = pty.openpty()
        process = subprocess.Popen(
            self.machine.command(command),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=clean_environment({"TERM": "xterm"}),
            start_new_session=True,
        )
        os.close(inner)
        try:
            output = self._dialog(outer)
            assert process.wait(END_S) == 0, output
        finally:
            process.kill()
            process.wait(END_S)
            os.close(outer)
        print(f"{self.commands[-1][:60]}\n{output}")
        return output

    def _dialog(self, terminal: int) -> str:
        """Read up to the end of the process; type Enter at each question."""
        seen = b""
        ends_s = time.monotonic() + COMMAND_S
        while True:
            left_s = ends_s - time.monotonic()
            assert left_s > 0, f"the command did not end within {COMMAND_S:g} s:\n{seen.decode()}"
            if not select([terminal], [], [], left_s)[0]:
                continue
            try:
                part = os.read(terminal, 4096)
            except OSError:  # The kernel reports EIO when the last process has closed the terminal.
                part = b""
            if not part:
                return seen.decode()
            seen += part
            if QUESTION.search(seen):
                self.questions += 1
                os.write(terminal, b"\n")

    def publishing(self) -> dict[str, Any]:
        """Return the first publication in the view of the node."""
        done = self.machine.run("garlicfarm", "status", "--json", check=False)
        found = json.loads(done.stdout)["publishing"] if done.stdout else []
        return dict(found[0]) if found else {}

    def state(self) -> str:
        """Return the state of the node, and the last lines of both services."""
        log = self.machine.run("tail", "-n", "40", "/var/log/i2pd/i2pd.log", check=False).stdout
        return f"{self.machine.run('garlicfarm', 'status', check=False).stdout}\n{self.machine.journal()}\n{log}"


@pytest.fixture
def operators(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[OperatedMachine]]:
    """Boot the machines with the packages and a running i2pd; nothing of a farm is configured."""
    if not SYSTEMD.exists():
        pytest.skip("needs systemd (Debian: apt-get install systemd)")
    package = debian_package()
    routers = [each for each in sorted((BUILD / "archives").glob("*.deb")) if "openssh" not in each.name]
    with ExitStack() as stack:
        lan = stack.enter_context(Lan())
        here = lan.plug_in_namespace(os.getpid())
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        made = []
        for number in range(1, MACHINES + 1):
            name = f"node-{number}"
            machine = stack.enter_context(BootedMachine(tmp_path_factory.mktemp(name), name=name))
            at, address = lan.plug_in(machine), f"45.77.0.{number}"
            ip_in(machine.pid, "address", "add", f"{address}/32", "dev", "lo")
            ip_in(machine.pid, "route", "add", "45.0.0.0/8", "via", here, "src", address)
            ip_in(os.getpid(), "route", "add", address, "via", at)
            machine.install(*routers, package)
            start_router(machine, address, network)
            made.append(OperatedMachine(machine))
        yield made


def start_router(machine: BootedMachine, address: str, network: Network) -> None:
    """Start i2pd as Debian configures it, apart from the options of the closed network and a tunnel to a web server."""
    root = machine.root
    conf = root / I2PD_CONF
    options = NETWORK_OPTIONS.format(address=address, network_id=NETWORK_ID)
    conf.write_text(f"{options}{conf.read_text()}{NETWORK_SECTIONS}")
    (root / "etc/i2pd/tunnels.conf").write_text(TUNNEL)
    (root / "etc/systemd/system/web.service").write_text(WEB_SERVER)
    shelf = root / "var/lib/i2pd/netDb"
    for each in network.i2pd:
        for file in (each.directory / "netDb").rglob("routerInfo-*.dat"):
            place = shelf / file.parent.name / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    machine.run("chown", "-R", "i2pd:i2pd", "/var/lib/i2pd")
    machine.run("systemctl", "start", "web", "i2pd")
    machine.wait_for("/var/lib/i2pd/web.dat", ROUTER_S)


def test_three_commands_publish_through_real_router(network: Network, operators: list[OperatedMachine]) -> None:
    # Given three machines with both packages, when the operator types one command at each
    first, *others = operators
    began_s = time.monotonic()
    output = first.type("garlicfarm", "init")
    found = re.search(r"garlicfarm (join \S+)", output)
    assert found is not None, output
    for each in others:
        each.type("garlicfarm", *found[1].split())

    # Then a router takes the structure of the farm, and another router finds it.
    def state() -> str:
        return "\n".join(each.state() for each in operators) + network.state()

    def handed_over() -> dict[str, Any] | None:
        publishing = first.publishing()
        return publishing if publishing.get("handedOverByName") else None

    publishing = wait_until(handed_over, HANDED_OVER_S, "a router takes a structure", state)
    handed_over_s = time.monotonic() - began_s
    master = hash_of_address(publishing["master"])

    def looked_up() -> str | None:
        text = network.lookup(master)
        return text if text.startswith("type=7 verifies=true") else None

    text = wait_until(looked_up, FOUND_S, "a look-up finds the structure", state)
    found_s = time.monotonic() - began_s
    assert verify(decode(bytes.fromhex(text.rpartition(" ")[2]))).signed_by == "transient key"

    # And the operator has typed few commands, and has answered few questions.
    counts, questions = [len(each.commands) for each in operators], sum(each.questions for each in operators)
    print(
        f"\ncommands {', '.join(map(str, counts))}; questions {questions};"
        f" handed over after {handed_over_s:.0f} s, looked up after {found_s:.0f} s"
    )
    assert counts[0] <= COMMANDS_FIRST_MAX
    assert max(counts[1:]) <= COMMANDS_OTHER_MAX
    assert questions <= QUESTIONS_MAX
