"""One router of the closed network, i2pd or Java: its ports, its process and its files.

All ports are on loopback. Kinds of routers differ in their services: Maven does not offer SAM, I2PControl and the HTTP
proxy of Java I2P. A router keeps its directory, and therefore its identity, its tunnels' keys and its network database,
from `kill` to `start`.
"""

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from bridge.sam.connection import SamBridge
from bridge.wire.i2p.structures import base64_encode
from tests.processes import END_S

LOOPBACK: Final = "127.0.0.1"
ITOOPIE: Final = "itoopie"
"""The password of I2PControl of every i2pd."""
NETWORK_ID: Final = 77


class Router(ABC):
    """A router that is not running until `start`."""

    software: str
    """The value for a node's setting `router.software`."""
    restarts_for_tunnel: bool
    """True if a new tunnel restarts the router, with all its tunnels."""
    sam: str | None = None
    """Host and port of the SAM bridge."""
    i2pcontrol: str | None = None
    """The URL of I2PControl."""
    http_proxy: str | None = None
    """Host and port of the HTTP proxy."""

    def __init__(self, number: int, name: str, directory: Path, *, is_floodfill: bool) -> None:
        self.number = number
        self.name = name
        self.directory = directory
        self.is_floodfill = is_floodfill
        self.address = f"45.{100 + number}.0.1"
        self.i2cp = f"{LOOPBACK}:{7400 + number}"
        self.process: subprocess.Popen[bytes] | None = None
        self.tunnels: set[bytes] = set()
        """The hashes of its tunnels' destinations."""
        directory.mkdir(parents=True)

    @property
    def sam_bridge(self) -> SamBridge | None:
        """The SAM bridge; None without one."""
        return None if self.sam is None else SamBridge(LOOPBACK, int(self.sam.rpartition(":")[2]))

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def info_file(self) -> Path:
        """The file with the router's own signed description."""
        return self.directory / "router.info"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _store_in_files(self, info: bytes, router_hash: bytes) -> None:
        name = base64_encode(router_hash)
        shelf = self.directory / "netDb" / f"r{name[0]}"
        shelf.mkdir(parents=True, exist_ok=True)
        (shelf / f"routerInfo-{name}.dat").write_bytes(info)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(END_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def start(self) -> None:
        """Start the process, and return when it accepts connections of clients."""
        self.launch()
        self.wait_started()

    @abstractmethod
    def launch(self) -> None:
        """Start the process."""

    @abstractmethod
    def wait_started(self) -> None:
        """Return when the process accepts connections of clients."""

    @abstractmethod
    def learn(self, info: bytes, router_hash: bytes) -> None:
        """Add another router's description to the network database; i2pd reads it at its next start."""

    @abstractmethod
    def tunnel(self, name: str, port: int) -> str:
        """Make a server tunnel to a port on loopback; return the base64 of its destination. A restart keeps it."""

    def remove_tunnels(self) -> None:
        """Remove the tunnels of a story from the next start; i2pd often publishes only some of many tunnels."""
        self.tunnels.clear()

    @abstractmethod
    def is_ready(self) -> bool:
        """Return True if the router builds tunnels in both directions."""

    @abstractmethod
    def state(self) -> str:
        """Return one line about peers and tunnels."""

    @abstractmethod
    def stored(self, destination_hash: bytes) -> int:
        """Return a number that grows with each newer lease set of a hash at this router; 0 if it is absent."""
