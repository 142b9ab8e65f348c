"""The Java I2P router with our driver `java/NetworkRouter.java`: one line for each request and each reply.

Java 2.7.0 does not build tunnels through routers older than 0.9.59, and does not send lease sets to older floodfills.
Debian's i2pd 2.45.1 has the version 0.9.57, so there must be a Java floodfill and another Java router.
"""

import re
import select
import socket
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bridge.wire.i2p.structures import base64_encode
from tests.end_to_end.farm import tail, wait_until
from tests.end_to_end.settings import free_port
from tests.interop.i2p.namespace import BRIDGE_CLASSES, CLASSES, JARS, program
from tests.interop.i2p.router import LOOPBACK, NETWORK_ID, Router
from tests.processes import child

START_S: Final = 90.0
REPLY_S: Final = 20.0
TUNNEL_S: Final = 180.0
LOOK_UP_S: Final = 20.0


class JavaBridge:
    """The SAM bridge of Java I2P at a router, while a block lasts. `make interop-i2p I2P_SOURCE=…` compiles it."""

    def __init__(self, router: Router, directory: Path) -> None:
        self._router = router
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> str:
        """Start it, and return its host and port when it accepts connections."""
        port = free_port(socket.SOCK_STREAM)
        classes = ":".join([str(BRIDGE_CLASSES), *sorted(map(str, JARS.glob("*.jar")))])
        host, _, i2cp_port = self._router.i2cp.rpartition(":")
        # Sessions use the arguments, look-ups of addresses the properties of the process.
        options = [f"i2cp.tcp.host={host}", f"i2cp.tcp.port={i2cp_port}"]
        arguments = [program("java"), "-Xmx96m", *(f"-D{each}" for each in options), "-cp", classes]
        arguments += ["net.i2p.sam.SAMBridge", "sam.keys", LOOPBACK, str(port), *options]
        log_file = self._directory / "bridge.log"
        log = self._stack.enter_context(log_file.open("w"))
        self._stack.enter_context(child(arguments, stdout=log, stderr=log, cwd=self._directory))
        wait_until(partial(_accepts, port), START_S, "the bridge accepts connections", lambda: tail(log_file))
        return f"{LOOPBACK}:{port}"

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port)).close()
    except OSError:
        return False
    return True


class JavaRouter(Router):
    """A Java router with I2CP; Maven does not offer its SAM, I2PControl and HTTP proxy."""

    software = "java"
    restarts_for_tunnel = False

    def __init__(self, number: int, name: str, directory: Path, *, is_floodfill: bool) -> None:
        super().__init__(number, name, directory, is_floodfill=is_floodfill)
        self._errors = directory / "errors"
        self._services: list[tuple[str, int]] = []
        # The router reads the id of its network only from this file.
        settings = {
            "i2np.allowLocal": "true",
            "i2np.ipv6": "false",
            "i2np.ntcp.autoip": "false",
            "i2np.ntcp.autoport": "false",
            "i2np.ntcp.hostname": self.address,
            "i2np.ntcp.port": str(23000 + number),
            "i2np.udp.enable": "false",
            "i2np.upnp.enable": "false",
            "router.floodfillParticipant": str(is_floodfill).lower(),
            "router.networkID": str(NETWORK_ID),
            "router.reseedDisable": "true",
        }
        (directory / "router.config").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def launch(self) -> None:
        """Start the process.

        A router that finds `router.ping` of a killed router waits a minute, because another router may run.
        """
        (self.directory / "router.ping").unlink(missing_ok=True)
        classes = ":".join([str(CLASSES), *sorted(map(str, JARS.glob("*.jar")))])
        options = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", classes]
        options += ["--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED", f"-Dnetwork.address={self.address}"]
        options += ["-Djava.nio.channels.spi.SelectorProvider=BoundChannels", "NetworkRouter"]
        port = self.i2cp.removeprefix(f"{LOOPBACK}:")
        ports = [str(self.directory), self.address, str(23000 + self.number), port]
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [program("java"), *options, *ports, str(self.is_floodfill).lower()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.directory,
            )

    def wait_started(self) -> None:
        """Return when I2CP accepts connections; make the tunnels of an earlier run."""
        first = self._line(START_S)
        assert first == "running", f"{self.name}: {first}\n{tail(self._errors)}"
        for name, port in self._services:
            self._request(TUNNEL_S, "tunnel", name, str(port))

    def learn(self, info: bytes, router_hash: bytes) -> None:
        """Add another router's description to the files and to the running router."""
        self._store_in_files(info, router_hash)
        file = self.directory / "learned.info"
        file.write_bytes(info)
        assert self._request(REPLY_S, "store", str(file)) == "stored"

    def tunnel(self, name: str, port: int) -> str:
        """Make a server tunnel with the streaming library."""
        destination = self._request(TUNNEL_S, "tunnel", name, str(port))
        self._services.append((name, port))
        return destination

    def remove_tunnels(self) -> None:
        super().remove_tunnels()
        self._services.clear()

    def is_ready(self) -> bool:
        """Return True if it has exploratory tunnels in both directions."""
        found = re.search(r"inbound=(\d+) outbound=(\d+)", self.state())
        return found is not None and int(found[1]) > 0 and int(found[2]) > 0

    def state(self) -> str:
        """Return one line about peers and tunnels."""
        return f"{self.name}: {self._request(REPLY_S, 'state')}"

    def stored(self, destination_hash: bytes) -> int:
        """Return the publication time of the stored lease set in seconds, or 0."""
        found = re.search(r"published=(\d+)", self.local(destination_hash))
        return int(found[1]) if found else 0

    def local(self, destination_hash: bytes) -> str:
        """Return the router's own entry: `absent`, or `type=… verifies=… published=… HEX`."""
        return self._request(REPLY_S, "local", base64_encode(destination_hash))

    def lookup(self, destination_hash: bytes) -> str:
        """Return the entry after a look-up in the network."""
        limit_ms = int(LOOK_UP_S * 1000)
        return self._request(LOOK_UP_S + REPLY_S, "look", base64_encode(destination_hash), str(limit_ms))

    def _request(self, timeout_s: float, *words: str) -> str:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words).encode() + b"\n")
        self.process.stdin.flush()
        reply = self._line(timeout_s)
        assert not reply.startswith("failed"), f"{self.name}: {' '.join(words)}: {reply}"
        return reply

    def _line(self, timeout_s: float) -> str:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        assert ready, f"{self.name} did not reply within {timeout_s:g} s\n{tail(self._errors)}"
        return self.process.stdout.readline().decode().strip()
