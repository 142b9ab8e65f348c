"""The watch of this machine's addresses while the node runs, for example after a new lease.

    every 5 s   addresses of active interfaces ──▶ all addresses in use are present: no change
                                               └─▶ one is missing, twice in a row:
                  chosen by default   another one can be chosen ──▶ AddressChangedError: the node restarts with it
                                      none suitable             ──▶ alarm `address-gone`, until one appears
                  set in the settings                           ──▶ alarm `address-gone`, until it returns

A node whose address is gone loses all connections, in every protocol. If it chose this address by default, it ends all
its parts and starts them again within the process, with the new address. Moving single sockets instead would need code
in gossip, Raft, the control endpoint, ØMQ and Kafka. A part that such code missed would keep the old address without an
error. The restarted node announces the new address; members accept it as after any restart.

The node does not replace an address in the settings file: the operator, or a router that forwards a port, may rely on
it. If the node moved and a setting in the file still has the old address, the next start would fail. The alarm
`address-outdated` reports this.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import trio
from msgspec import Struct, structs
from msgspec.structs import replace

from bridge.api.alarms import ADDRESS_GONE, ADDRESS_OUTDATED
from bridge.node.events.alarms import Alarms
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.machine import (
    WILDCARDS,
    ChosenAddress,
    Network,
    NoAddressError,
    Reach,
    choose_address,
    reach_of,
)
from consensus import sleep_to_tick
from gossip import Address
from gossip.node import LanInterface, endpoint

LOOK_EVERY_S: Final = 5.0
LOOKS: Final = 2
"""Number of checks in a row without the address: the renewal of a lease may remove it for a moment."""
WAIT_ACTION: Final = "restore the network of this machine: this node uses its new address without a restart"

Value = TypeVar("Value")


class AddressChangedError(Exception):
    """This machine has another address; `configuration` has it in each place of the old one."""

    def __init__(self, old: str, new: ChosenAddress, configuration: NodeConfiguration) -> None:
        super().__init__(
            f"this machine has the address {new.host} ({new}) instead of {old}: the node starts again with it"
        )
        self.old = old
        self.new = new
        self.configuration = configuration


class AddressWatch:
    """The watch of one node. `written` is the operator's configuration, before the node moved for the first time."""

    def __init__(
        self,
        configuration: NodeConfiguration,
        written: NodeConfiguration,
        alarms: Alarms,
        network: Network | None = None,
    ) -> None:
        self._configuration = configuration
        self._written = written
        self._alarms = alarms
        self._network = network or Network()
        self._used: Mapping[str, Address] | None = None
        """Addresses by setting; None before the first check."""
        self._missed = 0

    async def run(self) -> None:
        """Check periodically until canceled; raise `AddressChangedError`."""
        while True:
            with suppress(OSError):  # If no descriptor is free for the query, the next check reads the addresses.
                self.check(await trio.to_thread.run_sync(self._network.interfaces))
            await sleep_to_tick(LOOK_EVERY_S)

    def check(self, interfaces: Sequence[LanInterface]) -> None:
        """Compare the machine's present addresses with the addresses in use."""
        present = {each.host for each in interfaces if each.is_up and each.host}
        if self._used is None:
            self._used = self._own(present)
            self._show_outdated(present)
        missing = {setting: address for setting, address in self._used.items() if address.host not in present}
        self._missed = self._missed + 1 if missing else 0
        if not missing:
            self._alarms.clear(ADDRESS_GONE)
        elif self._missed >= LOOKS:
            self._follow(missing, interfaces)

    def _own(self, present: Collection[str]) -> dict[str, Address]:
        """Return the addresses in use that this machine has; a forwarded address is not one of them."""
        chosen = None if self._configuration.gossip is None else self._configuration.gossip.chosen
        own = {*present} if chosen is None else {*present, chosen.host}
        return {
            setting: address
            for setting, address in addresses_of(self._configuration).items()
            if address.host in own and not _is_everywhere(address.host)
        }

    def _follow(self, missing: Mapping[str, Address], interfaces: Sequence[LanInterface]) -> None:
        chosen = None if self._configuration.gossip is None else self._configuration.gossip.chosen
        if chosen is None or chosen.host not in {address.host for address in missing.values()}:
            self._show_missing(missing, interfaces)
            return
        try:
            new = choose_address(Network(lambda: list(interfaces), self._network.route_host))
        except NoAddressError as error:
            self._alarms.set(
                ADDRESS_GONE, f"{_lost(chosen.host, interfaces)}, which this node uses; {error}", WAIT_ACTION
            )
            return
        if not _may_follow(chosen, new):
            text = (
                f"{_lost(chosen.host, interfaces)}, which this node uses; the remaining address is {new.host} of {new}"
            )
            self._alarms.set(ADDRESS_GONE, text, f"{WAIT_ACTION}; to use {new.host} instead, restart the node")
            return
        raise AddressChangedError(chosen.host, new, moved(self._configuration, new))

    def _show_missing(self, missing: Mapping[str, Address], interfaces: Sequence[LanInterface]) -> None:
        settings = " and ".join(f"{setting} = {endpoint(address)}" for setting, address in sorted(missing.items()))
        host = next(iter(missing.values())).host
        try:
            now = choose_address(Network(lambda: list(interfaces), self._network.route_host)).host
        except NoAddressError:
            now = None
        has = "" if now is None else f"; it has {now} now"
        other = "another address of this machine" if now is None else now
        self._alarms.set(
            ADDRESS_GONE,
            f"{_lost(host, interfaces)}{has}. This node cannot be reached at {settings}",
            f"give the address back to this machine (interface, lease); or write {other} into the settings named, and"
            " restart this node",
        )

    def _show_outdated(self, present: Collection[str]) -> None:
        now = addresses_of(self._configuration)
        old = {
            setting: address
            for setting, address in addresses_of(self._written).items()
            if setting in named_settings(self._written) and now.get(setting) != address and address.host not in present
        }
        if not old:
            self._alarms.clear(ADDRESS_OUTDATED)
            return
        changed = "; ".join(
            f"{setting} = {endpoint(address)}, and this node uses {endpoint(now[setting])}"
            for setting, address in sorted(old.items())
            if setting in now
        )
        self._alarms.set(
            ADDRESS_OUTDATED,
            f"this machine has another address than the configuration names: {changed}",
        )


