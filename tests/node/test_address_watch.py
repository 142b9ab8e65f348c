"""A running node adopts address changes of its machine, or raises an alarm with the reason."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from msgspec import Struct, structs
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.api.alarms import ADDRESS_GONE, ADDRESS_OUTDATED
from bridge.api.view import AlarmView
from bridge.node.events.alarms import AddressNotHereError, Alarms
from bridge.node.events.event_log import EventLog
from bridge.node.membership import restarting
from bridge.node.membership.address_watch import (
    LOOK_EVERY_S,
    LOOKS,
    AddressChangedError,
    AddressWatch,
    addresses_of,
    chosen_anew,
    moved,
)
from bridge.node.membership.restarting import run_with_restarts
from bridge.node.raft.connecting import bound_port
from bridge.node.settings.configuration import NodeConfiguration, Overrides, load_configuration
from bridge.node.settings.machine import Machine, Network, choose_address
from gossip import Address
from gossip.node import LanInterface
from tests.effort import each_case
from tests.processes import hold_for_threads

OLD = LanInterface("eth0", "10.77.0.3", "10.77.0.255")
NEW = LanInterface("eth0", "10.77.0.33", "10.77.0.255")
ELSEWHERE = LanInterface("wlan0", "192.168.7.5", "192.168.7.255")
DOCKER = LanInterface("docker0", "172.17.0.1", "172.17.255.255")
TAILSCALE = LanInterface("tailscale0", "100.64.0.5")
IPV6 = LanInterface("eth0", "fd00::5", "ff02::1")

SETTINGS = """
[gossip]
{gossip}
[control]
listen = "{host}:7650"
[consensus]
{consensus}
"""


class Stage:
    """A machine with changing interfaces, and a node that watches them."""

    def __init__(self, directory: Path, toml: str = "", *interfaces: LanInterface) -> None:
        self.interfaces: Sequence[LanInterface] = interfaces or (OLD, DOCKER)
        self.network = Network(lambda: list(self.interfaces), lambda: None)
        file = directory / "node.toml"
        file.write_text(f'farm_key = "k"\n{toml}')
        self.configuration = load_configuration(
            file, Overrides(state_dir=directory), Machine("r", directory, self.network)
        )
        self.alarms = Alarms(EventLog("node", lambda: 0))

    def watch(self, configuration: NodeConfiguration | None = None) -> AddressWatch:
        return AddressWatch(configuration or self.configuration, self.configuration, self.alarms, self.network)

    def check(self, watch: AddressWatch, *interfaces: LanInterface, times: int = LOOKS) -> None:
        """Change the interfaces of the machine, and let the watch check them."""
        self.interfaces = interfaces
        for _ in range(times):
            watch.check(self.network.interfaces())

    def alarm(self, kind: str = ADDRESS_GONE.kind) -> AlarmView | None:
        """Return the active alarm of this kind, or None."""
        return next((each for each in self.alarms.active() if each.kind == kind), None)


def started(stage: Stage) -> AddressWatch:
    watch = stage.watch()
    watch.check(stage.network.interfaces())
    return watch


@each_case(("old", "new"), [(OLD, NEW), (OLD, ELSEWHERE), (IPV6, replace(IPV6, host="fd00::6"))])
def test_changed_address_replaces_all_chosen_addresses(tmp_path: Path, old: LanInterface, new: LanInterface) -> None:
    stage = Stage(tmp_path, "", old)
    watch = started(stage)
    with pytest.raises(AddressChangedError, match=new.host) as changed:
        stage.check(watch, new, DOCKER)
    configuration = changed.value.configuration
    assert {address.host for address in addresses_of(configuration).values()} == {new.host}
    assert configuration.gossip is not None
    assert configuration.gossip.broadcast == Address(new.broadcast_host, 7668)
    assert configuration.gossip.interface == ("eth0" if old is IPV6 else None)


async def test_changed_address_is_detected_within_two_checks(tmp_path: Path, autojump_clock: MockClock) -> None:
    hold_for_threads(autojump_clock)  # Interfaces are read in a thread.
    stage = Stage(tmp_path)
    began = trio.current_time()
    with pytest.raises(trio.TooSlowError), trio.fail_after(10 * LOOK_EVERY_S):
        await stage.watch().run()
    stage.interfaces = (NEW,)
    with pytest.raises(AddressChangedError):
        await _changed(stage)
    assert trio.current_time() - began <= (10 + LOOKS + 1) * LOOK_EVERY_S


async def _changed(stage: Stage) -> None:
    watch = stage.watch()
    stage.interfaces = (OLD,)
    watch.check(stage.network.interfaces())
    stage.interfaces = (NEW,)
    with trio.fail_after((LOOKS + 1) * LOOK_EVERY_S):
        await watch.run()


def test_address_missing_for_one_check_is_ignored(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    watch = started(stage)
    stage.check(watch, NEW, times=LOOKS - 1)
    stage.check(watch, OLD, times=1)
    stage.check(watch, NEW, times=LOOKS - 1)
    assert stage.alarms.active() == ()


@pytest.mark.parametrize("left", [(), (DOCKER,), (replace(OLD, is_up=False),), (LanInterface("eth0", "169.254.7.7"),)])
def test_missing_address_raises_alarm_until_it_returns(tmp_path: Path, left: tuple[LanInterface, ...]) -> None:
    stage = Stage(tmp_path)
    watch = started(stage)
    stage.check(watch, *left)
    alarm = stage.alarm()
    assert alarm is not None
    assert OLD.host in alarm.text
    assert "without a restart" in alarm.action
    stage.check(watch, OLD)
    assert stage.alarm() is None


@each_case(("old", "new"), [(OLD, TAILSCALE), (OLD, IPV6), (IPV6, NEW)])
def test_node_does_not_move_to_another_kind_of_network(tmp_path: Path, old: LanInterface, new: LanInterface) -> None:
    stage = Stage(tmp_path, "", old)
    watch = started(stage)
    stage.check(watch, new)
    alarm = stage.alarm()
    assert alarm is not None
    assert new.host in alarm.text
    assert f"to use {new.host} instead, restart the node" in alarm.action
    assert chosen_anew(stage.configuration, stage.network) == stage.configuration


def test_missing_configured_address_is_named_in_alarm(tmp_path: Path) -> None:
    stage = Stage(tmp_path, f'[gossip]\nbind = "{OLD.host}:7668"\n')
    watch = started(stage)
    stage.check(watch, NEW)
    alarm = stage.alarm()
    assert alarm is not None
    assert f"gossip.bind = {OLD.host}:7668" in alarm.text
    assert NEW.host in alarm.text
    assert f"write {NEW.host} into the settings" in alarm.action
    stage.check(watch, OLD)
    assert stage.alarm() is None


@each_case(
    ("setting", "toml"),
    [
        ("gossip.advertise", f'[gossip]\nbind = "0.0.0.0:7668"\nadvertise = "{OLD.host}:7668"'),
        ("consensus.bind", f'[gossip]\nbind = "{DOCKER.host}:7668"\n[consensus]\nbind = "{OLD.host}:7669"'),
        ("control.listen", f'[gossip]\nbind = "{DOCKER.host}:7668"\n[control]\nlisten = "{OLD.host}:7650"'),
        (
            "kafka.listen",
            f'[gossip]\nbind = "{DOCKER.host}:7668"\n[kafka]\nlisten = "{OLD.host}:9092"\nallow_network = true',
        ),
        (
            "zmq.listen",
            f'[gossip]\nbind = "{DOCKER.host}:7668"\n[zmq]\nlisten = "{OLD.host}:7670"\nallow_network = true',
        ),
    ],
)
def test_missing_configured_address_of_any_setting_is_named(tmp_path: Path, setting: str, toml: str) -> None:
    stage = Stage(tmp_path, toml)
    watch = started(stage)
    stage.check(watch, NEW, DOCKER)
    alarm = stage.alarm()
    assert alarm is not None
    assert f"{setting} = {OLD.host}" in alarm.text


def test_forwarded_address_is_not_watched(tmp_path: Path) -> None:
    stage = Stage(tmp_path, '[gossip]\nbind = "0.0.0.0:7668"\nadvertise = "192.168.99.9:7668"')
    watch = started(stage)
    stage.check(watch, NEW, DOCKER)
    assert stage.alarms.active() == ()


def test_settings_with_old_address_raise_alarm_after_move(tmp_path: Path) -> None:
    stage = Stage(tmp_path, f'[control]\nlisten = "{OLD.host}:7650"\n')
    watch = started(stage)
    with pytest.raises(AddressChangedError) as changed:
        stage.check(watch, NEW)
    again = stage.watch(changed.value.configuration)
    again.check(stage.network.interfaces())
    alarm = stage.alarm(ADDRESS_OUTDATED.kind)
    assert alarm is not None
    assert f"control.listen = {OLD.host}:7650" in alarm.text
    assert "consensus" not in alarm.text
    assert stage.alarm() is None


def test_disabled_broadcast_stays_off_after_move(tmp_path: Path) -> None:
    stage = Stage(tmp_path, '[gossip]\nbroadcast = "off"\n')
    found = moved(stage.configuration, choose_address(Network(lambda: [ELSEWHERE], lambda: None)))
    assert found.gossip is not None
    assert found.gossip.broadcast is None


class Runs:
    """A node that moves after its first run; its new address cannot be opened `unopened` times."""

    def __init__(self, stage: Stage, unopened: int, *, moves: bool = True) -> None:
        self.stage = stage
        self.unopened = unopened
        self.moves = moves
        self.began: list[tuple[str, float]] = []

    async def run_once(self, configuration: NodeConfiguration, _: NodeConfiguration) -> None:
        self.began.append((configuration.consensus.bind.host, trio.current_time()))
        if self.moves and len(self.began) == 1:
            new = choose_address(Network(lambda: [NEW], lambda: None))
            raise AddressChangedError(OLD.host, new, moved(configuration, new))
        if self.unopened:
            self.unopened -= 1
            raise AddressNotHereError("consensus.bind cannot be opened")


async def test_new_address_is_retried_until_it_can_be_opened(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new address cannot be opened yet: the node restarts with growing pauses."""
    monkeypatch.setattr(restarting, "chosen_anew", lambda configuration: configuration)
    runs, starts = Runs(Stage(tmp_path), 8), list[None]()
    await run_with_restarts(runs.stage.configuration, runs.run_once, lambda: starts.append(None))
    hosts, times = zip(*runs.began, strict=True)
    assert hosts == (OLD.host, *[NEW.host] * 9)
    assert len(starts) == 9
    pauses = [later - sooner for sooner, later in pairwise(times[1:])]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == LOOK_EVERY_S


