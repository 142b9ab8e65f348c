"""i2pd on this machine: a running process, the files of Debian's package, and `.i2pd` in home directories.

    process ─▶ --conf, --datadir, --service, its user ─▶ i2pd.conf, directory of keys
    options of the command line, then i2pd.conf, then i2pd's defaults ─▶ I2CP, I2PControl, SAM
    tunnels.conf, tunnels.d/*.conf ─▶ server tunnels

A relative path is relative to the working directory of the process. To switch a service on, the operator sets its
option `enabled` to true, on the command line or in `i2pd.conf`. If the option is missing in both, the operator adds a
section to the end of `i2pd.conf`; a section may occur twice.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.node.detecting.found import (
    DEFAULT_PASSWORD,
    FoundRouter,
    FoundTunnel,
    Service,
    ServiceState,
    find_tunnel,
)
from bridge.node.detecting.machine import MachineFiles, RouterProcess
from bridge.node.router.link import I2CP_PORT, I2PCONTROL_PORT, Link, Software
from bridge.sam.connection import SAM_PORT
from bridge.wire.routers.i2pd_files import Option, read_i2pd_conf, read_i2pd_tunnels
from bridge.wire.routers.process_files import I2PD
from bridge.wire.routers.text_file import port_of
from gossip.node import numeric

SYSTEM_DIRECTORY: Final = Path("/var/lib/i2pd")
SYSTEM_CONFIGURATION: Final = Path("/etc/i2pd/i2pd.conf")
_SYSTEM_TUNNELS: Final = ("/etc/i2pd/tunnels.conf", "/etc/i2pd/tunnels.conf.d")
_NAMES: Final = {"i2cp": "I2CP", "i2pcontrol": "I2PControl", "sam": "SAM"}
_PORTS: Final = {"i2cp": I2CP_PORT, "i2pcontrol": I2PCONTROL_PORT, "sam": SAM_PORT}
_ON_BY_DEFAULT: Final = frozenset({"sam"})
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - replaced, never bound
_LOOPBACK: Final = "127.0.0.1"


class _I2pdPlace(Struct, frozen=True):
    """One installation: its files, and its process if it runs."""

    directory: Path
    configuration: Path
    options: Mapping[str, str]
    """The options of the command line."""
    process: RouterProcess | None = None


def find_i2pd(machine: MachineFiles) -> list[FoundRouter]:
    """Return every i2pd of this machine, the running ones first."""
    places: dict[Path, _I2pdPlace] = {}
    for process in machine.processes:
        if process.command.software == I2PD:
            place = _of_process(machine, process)
            places.setdefault(place.directory, place)
    tunnels, more = _SYSTEM_TUNNELS
    if machine.exists(SYSTEM_CONFIGURATION):
        options = {"tunconf": tunnels, "tunnelsdir": more}
        places.setdefault(SYSTEM_DIRECTORY, _I2pdPlace(SYSTEM_DIRECTORY, SYSTEM_CONFIGURATION, options))
    for home in machine.homes:
        directory = home / ".i2pd"
        if machine.exists(directory):
            places.setdefault(directory, _I2pdPlace(directory, directory / "i2pd.conf", {}))
    return [_found(machine, each) for each in places.values()]


def _of_process(machine: MachineFiles, process: RouterProcess) -> _I2pdPlace:
    options = process.command.options
    base = process.directory or Path("/")
    if "datadir" in options:
        directory = base / options["datadir"]
    elif "service" in options:
        directory = SYSTEM_DIRECTORY
    else:
        directory = (machine.home_of(process.user_id) or Path("/tmp")) / ".i2pd"  # noqa: S108 - i2pd's own default
    configuration = base / options["conf"] if options.get("conf") else directory / "i2pd.conf"
    return _I2pdPlace(directory, configuration, options, process)


def _found(machine: MachineFiles, place: _I2pdPlace) -> FoundRouter:
    conf = _read_conf(machine, place.configuration)
    given = {name: Option(value, 0) for name, value in place.options.items()}
    options = None if conf is None else {**conf, **given}
    services = {name: _service(machine, place, name, options, given) for name in _PORTS}
    password = None if options is None else options.get("i2pcontrol.password", Option(DEFAULT_PASSWORD, 0)).value
    return FoundRouter(
        software=Software.I2PD,
        directory=place.directory,
        configuration=place.configuration,
        process=place.process,
        i2cp=services["i2cp"],
        i2pcontrol=services["i2pcontrol"],
        sam=services["sam"],
        tunnels=_tunnels(machine, place, options or given),
        password=password,
        restart=place.process.restart if place.process else "start i2pd",
    )


def _read_conf(machine: MachineFiles, path: Path) -> dict[str, Option] | None:
    """Return the options of `i2pd.conf`; empty if it does not exist, None if it is not readable."""
    found = machine.decoded(path, read_i2pd_conf)
    return {} if found is None and path not in machine.unread else found


def _service(
    machine: MachineFiles,
    place: _I2pdPlace,
    name: str,
    options: Mapping[str, Option] | None,
    given: Mapping[str, Option],
) -> Service:
    known = given if options is None else options
    address = known.get(f"{name}.address", Option(_LOOPBACK, 0)).value
    host = numeric(_ANY.get(address, address)) or _LOOPBACK
    port = port_of(known.get(f"{name}.port", Option("", 0)).value) or _PORTS[name]
    link = Link(host, port)
    switch = known.get(f"{name}.enabled")
    enabled = name in _ON_BY_DEFAULT if switch is None else switch.flag is True
    user_id = None if place.process is None else place.process.user_id
    title, encrypted = _NAMES[name], name == "i2pcontrol"
    if machine.listens(host, port, user_id) and (enabled or options is None or place.process is not None):
        return Service(title, link, ServiceState.ON, is_encrypted=encrypted)
    if options is None:
        return Service(title, link, ServiceState.UNKNOWN, is_encrypted=encrypted)
    if enabled:
        action = place.process.restart if place.process else "start i2pd"
        return Service(title, link, ServiceState.NOT_LISTENING, action, is_encrypted=encrypted)
    action, lines = _switch_on(place, name, switch)
    line = 0 if switch is None else switch.line
    return Service(title, link, ServiceState.OFF, action, lines, line, is_encrypted=encrypted)


def _switch_on(place: _I2pdPlace, name: str, switch: Option | None) -> tuple[str, tuple[str, ...]]:
    """Return the instruction that switches a service on, and the lines to add to `i2pd.conf`, if any."""
    if switch is not None and switch.line:
        file = shlex.quote(str(place.configuration))
        return f"run `sudo sed -i '{switch.line}s/=.*/= true/' {file}`", ()
    if switch is not None:
        return f"set --{name}.enabled=true on the command line of i2pd", ()
    return f"add these lines to {place.configuration}:", (f"[{name}]", "enabled = true")


def _tunnels(machine: MachineFiles, place: _I2pdPlace, options: Mapping[str, Option]) -> tuple[FoundTunnel, ...]:
    base = (place.process.directory if place.process else None) or Path("/")

    def chosen(name: str, usual: str) -> Path:
        text = options.get(name, Option("", 0)).value
        return base / text if text else place.directory / usual

    paths = [chosen("tunconf", "tunnels.conf"), *machine.names(chosen("tunnelsdir", "tunnels.d"), ".conf")]
    found = (each for path in paths for each in machine.decoded(path, read_i2pd_tunnels) or ())
    return tuple(find_tunnel(machine, place.directory, each) for each in found)
