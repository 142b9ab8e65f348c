"""i2pd from Debian's package, unpacked in `build/interop-i2p`: its configuration, server tunnels, I2PControl and log.

i2pd drops peers in reserved ranges, so each router has an address outside them. Tunnels have one hop. Without the
encryption type 4, i2pd 2.45.1 makes lease sets that it cannot look up itself if it is a floodfill.
"""

import http.client
import json
import os
import re
import ssl
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bridge.wire.i2p.structures import address_of, base64_encode, read_destination
from consensus.net.x509_files import new_certificate
from tests.end_to_end.farm import tail, wait_until
from tests.interop.i2p.namespace import I2PD, library_path
from tests.interop.i2p.router import ITOOPIE, LOOPBACK, NETWORK_ID, Router

START_S: Final = 60.0
READY_PERCENT: Final = 50
_REQUEST_S: Final = 10.0
_TUNNEL_OPTIONS: Final = """\
inbound.length = 1
outbound.length = 1
inbound.quantity = 2
outbound.quantity = 2
i2cp.leaseSetEncType = 4
"""
_CERTIFICATE: Final = new_certificate()
"""The certificate of I2PControl and its key."""


class I2pdRouter(Router):
    """An i2pd with SAM, I2CP, I2PControl and an HTTP proxy."""

    software = "i2pd"
    restarts_for_tunnel = True

    def __init__(self, number: int, name: str, directory: Path, *, is_floodfill: bool) -> None:
        super().__init__(number, name, directory, is_floodfill=is_floodfill)
        self.sam = f"{LOOPBACK}:{7600 + number}"
        self.i2pcontrol = f"https://{LOOPBACK}:{7700 + number}"
        self.http_proxy = f"{LOOPBACK}:{4400 + number}"
        self._log = directory / "log"
        (directory / "certs").mkdir()
        self._sections = directory / "tunnels.conf"
        self._sections.touch()
        (directory / "i2pd.conf").write_text(self._configuration())
        for kind in ("crt", "key"):  # otherwise sixteen i2pd generate RSA keys at the same time, for a minute
            (directory / f"i2pcontrol.{kind}.pem").write_bytes(_CERTIFICATE)

    def _configuration(self) -> str:
        number = self.number
        return f"""\
host = {self.address}
address4 = {self.address}
port = {20000 + number}
nat = false
ipv4 = true
ipv6 = false
reservedrange = false
netid = {NETWORK_ID}
bandwidth = X
log = file
logfile = {self._log}
loglevel = info
floodfill = {str(self.is_floodfill).lower()}
[reseed]
threshold = 0
urls =
yggurls =
[nettime]
enabled = false
[http]
enabled = false
[httpproxy]
enabled = true
port = {4400 + number}
{_TUNNEL_OPTIONS}[socksproxy]
enabled = false
[sam]
enabled = true
port = {7600 + number}
[i2cp]
enabled = true
port = {7400 + number}
[bob]
enabled = false
[i2pcontrol]
enabled = true
port = {7700 + number}
password = {ITOOPIE}
[upnp]
enabled = false
[ntcp2]
enabled = true
published = true
port = {22000 + number}
[ssu2]
enabled = true
published = true
port = {21000 + number}
mtu4 = 1500
[exploratory]
inbound.length = 1
outbound.length = 1
inbound.quantity = 3
outbound.quantity = 3
"""

    def launch(self) -> None:
        at = self.directory
        command = [str(I2PD), f"--datadir={at}", f"--certsdir={at}/certs", f"--conf={at}/i2pd.conf"]
        command += [f"--tunconf={self._sections}", f"--tunnelsdir={at}/tunnels.d", f"--pidfile={at}/pid"]
        with (at / "output").open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "LD_LIBRARY_PATH": library_path(), "HOME": str(at)},
                cwd=at,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait_started(self) -> None:
        """Return when I2PControl replies: i2pd opens it last."""
        wait_until(self._facts, START_S, f"{self.name} replies", lambda: tail(self._log))

    def learn(self, info: bytes, router_hash: bytes) -> None:
        """Add another router's description; i2pd reads it at its next start."""
        self._store_in_files(info, router_hash)

    def tunnel(self, name: str, port: int) -> str:
        """Add a section to `tunnels.conf`, restart, and return the base64 of the destination that i2pd makes.

        A reload with SIGHUP would add the tunnel too, but i2pd then refuses all streams to its earlier tunnels.
        """
        keys = self.directory / f"{name}.dat"
        with self._sections.open("a") as sections:
            sections.write(
                f"[{name}]\ntype = server\nhost = {LOOPBACK}\nport = {port}\nkeys = {keys.name}\n{_TUNNEL_OPTIONS}"
            )
        self.kill()
        self.start()
        wait_until(keys.is_file, START_S, f"{self.name} makes the tunnel {name}", lambda: tail(self._log))
        _, end = read_destination(keys.read_bytes())
        return base64_encode(keys.read_bytes()[:end])

    def remove_tunnels(self) -> None:
        super().remove_tunnels()
        self._sections.write_text("")

    def is_ready(self) -> bool:
        """Return True if most of its attempts to build tunnels succeeded."""
        facts = self._facts()
        return facts is not None and facts["i2p.router.net.tunnels.successrate"] >= READY_PERCENT

    def state(self) -> str:
        """Return one line about peers and tunnels."""
        names = ("netdb.knownpeers", "netdb.activepeers", "net.tunnels.participating", "net.tunnels.successrate")
        facts = self._facts() or {}
        return f"{self.name}: " + ", ".join(f"{name} {facts.get(f'i2p.router.{name}')}" for name in names)

    def stored(self, destination_hash: bytes) -> int:
        """Return how often the log reports a newer lease set of a destination's hash."""
        return len(re.findall(f"NetDb: LeaseSet2 updated: {address_of(destination_hash)[:52]}", self._log.read_text()))

    def _facts(self) -> dict[str, Any] | None:
        """Return the figures of I2PControl, or None if it does not reply."""
        names = ("uptime", "netdb.knownpeers", "netdb.activepeers", "net.tunnels.participating")
        wanted = dict.fromkeys((f"i2p.router.{name}" for name in (*names, "net.tunnels.successrate")), "")
        try:
            token = self._call("Authenticate", API=1, Password=ITOOPIE)["Token"]
            return self._call("RouterInfo", Token=token, **wanted)
        except (OSError, KeyError, http.client.HTTPException):
            return None

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        body = json.dumps({"jsonrpc": "2.0", "id": "1", "method": method, "params": parameters})
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(LOOPBACK, 7700 + self.number, timeout=_REQUEST_S, context=unverified)
        with closing(connection):
            connection.request("POST", "/", body, {"Content-Type": "application/json"})
            result: dict[str, Any] = json.loads(connection.getresponse().read())["result"]
        return result
