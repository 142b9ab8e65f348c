"""A machine below a directory, with the files of routers as Debian's packages and users keep them."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from bridge.node.detecting.machine import MachineFiles
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.key_file import sam_private_key
from bridge.wire.i2p.structures import Destination, base64_decode

USER_ID = 5_000
"""The user of the command."""
HOME = Path("/home/user")
I2PD_USER_ID = 109
I2PD_CONF = """\
## Configuration of Debian's package, shortened
[sam]
enabled = true
# port = 7656

[i2cp]
## Uncomment and set to 'true' to enable I2CP protocol
# enabled = false

[i2pcontrol]
# enabled = false
"""
I2PD_COMMAND = (
    "/usr/sbin/i2pd --conf=/etc/i2pd/i2pd.conf --tunconf=/etc/i2pd/tunnels.conf --tunnelsdir=/etc/i2pd/tunnels.conf.d"
    " --pidfile=/run/i2pd/i2pd.pid --daemon --service"
)
JAVA_COMMAND = "/usr/bin/java -Di2p.dir.base=/usr/share/i2p -Xmx128m net.i2p.router.RouterLaunch"
_TABLE_HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@dataclass
class RouterFiles:
    """The files below `root`, and the processes and ports in `/proc`."""

    root: Path
    ports: list[tuple[int, int]] = field(default_factory=list)
    """Ports that listen on loopback, each with the user of its process."""
    user_id: int = USER_ID
    home_variable: Path | None = None

    def machine(self) -> MachineFiles:
        """Return the machine as the command reads it."""
        rows = [
            f"   {number}: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {user} 0 1\n"
            for number, (port, user) in enumerate(self.ports)
        ]
        self.write("/proc/net/tcp", _TABLE_HEAD + "".join(rows))
        homes = {USER_ID: HOME, I2PD_USER_ID: Path("/var/lib/i2pd"), os.geteuid(): HOME}
        return MachineFiles(self.root, self.user_id, None, homes.get, self.home_variable)

    def path(self, name: str) -> Path:
        """Return the place of a file of this machine."""
        return self.root / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_text(text)

    def key(self, name: str) -> Destination:
        """Write a private key file as a router does, and return its destination."""
        key = new_master_key()
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(base64_decode(sam_private_key(key)))
        return key.destination

    def run(self, pid: int, command: str, unit: str | None = None) -> None:
        """Add a process of the user of these tests."""
        self.write(f"/proc/{pid}/cmdline", "\0".join(command.split(" ")) + "\0")
        group = f"/system.slice/{unit}" if unit else "/user.slice/session-1.scope"
        self.write(f"/proc/{pid}/cgroup", f"0::{group}\n")

    def debian_i2pd(self, conf: str = I2PD_CONF, *tunnels: tuple[str, str]) -> None:
        """Write the files of Debian's i2pd, and one tunnel for each pair of a name and further lines."""
        self.write("/etc/i2pd/i2pd.conf", conf)
        sections = (f"[{name}]\ntype = http\nhost = 127.0.0.1\nkeys = {name}.dat\n{more}\n" for name, more in tunnels)
        self.write("/etc/i2pd/tunnels.conf", "".join(sections))

    def java(self, directory: str, *, i2cp_port: int = 7654, console_port: int = 7657) -> None:
        """Write the files of a Java router, with SAM off and I2PControl on."""
        self.write(f"{directory}/router.config", f"# NOTE: UTF-8\ni2cp.port={i2cp_port}\nrouter.version=2.7.0\n")
        app = "clientApp.0."
        self.write(
            f"{directory}/clients.config.d/00-net.i2p.router.web.RouterConsoleRunner-clients.config",
            f"{app}args={console_port} ::1,127.0.0.1 ./webapps/\n{app}main=net.i2p.router.web.RouterConsoleRunner\n",
        )
        self.write(
            f"{directory}/clients.config.d/01-net.i2p.sam.SAMBridge-clients.config",
            f"{app}args=sam.keys 127.0.0.1 7656\n{app}main=net.i2p.sam.SAMBridge\n{app}startOnLoad=false\n",
        )
        self.write(f"{directory}/webapps.config", "webapps.jsonrpc.startOnLoad=true\n")
