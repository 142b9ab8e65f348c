"""Java I2P on this machine: a running process, Debian's package, and `.i2p` or `i2p` in home directories.

    process ─▶ -Di2p.dir.config, its user ─▶ directory
    router.config ─▶ I2CP          clients.config, clients.config.d ─▶ SAM, port of the console
    i2ptunnel.config, i2ptunnel.config.d ─▶ server tunnels
    plugins/I2PControl, webapps.config ─▶ I2PControl: the plugin's own port, or a page of the console

Newer routers split the files of clients and tunnels into directories, with one file for each; both forms are read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.node.detecting.found import FoundRouter, Service, ServiceState, find_tunnel
from bridge.node.detecting.machine import Content, MachineFiles, RouterProcess
from bridge.node.router.link import I2CP_PORT, I2PCONTROL_PORT, Link, Software
from bridge.sam.connection import SAM_PORT
from bridge.wire.routers.java_files import (
    CONSOLE_CLASS,
    SAM_CLASS,
    ClientApp,
    is_true,
    read_java_clients,
    read_java_properties,
    read_java_tunnels,
)
from bridge.wire.routers.process_files import JAVA
from bridge.wire.routers.text_file import port_of
from gossip.node import numeric

SYSTEM_HOME: Final = Path("/var/lib/i2p")
SYSTEM_DIRECTORY: Final = SYSTEM_HOME / "i2p-config"
_HOME_DIRECTORIES: Final = (".i2p", "i2p")
_LOOPBACK: Final = "127.0.0.1"
_CONSOLE_PORT: Final = 7657
_CERTIFICATE: Final = Path("certificates/i2cp/i2cp.local.crt")
_PLUGIN: Final = Path("plugins/I2PControl")
_ANY: Final = frozenset({"0.0.0.0", "::", "localhost"})  # noqa: S104 - replaced, never bound


class _JavaPlace(Struct, frozen=True):
    """One installation, and its process if it runs."""

    directory: Path
    process: RouterProcess | None
    console: str
    """The URL of its console."""


def find_java(machine: MachineFiles) -> list[FoundRouter]:
    """Return every Java router of this machine, the running ones first."""
    places: dict[Path, RouterProcess | None] = {}
    for process in machine.processes:
        if process.command.software == JAVA:
            places.setdefault(_directory_of(machine, process), process)
    for directory in (SYSTEM_DIRECTORY, *(home / each for home in machine.homes for each in _HOME_DIRECTORIES)):
        if machine.exists(directory / "router.config") or directory / "router.config" in machine.unread:
            places.setdefault(directory, None)
    return [_found(machine, directory, process) for directory, process in places.items()]


def _directory_of(machine: MachineFiles, process: RouterProcess) -> Path:
    chosen = process.command.options.get("i2p.dir.config")
    if chosen:
        return (process.directory or Path("/")) / chosen
    home = machine.home_of(process.user_id) or Path("/")
    return SYSTEM_DIRECTORY if home == SYSTEM_HOME else home / _HOME_DIRECTORIES[0]


def _found(machine: MachineFiles, directory: Path, process: RouterProcess | None) -> FoundRouter:
    properties = machine.decoded(directory / "router.config", read_java_properties)
    clients = [each for group in _of_both_forms(machine, directory, "clients", read_java_clients) for each in group]
    console = next((each for each in clients if each.main == CONSOLE_CLASS), None)
    port = (port_of(console.arguments[0]) if console and console.arguments else None) or _CONSOLE_PORT
    place = _JavaPlace(directory, process, f"http://{_LOOPBACK}:{port}")
    tunnels = [each for group in _of_both_forms(machine, directory, "i2ptunnel", read_java_tunnels) for each in group]
    return FoundRouter(
        software=Software.JAVA,
        directory=directory,
        configuration=directory / "router.config",
        process=process,
        i2cp=_i2cp(machine, place, properties),
        i2pcontrol=_i2pcontrol(machine, place, port),
        sam=_sam(machine, place, clients),
        tunnels=tuple(find_tunnel(machine, directory, each) for each in tunnels),
        requires_login=is_true((properties or {}).get("i2cp.auth", "")),
        restart=process.restart if process else "start the Java router",
    )


def _of_both_forms(
    machine: MachineFiles, directory: Path, name: str, decode: Callable[[bytes], Content]
) -> Iterator[Content]:
    """Yield the content of `NAME.config`, and of each file in `NAME.config.d`."""
    file = directory / f"{name}.config"
    for path in (file, *machine.names(directory / f"{name}.config.d", ".config")):
        found = machine.decoded(path, decode)
        if found is not None:
            yield found


def _service(
    machine: MachineFiles,
    place: _JavaPlace,
    name: str,
    link: Link,
    *,
    enabled: bool | None,
    action: str,
    encrypted: bool = False,
) -> Service:
    user_id = None if place.process is None else place.process.user_id
    if machine.listens(link.host, link.port, user_id):
        return Service(name, link, ServiceState.ON, is_encrypted=encrypted)
    if enabled is None:
        return Service(name, link, ServiceState.UNKNOWN, action, is_encrypted=encrypted)
    if enabled:
        wanted = place.process.restart if place.process else "start the Java router"
        return Service(name, link, ServiceState.NOT_LISTENING, wanted, is_encrypted=encrypted)
    return Service(name, link, ServiceState.OFF, action, is_encrypted=encrypted)


def _i2cp(machine: MachineFiles, place: _JavaPlace, properties: Mapping[str, str] | None) -> Service:
    known = properties or {}
    host = known.get("i2cp.hostname", _LOOPBACK)
    link = Link(
        _LOOPBACK if host in _ANY else numeric(host) or _LOOPBACK, port_of(known.get("i2cp.port", "")) or I2CP_PORT
    )
    enabled = None if properties is None else not is_true(known.get("i2cp.disableInterface", ""))
    action = f"on {place.console}/configi2cp choose “Enabled without SSL”, save, and restart the router"
    encrypted = is_true(known.get("i2cp.SSL", ""))
    found = _service(machine, place, "I2CP", link, enabled=enabled, action=action, encrypted=encrypted)
    if not encrypted:
        return found
    return replace(found, certificate=machine.read(place.directory / _CERTIFICATE))


def _i2pcontrol(machine: MachineFiles, place: _JavaPlace, console_port: int) -> Service:
    """Return I2PControl: the plugin on its own port, or the web application of the console."""
    plugin = Link(_LOOPBACK, I2PCONTROL_PORT)
    if machine.exists(place.directory / _PLUGIN):
        action = f"on {place.console}/configplugins start I2PControl"
        return _service(machine, place, "I2PControl", plugin, enabled=None, action=action, encrypted=True)
    webapps = machine.decoded(place.directory / "webapps.config", read_java_properties)
    enabled = None if webapps is None else is_true(webapps.get("webapps.jsonrpc.startOnLoad", ""))
    action = f"on {place.console}/configwebapps start “jsonrpc” (I2PControl), and let it run at startup"
    link = Link(_LOOPBACK, console_port)
    if enabled is False:
        # The console listens on this port in any case.
        return Service("I2PControl", link, ServiceState.OFF, action)
    return _service(machine, place, "I2PControl", link, enabled=enabled, action=action)


def _sam(machine: MachineFiles, place: _JavaPlace, clients: list[ClientApp]) -> Service:
    bridge = next((each for each in clients if each.main == SAM_CLASS), None)
    ports = [] if bridge is None else [port for each in bridge.arguments if (port := port_of(each)) is not None]
    link = Link(_LOOPBACK, ports[0] if ports else SAM_PORT)
    action = f"on {place.console}/configclients start “SAM application bridge”, and let it run at startup"
    enabled = None if bridge is None else bridge.is_started
    return _service(machine, place, "SAM", link, enabled=enabled, action=action)
