"""Farms of real processes with I2P names, connected only through an HTTP proxy, without gossip."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from bridge.api.control_routes import LEAVE
from bridge.api.view import FarmView
from consensus.protocols.garlic_farm.node.connectors import HttpProxy, I2pConnector
from consensus.protocols.garlic_farm.node.dialer import Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import GarlicFarmError
from consensus.protocols.garlic_farm.wire.proxy import ProxyMode
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from tests.end_to_end.farm import START_BOUND_S, Farm, exported_key, tail
from tests.end_to_end.i2p_farm import I2pFarm
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.i2p_proxy import I2pProxy


def statuses(view: FarmView) -> dict[str, str]:
    return {member.name: member.status.value for member in view.members}


def test_farm_over_i2p_changes_members_through_proxy(tmp_path: Path) -> None:
    files = I2pFarm(tmp_path / "farm", founders=3, count=4)
    with I2pProxy(files.names) as proxy, files.farm(f'address = "{LOOPBACK}:{proxy.port}"') as farm:
        # Given three nodes with two seeds, which can reach each other only through the proxy
        *founders, new_node = farm.nodes
        for node in founders:
            node.start()
        three = Farm(farm.directory, founders)
        leader = three.wait_settled()
        assert all(line.startswith("GET http://") for line in proxy.requests)
        assert len({node.view().farm.cluster_id for node in founders}) == 1
        assert leader.submit({"mark": "one"}).index is not None
        # When a fourth node joins
        exported_key(leader, files.directory / "farm.key", "--replace")
        new_node.start()
        farm.wait_until(lambda: new_node.view().node.raft_id == 4, START_BOUND_S, "the new node is admitted")
        farm.wait_settled()
        # Then it is a server like the others, and it is removed after it leaves
        assert new_node.submit({"mark": "two"}).index is not None
        new_node.ask(lambda client: client.call(LEAVE))
        new_node.wait_end(START_BOUND_S)
        three.wait_until(lambda: len(leader.view().raft.voters) == 3, START_BOUND_S, "the leaving node is removed")
        # And a killed server is dead in the views, and alive under the same Raft id after its restart
        victim = next(node for node in founders if node is not three.leader())
        raft_id = victim.view().node.raft_id
        victim.kill()
        watcher = next(node for node in founders if node is not victim)
        farm.wait_until(
            lambda: statuses(watcher.view()).get(victim.name) == "dead", START_BOUND_S, "the killed node is marked dead"
        )
        assert watcher.submit({"mark": "three"}).index is not None
        victim.start()
        three.wait_until(
            lambda: statuses(watcher.view()).get(victim.name) == "alive",
            START_BOUND_S,
            "the restarted node is alive again",
        )
        three.wait_until(
            lambda: victim.view().node.raft_id == raft_id, START_BOUND_S, "its server runs under its Raft id"
        )
        assert {member.address for member in watcher.view().members} == {None}, "the nodes do not listen for gossip"
        # And an evicted server is excluded, and the output names the nodes whose keys the operator must replace.
        # (Wait until all logs are equal. Otherwise a lagging server could be excluded before it reads the reason.)
        leading = three.wait_until(three.leader, START_BOUND_S, "a node leads")
        reached = leading.view().raft.commit_index
        three.wait_until(
            lambda: all(node.view().raft.applied_index >= reached for node in founders),
            START_BOUND_S,
            "all founders have applied the leader's log",
        )
        stolen = next(node for node in founders if node is not leading)
        done = three.wait_done("node", "evict", stolen.name, "--yes", at=lambda: three.led_by_another(stolen))
        assert "The keys were not replaced" in done.stdout
        assert all(node.name in done.stdout for node in founders)
        assert stolen.wait_end(START_BOUND_S) == 1
        assert "was evicted, and is never admitted again" in tail(stolen.log_file)


@pytest.fixture(scope="session")
def tinyproxy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of tinyproxy, installed or unpacked from Debian's package. Skip the test without it."""
    installed = shutil.which("tinyproxy")
    if installed is not None:
        return installed
    apt_get, dpkg = shutil.which("apt-get"), shutil.which("dpkg")
    if apt_get is None or dpkg is None:
        pytest.skip("tinyproxy is not installed, and this system cannot download the package of Debian")
    directory = tmp_path_factory.mktemp("tinyproxy")
    fetched = subprocess.run(
        [apt_get, "-q", "download", "tinyproxy-bin"], cwd=directory, timeout=60, check=False, capture_output=True
    )
    packages = list(directory.glob("*.deb"))
    if fetched.returncode != 0 or not packages:
        pytest.skip("tinyproxy is not installed and `apt-get download tinyproxy-bin` failed (try `apt-get update`)")
    subprocess.run([dpkg, "-x", packages[0], directory], check=True)
    return str(directory / "usr/bin/tinyproxy")


