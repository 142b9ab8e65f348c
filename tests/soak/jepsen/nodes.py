"""The five nodes: their files, their processes with faulty disks and clocks, and the restart of ended processes.

    configuration ─▶ nsenter NAMESPACE garlicfarm run   LD_PRELOAD = the shim of disk and clock
                        │ ends ─▶ after a second it starts again, unless a fault has stopped it (a supervisor's work)
                        └ each end is a line of the story; an end without a disk fault is a finding

The log of a process is outside of its data directory, so the shim does not count it.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.security.key_files import save_curve_key, save_farm_key, save_master_key, save_signing_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.curve_key import CurveKey, new_curve_key, to_z85
from bridge.wire.keys.farm_key import new_farm_key
from tests.destinations import new_demo_leaf
from tests.node.certificates import self_signed
from tests.soak.jepsen.disk import FaultyDisk
from tests.soak.jepsen.network import address, inside
from tests.soak.jepsen.schedule import NODES
from tests.structure.sources import ROOT

GOSSIP_PORT, RAFT_PORT, ZMQ_PORT, KAFKA_PORT = 7668, 7669, 7670, 9092
IDENT: Final = "jepsen"
TOPIC: Final = "farm-log"
USER: Final = "jepsen"
REPORTING_PERIOD_MS: Final = 5_000
RESTART_S: Final = 1.0
STOP_S: Final = 20.0
STATUS_S: Final = 60.0
"""Time limit of `garlicfarm status`, which starts an interpreter on a busy machine."""
AFTER_DISK_FAULT_S: Final = 60.0
"""A process may end because of a disk fault up to this time after it: it reports the failed sync late."""
_TAIL_BYTES: Final = 3_000
_PROGRAM_FAULTS: Final = (" error   ", "Traceback (most recent", "fault of the program")


@dataclass(frozen=True, slots=True)
class Access:
    """Keys and passwords of the clients."""

    curve: CurveKey
    endpoint: CurveKey
    """Key of all ØMQ endpoints."""
    password: str
    certificate: Path


def prepare(directory: Path) -> Access:
    """Write the files of five nodes of a new farm; return the access of clients."""
    save_farm_key(directory / "farm.key", new_farm_key(NODES))
    master = new_master_key(demo=True)
    curve, endpoint_key = new_curve_key("jepsen"), new_curve_key("endpoint")
    certificate = self_signed(directory, days=(-30, 3650)).path
    (directory / "keys").write_text(f"jepsen {to_z85(curve.public)} submit\n", encoding="ascii")
    user = ("kafka-user", directory / "password", "--name", USER, "--scope", "submit")
    made = subprocess.run(
        [sys.executable, "-m", "bridge.cli.main", "keys", *user],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (directory / "users").write_text(made.stdout, encoding="ascii")
    for name in ("keys", "users"):
        (directory / name).chmod(0o600)
    numbers = range(1, NODES + 1)
    for number in numbers:
        data = directory / f"node-{number}"
        data.mkdir(mode=0o700)
        save_curve_key(data / "zmq.key", endpoint_key)
        save_signing_key(data / "signing.key", master.as_signing_key())
        save_master_key(data / "master.key", master)
        others = [other for other in numbers if other != number]
        (directory / f"node-{number}.toml").write_text(_configuration(directory, number, others, certificate))
    password = (directory / "password").read_text(encoding="ascii").strip()
    return Access(curve, endpoint_key, password, certificate)


def _configuration(directory: Path, number: int, others: list[int], certificate: Path) -> str:
    here, data = address(number), directory / f"node-{number}"
    return f"""
