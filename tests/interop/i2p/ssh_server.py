"""An OpenSSH server on loopback from Debian's package, unpacked in `build/interop-i2p`, and the command of its client.

sshd needs the user `sshd` and the directory /run/sshd. They exist only in a mount namespace of the process.
"""

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.end_to_end.farm import tail, wait_until
from tests.end_to_end.settings import free_port
from tests.interop.i2p.namespace import SSHD, library_path, with_files
from tests.interop.i2p.router import LOOPBACK
from tests.processes import child

START_S: Final = 30.0
_HOST: Final = "farm"
_PROGRAMS: Final = SSHD.parents[1] / "bin"
_USERS: Final = "root:x:0:0::/root:/bin/sh\nsshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"


@dataclass(frozen=True)
class SshServer:
    """A running server and the keys of its user."""

    directory: Path
    port: int

    def client(self, proxy: Sequence[str], remote: str) -> list[str]:
        """Return the command of a client that runs a command on the server through a proxy command."""
        options = {
            "ProxyCommand": shlex.join(proxy),
            "IdentityFile": self.directory / "user",
            "UserKnownHostsFile": self.directory / "known_hosts",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
        }
        pairs = [text for key, value in options.items() for text in ("-o", f"{key}={value}")]
        return [str(_PROGRAMS / "ssh"), "-F", "/dev/null", *pairs, f"root@{_HOST}", remote]


@contextmanager
def ssh_server(directory: Path) -> Iterator[SshServer]:
    """Run a server within the block; root logs in with a key."""
    port = free_port(socket.SOCK_STREAM)
    for name in ("host", "user"):
        keygen = [str(_PROGRAMS / "ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(keygen, check=True, timeout=START_S)
    (directory / "known_hosts").write_text(f"{_HOST} {(directory / 'host.pub').read_text()}")
    (directory / "passwd").write_text(_USERS)
    (directory / "shadow").write_text("root:*:1::::::\nsshd:*:1::::::\n")
    (directory / "sshd_config").write_text(
        f"""
ListenAddress {LOOPBACK}:{port}
HostKey {directory / "host"}
AuthorizedKeysFile {directory / "user.pub"}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
"""
    )
    log_file = directory / "sshd.log"
    command = [str(SSHD), "-D", "-e", "-f", str(directory / "sshd_config")]
    files = {"/etc/passwd": directory / "passwd", "/etc/shadow": directory / "shadow"}
    environment = {**os.environ, "LD_LIBRARY_PATH": library_path()}
    with (
        log_file.open("w") as log,
        child(with_files(files, "/run/sshd", command), stdout=log, stderr=log, env=environment),
    ):
        wait_until(lambda: "Server listening" in tail(log_file), START_S, "sshd listens", lambda: tail(log_file))
        yield SshServer(directory, port)