@contextmanager
def running_tinyproxy(program: str, directory: Path, upstream_port: int) -> Iterator[int]:
    """Run tinyproxy with a password, and yield its port; it forwards `.i2p` names to the proxy at `upstream_port`."""
    directory.mkdir()
    port = free_port(socket.SOCK_STREAM)
    (directory / "tinyproxy.conf").write_text(
        f"""
Port {port}
Listen {LOOPBACK}
Timeout 600
LogFile "{directory / "tinyproxy.log"}"
LogLevel Connect
MaxClients 200
BasicAuth garlic farmer
Upstream http {LOOPBACK}:{upstream_port} ".i2p"
"""
    )
    process = subprocess.Popen([program, "-d", "-c", str(directory / "tinyproxy.conf")], cwd=directory)
    try:
        deadline = time.monotonic() + START_BOUND_S
        while True:
            try:
                socket.create_connection((LOOPBACK, port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "tinyproxy ended immediately"
                assert time.monotonic() < deadline, "tinyproxy does not listen"
                time.sleep(0.05)
        yield port
    finally:
        process.kill()
        process.wait(10)


async def guess_the_password(proxy: I2pProxy, name: str) -> None:
    """Connect with a wrong user and password; the server must refuse them."""
    caller = Initiator("farm", lambda: (Credentials("stranger", "guess"),), Identity, os.urandom, None)
    transport = I2pConnector(HttpProxy(LOOPBACK, proxy.port, ProxyMode.CONNECT), os.urandom)
    with pytest.raises(GarlicFarmError, match="does not accept user"):
        await Dialer(caller, transport=transport).dial(PeerAddress(name, 7669, None))


def test_farm_works_through_tinyproxy(tmp_path: Path, tinyproxy: str) -> None:
    files = I2pFarm(tmp_path / "farm", founders=3, count=3)
    password = tmp_path / "proxy.password"
    password.write_text("farmer\n")
    password.chmod(0o600)
    with (
        I2pProxy(files.names) as upstream,
        running_tinyproxy(tinyproxy, tmp_path / "tinyproxy", upstream.port) as port,
        files.farm(
            f'address = "{LOOPBACK}:{port}"\nmode = "connect"\nuser = "garlic"\npassword_file = "{password}"'
        ) as farm,
    ):
        farm.start_all()
        leader = farm.wait_settled()
        assert leader.submit({"mark": "through tinyproxy"}).index is not None
        assert all(line.startswith("CONNECT ") for line in upstream.requests)
        # When a client without the farm's key connects, the operator of the server gets an alarm
        trio.run(guess_the_password, upstream, next(iter(files.names)))
        alarm = farm.wait_until(
            lambda: next((each for each in farm.nodes[0].view().alarms if each.kind == "peers-refused"), None),
            START_BOUND_S,
            "an alarm reports the unknown client",
        )
        assert "wrong user or password (user 'stranger')" in alarm.text
        assert farm.nodes[0].counters()["garlic_farm_wrong_credentials"] >= 1
        # When all connections break, the farm recovers
        upstream.cut()
        farm.wait_settled()