def chosen_anew(configuration: NodeConfiguration, network: Network | None = None) -> NodeConfiguration:
    """Return the configuration of a moved node with this machine's present address, if the node may use it."""
    chosen = None if configuration.gossip is None else configuration.gossip.chosen
    if chosen is None:
        return configuration
    try:
        new = choose_address(network or Network())
    except (NoAddressError, OSError):
        return configuration
    return moved(configuration, new) if _may_follow(chosen, new) else configuration


def _may_follow(old: ChosenAddress, new: ChosenAddress) -> bool:
    """Return False for a move from a LAN to a VPN, or between IPv4 and IPv6: the node would not move back later.

    The other nodes use one address each, so they cannot reach an address of the other IP version.
    """
    is_same_version = (":" in old.host) == (":" in new.host)
    return is_same_version and (reach_of(new.interface) is Reach.LAN or reach_of(old.interface) is not Reach.LAN)


def addresses_of(configuration: NodeConfiguration) -> dict[str, Address]:
    """Return this node's own and announced addresses, by setting."""
    gossip, consensus, control = configuration.gossip, configuration.consensus, configuration.control
    zmq, kafka = configuration.zmq, configuration.kafka
    found: dict[str, Address | None] = {
        "gossip.bind": None if gossip is None else gossip.bind,
        "gossip.advertise": None if gossip is None else gossip.advertise,
        "consensus.bind": consensus.bind,
        "consensus.advertise": consensus.advertise,
        "control.listen": None if control is None else control.listen,
        "zmq.listen": None if zmq is None else zmq.listen,
        "zmq.broadcast": None if zmq is None else zmq.broadcast,
        "kafka.listen": None if kafka is None else kafka.listen,
        "kafka.advertise": None if kafka is None else kafka.advertise,
    }
    return {setting: address for setting, address in found.items() if address is not None}


def named_settings(configuration: NodeConfiguration) -> set[str]:
    """Return the settings of `addresses_of` that the operator wrote; others follow from the default `gossip.bind`."""
    gossip = configuration.gossip
    derived = {"gossip.bind", *configuration.consensus.derived} if gossip is not None and gossip.chosen else set()
    return addresses_of(configuration).keys() - derived


def moved(configuration: NodeConfiguration, new: ChosenAddress) -> NodeConfiguration:
    """Return the configuration with `new` in each place of the chosen host; raise ValueError if none was chosen."""
    gossip = configuration.gossip
    if gossip is None or gossip.chosen is None:
        raise ValueError("the operator has named the address of this node")
    old = gossip.chosen
    found = _with_host(configuration, old.host, new.host)
    bind, broadcast, interface = Address(new.host, gossip.bind.port), gossip.broadcast, gossip.interface
    if broadcast is not None and broadcast.host == old.broadcast_host:
        broadcast = Address(new.broadcast_host, bind.port) if new.broadcast_host else None
        interface = new.interface if ":" in new.broadcast_host else None
    gossip = dataclasses.replace(gossip, bind=bind, chosen=new, broadcast=broadcast, interface=interface)
    return dataclasses.replace(found, gossip=gossip)


def _with_host(value: Value, old: str, new: str) -> Value:
    found: Any = value
    if isinstance(found, Address):
        found = replace(found, host=new) if found.host == old else found
    elif isinstance(found, tuple):
        found = tuple(_with_host(each, old, new) for each in found)
    elif isinstance(found, Struct):
        found = replace(found, **{name: _with_host(each, old, new) for name, each in structs.asdict(found).items()})
    elif is_dataclass(found) and not isinstance(found, type):
        changed = {each.name: _with_host(getattr(found, each.name), old, new) for each in fields(found) if each.init}
        found = dataclasses.replace(found, **changed)
    return found  # type: ignore[no-any-return]


def _is_everywhere(host: str) -> bool:
    return host in WILDCARDS or ip_address(host).is_loopback


def _lost(host: str, interfaces: Sequence[LanInterface]) -> str:
    down = next((each.name for each in interfaces if each.host == host), None)
    return (
        f"this machine no longer has the address {host}" if down is None else f"{down} with the address {host} is down"
    )
