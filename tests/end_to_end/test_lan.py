"""A farm on a LAN needs only its key: nodes with one interface each discover each other by broadcast.

The LAN consists of network namespaces: one holds a bridge, and each node has its own namespace with an address.
Namespaces need root and iproute2; without them the tests are skipped with this reason.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bridge.api.view import FarmView, Phase, VerdictKind
from bridge.core.formation.member import MemberStatus
from bridge.node.control.client import ask_blocking
from bridge.node.security.control_socket import SOCKET_NAME
from tests.end_to_end import forking
from tests.end_to_end.farm import END_BOUND_S, START_BOUND_S, call, tail, wait_until

NODES = 3
MOVE_BOUND_S = 60.0
"""Ten times the time of two checks of the interfaces."""
RECENT_MS = 5_000
BLOCKED_BOUND_S = 120.0
"""Gossip marks a member dead within seconds. The alarm follows ten seconds later, or after the next report."""
CUT_OFF_BOUND_S = 10 * 3.0
"""Ten times three of the shortest election timeouts. An alarm after 2.5 reporting periods would need 75 s."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)  # noqa: S607 - at any path


@contextmanager
def bridged(prefix: str) -> Iterator[list[str]]:
    """Create namespaces with one interface each on a common bridge; yield their names."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    switch, names = f"{prefix}{os.getpid()}s", [f"{prefix}{os.getpid()}r{number}" for number in range(1, NODES + 1)]
    with ExitStack() as stack:
        try:
            _ip("netns", "add", switch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        stack.callback(_ip, "netns", "del", switch)
        _ip("-n", switch, "link", "add", "lan", "type", "bridge")
        _ip("-n", switch, "link", "set", "lan", "up")
        for number, name in enumerate(names, start=1):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "lan", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"192.168.77.{number}/24", "brd", "+", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield names


@pytest.fixture
def lan() -> Iterator[list[str]]:
    with bridged("gf") as names:
        yield names


def new_key(path: Path, servers: int = NODES) -> Path:
    assert call("keys", "new-farm", "--expect", str(servers), "--output", path).returncode == 0
    return path


def start(key: Path, state: Path, stack: ExitStack, *options: str) -> None:
    """Start a node with only a key, in the namespace with the name of its directory."""
    required = ("--farm-key", str(key), "--state-dir", str(state), "--name", state.name, "--stop-with-stdin")
    with state.with_suffix(".log").open("ab") as output:
        process = forking.start(
            ("run", *required, *options), output.fileno(), output.fileno(), piped=True, namespace=state.name
        )
    stack.callback(end, process)


def end(process: forking.Forked) -> None:
    """Stop a node by the end of its standard input."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(END_BOUND_S)
    finally:
        process.kill()


def logs_of(states: list[Path]) -> str:
    return "\n".join(tail(state.with_suffix(".log")) for state in states)


@contextmanager
def farm_on(lan: list[str], path: Path) -> Iterator[list[Path]]:
    """Start a node with the same key in each namespace; yield their directories when all have a leader."""
    key, states = new_key(path / "farm.key"), [path / name for name in lan]
    with ExitStack() as stack:
        for state in states:
            start(key, state, stack)
        wait_led(states)
        yield states


@pytest.fixture(scope="module")
def shared_states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    with bridged("gl") as names, farm_on(names, tmp_path_factory.mktemp("lan")) as found:
        yield found


@pytest.fixture
def states(shared_states: list[Path]) -> list[Path]:
    """Return the directories of the nodes of a farm, which several tests use."""
    wait_led(shared_states)
    return shared_states


def wait_led(states: list[Path]) -> None:
    """Wait until each node has a leader in its view."""
    wait_until(
        lambda: all(view_of(state).raft.leader_id is not None for state in states),
        START_BOUND_S,
        "all nodes have a leader in their views",
        lambda: logs_of(states),
    )


def view_of(state: Path) -> FarmView:
    return ask_blocking(state / SOCKET_NAME, lambda client: client.view())