name = "node-{number}"
state_dir = "{data}"
farm_key = "{directory / "farm.key"}"
demo = true
[gossip]
bind = "{here}:{GOSSIP_PORT}"
seeds = {[f"{address(other)}:{GOSSIP_PORT}" for other in others]}
broadcast = "off"
[consensus]
bind = "{here}:{RAFT_PORT}"
segment_bytes = 1048576
grace_ms = 604800000
[publishing]
pace = "reporting-period"
reporting_period_ms = {REPORTING_PERIOD_MS}
signing_key = "{data / "signing.key"}"
[[leaf]]
destination = "{new_demo_leaf().base64}"
[zmq]
listen = "tcp://{here}:{ZMQ_PORT}"
broadcast = "tcp://{here}:{ZMQ_PORT + 1}"
ident = "{IDENT}"
allow_network = true
write = true
keys = "{directory / "keys"}"
peers = {[f"tcp://{address(other)}:{ZMQ_PORT}" for other in others]}
[kafka]
listen = "{here}:{KAFKA_PORT}"
groups = true
allow_network = true
write = true
users = "{directory / "users"}"
certificate = "{certificate}"
peers = {[f"node-{other}@{address(other)}:{KAFKA_PORT}" for other in others]}
"""


class NodeProcess:
    """One node: its data, its process, its clock and its disk."""

    def __init__(self, directory: Path, number: int, library: Path) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.data = directory / self.name
        self.socket = self.data / SOCKET_NAME
        self.log_file = directory / f"{self.name}.log"
        self.disk = FaultyDisk(library, directory / f"shim-{number}", self.data)
        self.process: subprocess.Popen[bytes] | None = None
        self.is_wanted = False
        self.is_paused = False
        self.disk_fault_s = -AFTER_DISK_FAULT_S
        """Time of the last change of the disk's faults, by the monotonic clock."""
        self._configuration = directory / f"{self.name}.toml"

    def start(self) -> None:
        assert self.process is None or self.process.poll() is not None
        self.is_paused = False
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", **self.disk.environment}
        preloaded = environment.pop("LD_PRELOAD")
        program = [
            sys.executable,
            "-m",
            "bridge.cli.main",
            "run",
            "--config",
            str(self._configuration),
            "--stop-with-stdin",
        ]
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                # The programs that start Python run without the libraries.
                [*inside(self.number), "env", f"LD_PRELOAD={preloaded}", *program],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        # Set only now, because otherwise the supervisor would report the end of the former process.
        self.is_wanted = True

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def pause(self, *, paused: bool) -> None:
        """Send SIGSTOP or SIGCONT."""
        if self.is_running and self.process is not None:
            self.process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)
        self.is_paused = paused

    def kill(self) -> None:
        """Send SIGKILL; the process starts again only by `start`."""
        self.is_wanted = False
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_S)
            self._close()

    def terminate(self) -> int:
        """Send SIGTERM; return the exit code, or -9 if the process had to be killed."""
        self.is_wanted = False
        if self.process is None:
            return 0
        self.process.terminate()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(STOP_S)
        finally:
            self._close()

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def cut_power(self, random: Random) -> str:
        """Kill the process and lose unsynced changes: all of them, or only the last changes of each file."""
        self.kill()
        keeps_some = random.random() < 1 / 2
        undone = self.disk.cut_power((lambda count: random.randint(0, count)) if keeps_some else (lambda _: 0))
        return ", ".join(f"{count} {kind}" for kind, count in sorted(undone.items())) or "nothing"

    def tail(self) -> str:
        return self.log_file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace") if self.log_file.exists() else ""

    def program_faults(self) -> list[str]:
        """Return the lines of its log about faults of the program."""
        lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line for line in lines if any(word in line for word in _PROGRAM_FAULTS)]

    def status(self, timeout_s: float = STATUS_S) -> tuple[int, dict[str, Any]]:
        """Run `garlicfarm status --json`; return its exit code and document."""
        command = [sys.executable, "-m", "bridge.cli.main", "status", "--json", "--node", str(self.data)]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
            return done.returncode, json.loads(done.stdout) if done.stdout else {}
        except (subprocess.TimeoutExpired, ValueError):
            return 1, {}
