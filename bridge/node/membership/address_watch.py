"""Follows the addresses of this machine while the node runs: a lease brings another one, a cable is moved.

    every 3 s   addresses of the interfaces that are up ──▶ all that this node uses are there: nothing to do
                                                        └─▶ one is missing, twice in a row:
                  chosen by default   another one can be chosen ──▶ AddressChangedError: the node begins anew with it
                                      none                      ──▶ alarm `address-gone`, until one comes
                  named by settings                             ──▶ alarm `address-gone`, until it returns

A node whose address is gone has no connection left, in any protocol. So it ends all its parts and starts them again
within the process, with the new address in each place of the settings that had the old one. To rebind one socket after
the other is the other way: gossip, Raft, the control endpoint, ØMQ and Kafka would each need a way to move, and a
forgotten part would stay behind without a word. The next generation of the node carries the new address; members accept
it as after any restart.

An address in the settings file is not followed: the operator, or a router that forwards a port, may rely on it. If the
node moved and the file names the old address elsewhere, the next start would fail. That is the alarm
`address-outdated`.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import trio

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
from gossip import Address
from gossip.node import LanInterface, endpoint

LOOK_EVERY_S: Final = 3.0
LOOKS: Final = 2
"""A lease that is renewed may take its address away for a moment."""
WAIT_ACTION: Final = "restore the network of this machine: this node uses its new address without a restart"

Value = TypeVar("Value")


class AddressChangedError(Exception):
    """This machine has another address; `configuration` has it in each place of the old one."""

    def __init__(self, old: str, new: ChosenAddress, configuration: NodeConfiguration) -> None:
        super().__init__(
            f"this machine has no longer the address {old}, but {new.host} ({new}): the node starts again with it"
        )
        self.old = old
        self.new = new
        self.configuration = configuration


class AddressWatch:
    """Of one node. `written`: the configuration as the operator wrote it, before the node moved for the first time."""

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
        """By setting; None before the first look."""
        self._missed = 0

    async def run(self) -> None:
        """Look until cancelled; raises `AddressChangedError`."""
        while True:
            with suppress(OSError):  # Without a descriptor to ask by, the addresses are looked at the next time.
                self.look(await trio.to_thread.run_sync(self._network.interfaces))
            await trio.sleep(LOOK_EVERY_S)

    def look(self, interfaces: Sequence[LanInterface]) -> None:
        """Compare the addresses of this moment with those that the node uses."""
        present = {each.host for each in interfaces if each.is_up and each.host}
        if self._used is None:
            self._used = self._own(present)
            self._show_outdated(present)
        gone = {setting: address for setting, address in self._used.items() if address.host not in present}
        self._missed = self._missed + 1 if gone else 0
        if not gone:
            self._alarms.clear(ADDRESS_GONE)
        elif self._missed >= LOOKS:
            self._follow(gone, interfaces)

    def _own(self, present: Collection[str]) -> dict[str, Address]:
        """The addresses in use that are this machine's; one that a router forwards is not."""
        chosen = None if self._configuration.gossip is None else self._configuration.gossip.chosen
        own = {*present} if chosen is None else {*present, chosen.host}
        return {
            setting: address
            for setting, address in addresses_of(self._configuration).items()
            if address.host in own and not _is_everywhere(address.host)
        }

    def _follow(self, gone: Mapping[str, Address], interfaces: Sequence[LanInterface]) -> None:
        chosen = None if self._configuration.gossip is None else self._configuration.gossip.chosen
        if chosen is None or chosen.host not in {address.host for address in gone.values()}:
            self._show_gone(gone, interfaces)
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

    def _show_gone(self, gone: Mapping[str, Address], interfaces: Sequence[LanInterface]) -> None:
        settings = " and ".join(f"{setting} = {endpoint(address)}" for setting, address in sorted(gone.items()))
        host = next(iter(gone.values())).host
        try:
            now = choose_address(Network(lambda: list(interfaces), self._network.route_host)).host
        except NoAddressError:
            now = None
        has = "" if now is None else f"; it has {now} now"
        other = "another address of this machine" if now is None else now
        self._alarms.set(
            ADDRESS_GONE,
            f"{_lost(host, interfaces)}{has}, and {settings}: this node is not reached there",
            f"bring the address back to this machine (interface, lease), then nothing else is needed; or write {other}"
            " into the settings named, and restart this node",
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
        told = "; ".join(
            f"{setting} = {endpoint(address)}, and this node uses {endpoint(now[setting])}"
            for setting, address in sorted(old.items())
            if setting in now
        )
        self._alarms.set(
            ADDRESS_OUTDATED,
            f"this machine has another address than the configuration names: {told}",
        )


def chosen_anew(configuration: NodeConfiguration, network: Network | None = None) -> NodeConfiguration:
    """The configuration of a node that moved, with the address that this machine has now, if it may use it."""
    chosen = None if configuration.gossip is None else configuration.gossip.chosen
    if chosen is None:
        return configuration
    try:
        new = choose_address(network or Network())
    except (NoAddressError, OSError):
        return configuration
    return moved(configuration, new) if _may_follow(chosen, new) else configuration


def _may_follow(old: ChosenAddress, new: ChosenAddress) -> bool:
    """Return False for a way out of the LAN: the node would stay there when the LAN comes back."""
    return reach_of(new.interface) is Reach.LAN or reach_of(old.interface) is not Reach.LAN


def addresses_of(configuration: NodeConfiguration) -> dict[str, Address]:
    """Where this node listens, and what it tells others of that, by setting."""
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
    """Those of `addresses_of` that the operator has written; the others follow from the default of `gossip.bind`."""
    gossip = configuration.gossip
    derived = {"gossip.bind", *configuration.consensus.derived} if gossip is not None and gossip.chosen else set()
    return addresses_of(configuration).keys() - derived


def moved(configuration: NodeConfiguration, new: ChosenAddress) -> NodeConfiguration:
    """The configuration with another host in each place of the chosen one; ValueError if none was chosen."""
    gossip = configuration.gossip
    if gossip is None or gossip.chosen is None:
        raise ValueError("the operator has named the address of this node")
    old = gossip.chosen
    found = _with_host(configuration, old.host, new.host)
    bind, broadcast, interface = Address(new.host, gossip.bind.port), gossip.broadcast, gossip.interface
    if broadcast is not None and broadcast.host == old.broadcast_host:
        broadcast = Address(new.broadcast_host, bind.port) if new.broadcast_host else None
        interface = new.interface if ":" in new.broadcast_host else None
    gossip = replace(gossip, bind=bind, chosen=new, broadcast=broadcast, interface=interface)
    return replace(found, gossip=gossip)


def _with_host(value: Value, old: str, new: str) -> Value:
    found: Any = value
    if isinstance(found, Address):
        found = replace(found, host=new) if found.host == old else found
    elif isinstance(found, tuple):
        found = tuple(_with_host(each, old, new) for each in found)
    elif is_dataclass(found) and not isinstance(found, type):
        changed = {each.name: _with_host(getattr(found, each.name), old, new) for each in fields(found) if each.init}
        found = replace(found, **changed)
    return found  # type: ignore[no-any-return]


def _is_everywhere(host: str) -> bool:
    return host in WILDCARDS or ip_address(host).is_loopback


def _lost(host: str, interfaces: Sequence[LanInterface]) -> str:
    down = next((each.name for each in interfaces if each.host == host), None)
    return (
        f"this machine has no longer the address {host}" if down is None else f"{down} with the address {host} is down"
    )