def test_different_key_files_are_reported_on_both_sides(lan: list[str], tmp_path: Path) -> None:
    keys = [new_key(tmp_path / "farm.key"), new_key(tmp_path / "wrong.key")]
    states = [tmp_path / name for name in lan]
    with ExitStack() as stack:
        for state, key in zip(states, (keys[0], keys[0], keys[1]), strict=True):
            start(key, state, stack)
        for state, missing, other in ((states[0], 1, states[2]), (states[2], 2, states[0])):

            def key_alarm_view(
                state: Path = state, expected: str = f"waiting for {missing} of {NODES} nodes"
            ) -> FarmView | None:
                view = view_of(state)
                is_foreign = view.verdict.kind is VerdictKind.FOREIGN_KEY
                return view if is_foreign and expected in view.verdict.text else None

            view = wait_until(
                key_alarm_view, START_BOUND_S, f"{state.name} reports another farm key", lambda: logs_of(states)
            )

            def alarmed(state: Path = state) -> bool:
                return any(each.kind == "foreign-key" for each in view_of(state).alarms)

            wait_until(alarmed, START_BOUND_S, "the alarm foreign-key", lambda: logs_of(states))
            assert "under another farm key" in view.verdict.text
            assert view_of(other).farm.label in view.verdict.text
        done = call("doctor", "--farm-key", keys[1], "--state-dir", states[2])
        assert done.returncode == 1
        assert "Gossip arrives under another farm key" in done.stdout


def test_removed_configured_address_raises_alarm(lan: list[str], tmp_path: Path) -> None:
    state = tmp_path / lan[0]
    with ExitStack() as stack:
        start(new_key(tmp_path / "farm.key", 1), state, stack, "--bind", "192.168.77.1:7668")
        wait_led([state])
        _ip("-n", lan[0], "addr", "add", "192.168.77.51/24", "brd", "+", "dev", "eth0")
        _ip("-n", lan[0], "addr", "del", "192.168.77.1/24", "dev", "eth0")

        def address_alarm() -> str:
            return next((each.text for each in view_of(state).alarms if each.kind == "address-gone"), "")

        assert "gossip.bind = 192.168.77.1:7668" in wait_until(
            address_alarm, MOVE_BOUND_S, "an alarm about the address", lambda: logs_of([state])
        )
        _ip("-n", lan[0], "addr", "add", "192.168.77.1/24", "brd", "+", "dev", "eth0")
        wait_until(
            lambda: not address_alarm(),
            MOVE_BOUND_S,
            "the alarm ends when the address is restored",
            lambda: logs_of([state]),
        )


def test_farm_is_created_on_lan_with_ipv6_only(lan: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(lan, start=1):
        _ip("-n", name, "addr", "flush", "dev", "eth0")
        _ip("-n", name, "addr", "add", f"fd00:77::{number}/64", "dev", "eth0", "nodad")
    with farm_on(lan, tmp_path) as states:
        assert {each.address for each in view_of(states[0]).members} == {
            f"[fd00:77::{number}]:7668" for number in range(1, NODES + 1)
        }


def address_in(name: str) -> str:
    """Return the IPv4 address of the interface in this namespace, which an earlier test may have changed."""
    command = ["ip", "-n", name, "-4", "-o", "addr", "show", "dev", "eth0"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    return shown.stdout.partition(" inet ")[2].partition("/")[0]


def test_lan_farm_needs_only_its_key(states: list[Path]) -> None:
    found = [view_of(state) for state in states]
    assert {view.node.phase for view in found} == {Phase.FOUNDED}
    assert len({view.farm.cluster_id for view in found}) == 1
    assert {member.address for view in found for member in view.members} == {
        f"{address_in(state.name)}:7668" for state in states
    }


@contextmanager
def blocked_udp(name: str, *hooks: str) -> Iterator[None]:
    """Drop UDP packets that this namespace sends (`output`) or receives (`input`). TCP still works."""
    rules = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; meta l4proto udp drop; }}\n" for hook in hooks
    )
    subprocess.run(
        ["ip", "netns", "exec", name, "nft", f"table inet blocked {{ {rules} }}"],  # noqa: S607 - at any path
        check=True,
        capture_output=True,
        text=True,
    )
    try:
        yield
    finally:
        subprocess.run(
            ["ip", "netns", "exec", name, "nft", "delete table inet blocked"],  # noqa: S607 - at any path
            check=True,
            capture_output=True,
        )


BLOCKED = [
    pytest.param("follower", ("input", "output"), id="follower-both-ways"),
    pytest.param("follower", ("input",), id="follower-inbound", marks=pytest.mark.soak),
    pytest.param("follower", ("output",), id="follower-outbound", marks=pytest.mark.soak),
    pytest.param("leader", ("input", "output"), id="leader-both-ways", marks=pytest.mark.soak),
    pytest.param("leader", ("input",), id="leader-inbound", marks=pytest.mark.soak),
    pytest.param("leader", ("output",), id="leader-outbound", marks=pytest.mark.soak),
]
"""The node whose UDP is blocked, and the hooks of the packet filter."""


