"""The routers found on this machine: process, three services, and server tunnels with their destinations.

A tunnel's destination is the beginning of its private key file. Only these bytes are read, so the private keys never
enter this process.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from bridge.node.detecting.machine import MachineFiles, RouterProcess, Unread
from bridge.node.router.link import Link, Software
from bridge.wire.i2p.structures import (
    DESTINATION_HEAD_BYTES,
    Destination,
    I2pError,
    destination_length,
    read_destination,
)
from bridge.wire.routers.text_file import ServerTunnel

DEFAULT_PASSWORD: Final = "itoopie"  # noqa: S105 - published
"""The password of I2PControl until the router's operator sets another."""


class ServiceState(Enum):
    """The state of one service of a router."""

    ON = "on"
    """The port of the service listens."""
    OFF = "off"
    """The configuration disables it."""
    NOT_LISTENING = "not listening"
    """The configuration enables it, but its port does not listen."""
    UNKNOWN = "unknown"
    """The port does not listen, and the configuration is not readable or does not show whether the service is on."""


@dataclass(frozen=True, slots=True)
class Service:
    """I2CP, I2PControl or SAM of a router."""

    name: str
    link: Link
    state: ServiceState
    action: str = ""
    """Instruction for the operator to start it; empty if it is on, or if none is known."""
    lines: tuple[str, ...] = ()
    """The lines to add to the router's configuration."""
    line: int = 0
    """The number of the line that disables it in the configuration; 0 without one."""
    is_encrypted: bool = False
    certificate: bytes | None = None
    """The certificate of an encrypted I2CP port, in PEM; None if it is not readable."""

    @property
    def is_on(self) -> bool:
        """True if it listens."""
        return self.state is ServiceState.ON


class FoundTunnel(Struct, frozen=True):
    """A server tunnel, with its destination if its key file is readable."""

    tunnel: ServerTunnel
    destination: Destination | None
    problem: str = ""
    """Reason why it cannot be a leaf; empty if it can."""

    @property
    def is_usable(self) -> bool:
        """True if it can be a leaf."""
        return self.destination is not None and not self.problem


@dataclass(frozen=True, slots=True)
class FoundRouter:
    """One router of this machine."""

    software: Software
    directory: Path
    """The directory of its keys."""
    configuration: Path
    """Main configuration file of the router."""
    process: RouterProcess | None
    i2cp: Service
    i2pcontrol: Service
    sam: Service
    tunnels: tuple[FoundTunnel, ...]
    requires_login: bool = False
    """True if its I2CP requires a user and a password."""
    password: str | None = field(default=None, repr=False)
    """The password of I2PControl; None if the configuration does not contain it."""
    restart: str = ""
    """Instruction for the operator to restart or start it."""

    @property
    def services(self) -> tuple[Service, Service, Service]:
        """All services."""
        return self.i2cp, self.i2pcontrol, self.sam


class Detection(Struct, frozen=True):
    """All routers of this machine, the most useful first, and the files that were not readable."""

    routers: tuple[FoundRouter, ...]
    unread: tuple[Unread, ...]


def find_tunnel(machine: MachineFiles, directory: Path, tunnel: ServerTunnel) -> FoundTunnel:
    """Return a tunnel with the destination in its key file: below the router's directory, or at an absolute path."""
    if tunnel.problem:
        return FoundTunnel(tunnel, None, tunnel.problem)
    # i2pd looks for each name below its directory, even for an absolute path.
    path = directory / tunnel.key_file.lstrip("/")
    if tunnel.key_file.startswith("/") and not machine.exists(path):
        path = Path(tunnel.key_file)
    try:
        head = machine.read_head(path, DESTINATION_HEAD_BYTES)
        if head is None:
            unread = machine.unread.get(path)
            reason = unread.reason if unread else "it does not exist; the router creates it when it starts"
            return FoundTunnel(tunnel, None, f"{path}: {reason}")
        content = machine.read_head(path, destination_length(head)) or b""
        destination, _ = read_destination(content)
    except I2pError as error:
        return FoundTunnel(tunnel, None, f"{path} is not a private key file: {error}")
    return FoundTunnel(tunnel, destination)
