"""A found router: its process, its three services, and its server tunnels with their destinations.

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
"""The password of I2PControl until its operator sets another."""


class ServiceState(Enum):
    """The state of one service of a router."""

    ON = "on"
    """Its port listens."""
    OFF = "off"
    """The configuration switches it off."""
    NOT_LISTENING = "not listening"
    """The configuration switches it on, and its port does not listen."""
    UNKNOWN = "unknown"
    """The port does not listen, and the configuration is not readable or does not show if the service is on."""


@dataclass(frozen=True, slots=True)
class Service:
    """I2CP, I2PControl or SAM of a router."""

    name: str
    link: Link
    state: ServiceState
    action: str = ""
    """The way to switch it on, as text; empty if it is on."""
    lines: tuple[str, ...] = ()
    """The lines that the action adds to the configuration of the router."""
    line: int = 0
    """The number of the line that switches it off in the configuration; 0 without one."""
    is_encrypted: bool = False
    certificate: bytes | None = None
    """The certificate of an encrypted I2CP, in PEM; None if it is not readable."""

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
    """Its main configuration file."""
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
    """The command that starts it again, as text."""

    @property
    def services(self) -> tuple[Service, Service, Service]:
        """All services."""
        return self.i2cp, self.i2pcontrol, self.sam


class Detection(Struct, frozen=True):
    """All routers of this machine, the most useful first, and the files that were not readable."""

    routers: tuple[FoundRouter, ...]
    unread: tuple[Unread, ...]


def find_tunnel(machine: MachineFiles, directory: Path, tunnel: ServerTunnel) -> FoundTunnel:
    """Return a tunnel with the destination in its key file, which lies below the router's directory."""
    if tunnel.problem:
        return FoundTunnel(tunnel, None, tunnel.problem)
    # i2pd prefixes each name with its directory, even an absolute path.
    path = directory / tunnel.key_file.lstrip("/")
    if tunnel.key_file.startswith("/") and not machine.exists(path):
        path = Path(tunnel.key_file)
    try:
        head = machine.read_head(path, DESTINATION_HEAD_BYTES)
        if head is None:
            unread = machine.unread.get(path)
            reason = unread.reason if unread else "it does not exist; the router makes it at its start"
            return FoundTunnel(tunnel, None, f"{path}: {reason}")
        content = machine.read_head(path, destination_length(head)) or b""
        destination, _ = read_destination(content)
    except I2pError as error:
        return FoundTunnel(tunnel, None, f"{path} is not a private key file: {error}")
    return FoundTunnel(tunnel, destination)