@pytest.mark.skipif(shutil.which("nft") is None, reason="needs nft to block UDP (Debian: apt-get install nftables)")
@pytest.mark.parametrize(("role", "hooks"), BLOCKED)
def test_blocked_udp_raises_alarm_on_both_sides(states: list[Path], role: str, hooks: tuple[str, ...]) -> None:
    leads = [view_of(state).raft.leader_id == view_of(state).node.raft_id for state in states]
    blocked = states[leads.index(role == "leader")]
    leader = states[leads.index(True)]

    def alarm(state: Path) -> str:
        return next((each.text for each in view_of(state).alarms if each.kind == "udp-blocked"), "")

    other = leader if blocked is not leader else states[leads.index(False)]
    # The blocked node marks the others dead at different times, so the alarm names one more each time.
    with blocked_udp(blocked.name, *hooks):
        at_blocked = "the blocked node has an alarm about the other node"
        wait_until(lambda: other.name in alarm(blocked), BLOCKED_BOUND_S, at_blocked, lambda: logs_of(states))
        at_other = "the other node has an alarm about the blocked node"
        wait_until(lambda: blocked.name in alarm(other), BLOCKED_BOUND_S, at_other, lambda: logs_of(states))
        assert view_of(leader).raft.leader_id is not None
        for state in (blocked, leader):
            assert "servers-down" not in {each.kind for each in view_of(state).alarms}
    # when the block is removed, the alarms end
    wait_until(
        lambda: not alarm(blocked) and not alarm(other),
        BLOCKED_BOUND_S,
        "the alarms have ended",
        lambda: logs_of(states),
    )


@pytest.mark.parametrize("role", ["leader", pytest.param("follower", marks=pytest.mark.soak)])
def test_node_follows_new_address_of_its_machine(states: list[Path], role: str) -> None:
    leads = [view_of(state).raft.leader_id == view_of(state).node.raft_id for state in states]
    moved = states[leads.index(role == "leader")]
    others = [each for each in states if each is not moved]
    (old,) = (str(each.address).rpartition(":")[0] for each in view_of(moved).members if each.name == moved.name)
    address = f"192.168.77.{int(old.rpartition('.')[2]) + 50}"
    # when its DHCP lease has another address
    _ip("-n", moved.name, "addr", "del", f"{old}/24", "dev", "eth0")
    _ip("-n", moved.name, "addr", "add", f"{address}/24", "brd", "+", "dev", "eth0")
    # then the others reach it at the new address, by gossip and by Raft

    def reached(state: Path) -> bool:
        view = view_of(state)
        known = [each for each in view.members if each.name == moved.name]
        return (
            view.raft.leader_id is not None
            and not view.raft.stands_still
            and [(each.address, each.endpoint, each.status) for each in known]
            == [(f"{address}:7668", f"tcp://{address}:7669", MemberStatus.ALIVE)]
            and not {each.kind for each in view.alarms} & {"servers-down", "no-quorum", "isolated"}
        )

    wait_until(
        lambda: all(map(reached, others)),
        MOVE_BOUND_S,
        "the other nodes reach the node at its new address",
        lambda: logs_of(states),
    )
    wait_until(lambda: reached(moved), MOVE_BOUND_S, "the node belongs to the farm again", lambda: logs_of(states))

    def all_reply() -> bool:
        followers = [each for state in states for each in view_of(state).raft.followers]
        recent = [each for each in followers if each.last_contact_ms is not None and each.last_contact_ms < RECENT_MS]
        return len(recent) == NODES - 1

    wait_until(all_reply, MOVE_BOUND_S, "all followers reply to the leader", lambda: logs_of(states))
    assert "node starts again with it" in tail(moved.with_suffix(".log"))


@contextmanager
def link_down(name: str) -> Iterator[None]:
    """Isolate a namespace."""
    _ip("-n", name, "link", "set", "eth0", "down")
    try:
        yield
    finally:
        _ip("-n", name, "link", "set", "eth0", "up")


def test_isolated_node_reports_within_seconds(states: list[Path]) -> None:
    cut = states[0]
    with link_down(cut.name):
        wait_until(
            lambda: view_of(cut).verdict.kind is VerdictKind.NO_QUORUM,
            CUT_OFF_BOUND_S,
            "the isolated node reports a lost quorum",
            lambda: logs_of(states),
        )
        wait_until(
            lambda: any(each.kind == "no-quorum" for each in view_of(cut).alarms),
            CUT_OFF_BOUND_S,
            "the isolated node has the alarm no-quorum",
            lambda: logs_of(states),
        )
        assert cut.name not in view_of(cut).verdict.text.partition(";")[2]
        wait_until(
            lambda: any(
                alarm.kind == "servers-down" and f"{cut.name} down" in alarm.text for alarm in view_of(states[1]).alarms
            ),
            CUT_OFF_BOUND_S,
            "the other nodes report the isolated node as down",
            lambda: logs_of(states),
        )