async def test_configured_address_that_cannot_be_opened_ends_node(tmp_path: Path) -> None:
    runs = Runs(Stage(tmp_path), 8, moves=False)
    with pytest.raises((AddressNotHereError, ExceptionGroup)):
        await run_with_restarts(runs.stage.configuration, runs.run_once, lambda: None)
    assert len(runs.began) == 1


async def test_port_of_missing_address_names_it() -> None:
    with pytest.raises(AddressNotHereError, match=r"consensus\.bind = 203\.0\.113\.7:7669"):
        async with bound_port(Address("203.0.113.7", 7669)):
            pass


@pytest.mark.parametrize(
    ("interfaces", "host"),
    [((NEW,), NEW.host), ((), OLD.host), ((TAILSCALE,), OLD.host)],
    ids=["another", "none", "only-vpn"],
)
def test_restart_chooses_address_by_rule_of_watch(
    tmp_path: Path, interfaces: tuple[LanInterface, ...], host: str
) -> None:
    configuration = chosen_anew(Stage(tmp_path).configuration, Network(lambda: list(interfaces), lambda: None))
    assert configuration.consensus.bind.host == host


def _addresses_in(value: object, path: str) -> Iterator[tuple[str, Address]]:
    if isinstance(value, Address):
        yield path, value
    elif isinstance(value, tuple):
        for each in value:
            yield from _addresses_in(each, path)
    elif isinstance(value, Struct):
        for name, each in structs.asdict(value).items():
            yield from _addresses_in(each, f"{path}.{name}".strip("."))
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _addresses_in(getattr(value, each.name), f"{path}.{each.name}".strip("."))


REMOTE = {"gossip.broadcast", "proxy.address"}
"""Addresses of other machines."""


def test_local_addresses_of_configuration_are_watched(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        f'[control]\nlisten = "{OLD.host}:7650"\n[kafka]\nlisten = "{OLD.host}:9092"\nallow_network = true\n'
        f'[zmq]\nlisten = "{OLD.host}:7670"\nbroadcast = "{OLD.host}:7671"\nallow_network = true\n',
    )
    found = dict(_addresses_in(stage.configuration, ""))
    assert found.keys() - REMOTE == addresses_of(stage.configuration).keys()
