"""The files of a farm of several nodes on one machine: keys, one configuration per node, and free ports.

    <directory>/farm.key                  the farm's key (expect = number of servers)
    <directory>/master.key                a throwaway master destination, marked as a demonstration
    <directory>/node-1/node.toml          the file for `garlicfarm run --config`
    <directory>/node-1/signing.key        its own transient key, signed by the master
    <directory>/node-1/leaf.key           the key of its leaf's destination, in SAM's text
    <directory>/node-1/…                  the node's state: identity, certificate, log, published structures

`up` continues the farm of an existing directory: keys, identities and logs stay. So a stopped or killed farm returns
with all acknowledged entries. `up` checks the ports again and replaces a port in use, since a node's address is not
part of its identity. It also replaces transient keys that end soon. After the farm is created, the next `up` writes its
cluster id into the key file. So a node whose directory was removed joins the farm again.

A free port is found by binding it for a moment. Another program may bind it before the node does. Then the node reports
the error and ends, and the next `up` chooses another port.
"""

import fcntl
import os
import socket
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import SystemRandom

from msgspec import Struct
from msgspec.structs import replace

from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.security.key_files import (
    load_farm_key,
    load_master_key,
    load_signing_key,
    read_private_file,
    replace_farm_key,
    save_farm_key,
    save_master_key,
    save_signing_key,
    write_private_file,
)
from bridge.node.security.local_trust import UntrustedPathError, check_state_directory, make_state_directory
from bridge.node.settings.bundle import toml_text
from bridge.node.settings.places import CONFIGURATION_NAME
from bridge.sam.connection import SamBridge
from bridge.wire.i2p.destination_keys import TRANSIENT_ALARM_S, DestinationKeyError, MasterKey, new_master_key
from bridge.wire.i2p.key_file import parse_sam_private_key, sam_private_key
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.membership.formation_state import FormationStateError, decode_formation_state
from consensus.storage import access_advice, replace_file

LOOPBACK = "127.0.0.1"
LOCK_NAME = "up.lock"
SERVERS_MAX = 9
REPORTING_PERIOD_MS = 2_000
PORT_LIMIT = 65_535
PORTS = range(20_000, 32_000)
"""The range of new ports. The system uses ports from 32,768 on for connections, which could take the port of a
restarting node."""
PORT_ATTEMPTS = 100
SEGMENT_BYTES = 4 * 1024 * 1024


class LocalFarmError(Exception):
    """The directory cannot hold this farm; the text contains the reason and the remedy."""


class NodeFiles(Struct, frozen=True):
    """One node of the farm: its name, its directory, its configuration file and the ports in it."""

    name: str
    directory: Path
    gossip_port: int
    consensus_port: int

    @property
    def configuration_file(self) -> Path:
        """The file for `garlicfarm run --config`."""
        return self.directory / CONFIGURATION_NAME

    @property
    def log_file(self) -> Path:
        """The file with the output of the process."""
        return self.directory / "node.log"


class LocalFarm(Struct, frozen=True):
    """A farm with all of its files."""

    directory: Path
    nodes: tuple[NodeFiles, ...]
    continued: bool
    """True if the directory held this farm before."""


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude a second `up` from `directory` while the block runs; raise LocalFarmError."""
    try:
        make_state_directory(directory)
    except UntrustedPathError as error:
        raise LocalFarmError(str(error)) from None
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # EACCES: the same, on a network file system
            raise LocalFarmError(
                f"another `garlicfarm up` runs on {directory}; watch it with `garlicfarm top`,"
                " or choose another directory with --state-dir",
            ) from None
        except OSError as error:
            advice = access_advice(directory, error)
            raise LocalFarmError(f"{directory} cannot be locked: {error.strerror or error}{advice}") from error
        yield


def prepare(directory: Path, servers: int, bridge: SamBridge | None = None) -> LocalFarm:
    """Make or complete the files of a farm of `servers` nodes below `directory`.

    With `bridge`, each node opens its I2P directory at this SAM bridge. Raise LocalFarmError if `directory` holds a
    farm of another size, or if a configuration cannot contain its path.
    """
    place = directory.resolve()
    try:
        str(place).encode()
    except UnicodeEncodeError as error:
        raise LocalFarmError(f"{place}: TOML cannot name it; choose a place in UTF-8 with --state-dir") from error
    continued = _farm_key(directory, servers)
    master = _master_key(directory)
    node_directories = [directory / f"node-{number}" for number in range(1, servers + 1)]
    ports = _ports(node_directories)
    seeds = [f"{LOOPBACK}:{gossip}" for gossip, _ in ports]
    nodes = []
    for node_directory, (gossip_port, consensus_port) in zip(node_directories, ports, strict=True):
        try:
            make_state_directory(node_directory)
        except UntrustedPathError as error:
            raise LocalFarmError(str(error)) from None
        node = NodeFiles(node_directory.name, node_directory, gossip_port, consensus_port)
        _signing_key(node_directory, master)
        others = [seed for seed in seeds if seed != f"{LOOPBACK}:{gossip_port}"]
        replace_file(node.configuration_file, _toml(directory, node, others, bridge).encode())
        nodes.append(node)
    return LocalFarm(directory, tuple(nodes), continued)


def refuse_other_use(directory: Path) -> None:
    """Raise LocalFarmError if a demonstration would use the keys of a real farm, or write into the state of a node."""
    try:
        check_state_directory(directory)
    except UntrustedPathError as error:
        raise LocalFarmError(str(error)) from None
    master = directory / "master.key"
    found = [each for each in (directory / FORMATION_FILE, directory / CONFIGURATION_NAME) if each.exists()]
    if not found and directory.is_dir() and not master.exists():
        # A node that has not started may have any of its files here.
        found = sorted(each for each in directory.iterdir() if each.name not in {LOCK_NAME, "farm.key"})
    elif master.exists() and not load_master_key(master).demo:
        found.append(master)
    if found:
        raise LocalFarmError(
            f"{found[0]} does not belong to a demonstration: choose another directory with --state-dir"
        )


def _farm_key(directory: Path, servers: int) -> bool:
    path = directory / "farm.key"
    if not path.exists():
        save_farm_key(path, new_farm_key(servers))
        return False
    farm_key = load_farm_key(path)
    expect = farm_key.expect
    if expect != servers:
        raise LocalFarmError(
            f"{directory} holds a farm of {expect} nodes, not of {servers}: start it with --nodes {expect},"
            " or choose another directory with --state-dir",
        )
    clusters = {each for number in range(1, servers + 1) if (each := _cluster_id(directory / f"node-{number}"))}
    if len(clusters) == 1 and farm_key.cluster_id not in clusters:
        # With the cluster id in the key file, a node that lost its directory is admitted again without approval. All
        # directories belong to the same user.
        replace_farm_key(path, replace(farm_key, cluster_id=clusters.pop()))
    return True


def _cluster_id(node_directory: Path) -> bytes | None:
    """Return the cluster id that a node has stored, if any; its start checks the file."""
    try:
        state = decode_formation_state((node_directory / FORMATION_FILE).read_bytes())
    except (OSError, FormationStateError):
        return None
    founding = state.founding or state.known
    return None if founding is None else founding.cluster_id


def _master_key(directory: Path) -> MasterKey:
    path = directory / "master.key"
    if not path.exists():
        save_master_key(path, new_master_key(demo=True))
    return load_master_key(path)


def _signing_key(node_directory: Path, master: MasterKey) -> None:
    path = node_directory / "signing.key"
    now_s = int(time.time())
    if path.exists():
        stored_key = load_signing_key(path)
        if stored_key.destination == master.destination and stored_key.can_sign_until_s > now_s + TRANSIENT_ALARM_S:
            return
    path.unlink(missing_ok=True)
    save_signing_key(path, master.sign_transient(now_s))


def leaf_key(node: NodeFiles) -> MasterKey:
    """Return the key of the node's leaf, the same each time; raise KeyFileError and LocalFarmError."""
    path = node.directory / "leaf.key"
    if not path.exists():
        write_private_file(path, sam_private_key(new_master_key()) + "\n")
    try:
        return parse_sam_private_key(read_private_file(path).strip())
    except DestinationKeyError as error:
        raise LocalFarmError(f"{path}: {error}; remove the file, and the next start makes another key") from None


def _ports(node_directories: list[Path]) -> list[tuple[int, int]]:
    """Return a gossip and a consensus port for each node: the previous ones if they are free, else new ones."""
    with ExitStack() as reserved:
        chosen = []
        for node_directory in node_directories:
            gossip, consensus = _previous_ports(node_directory / CONFIGURATION_NAME)
            chosen.append((_hold(reserved, socket.SOCK_DGRAM, gossip), _hold(reserved, socket.SOCK_STREAM, consensus)))
        return chosen


def _previous_ports(configuration: Path) -> tuple[int, int]:
    if not configuration.exists():
        return 0, 0
    try:
        known = tomllib.loads(configuration.read_text(encoding="utf-8"))
        return _port(known["gossip"]["bind"]), _port(known["consensus"]["bind"])
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return 0, 0


def _port(bind: str) -> int:
    port = int(bind.rpartition(":")[2])
    if not 0 <= port <= PORT_LIMIT:
        raise ValueError(f"{port} is not a port")
    return port


def _hold(reserved: ExitStack, kind: socket.SocketKind, port: int) -> int:
    return port if port and _is_held(reserved, kind, LOOPBACK, port) else hold_free_port(reserved, kind)


def hold_free_port(reserved: ExitStack, kind: socket.SocketKind, host: str = LOOPBACK) -> int:
    """Return a free port, from `PORTS` if possible. Other callers cannot get it until `reserved` ends."""
    for port in SystemRandom().sample(PORTS, PORT_ATTEMPTS):
        if _is_held(reserved, kind, host, port):
            return port
    probe = reserved.enter_context(socket.socket(socket.AF_INET, kind))
    probe.bind((host, 0))
    return int(probe.getsockname()[1])


def loopback_settings() -> dict[str, dict[str, str]]:
    """Return the settings of a node on free ports of loopback."""
    with ExitStack() as reserved:
        kinds = {"gossip": socket.SOCK_DGRAM, "consensus": socket.SOCK_STREAM}
        return {table: {"bind": f"{LOOPBACK}:{hold_free_port(reserved, kind)}"} for table, kind in kinds.items()}


def _is_held(reserved: ExitStack, kind: socket.SocketKind, host: str, port: int) -> bool:
    probe = reserved.enter_context(socket.socket(socket.AF_INET, kind))
    try:
        if kind is socket.SOCK_STREAM:
            # A port in TIME_WAIT is free for the node, which binds with the same option. Only a listener excludes
            # binds with that option.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        if kind is socket.SOCK_STREAM:
            probe.listen()
    except OSError:
        return False
    return True


def _toml(directory: Path, node: NodeFiles, seeds: list[str], bridge: SamBridge | None) -> str:
    place = node.directory.resolve()
    settings = {
        "name": node.name,
        "state_dir": str(place),
        "farm_key": str(directory.resolve() / "farm.key"),
        "demo": True,
        "gossip": {
            "bind": f"{LOOPBACK}:{node.gossip_port}",
            "seeds": seeds,
            "broadcast": "off",
            "timing": "local",
        },
        "consensus": {
            "bind": f"{LOOPBACK}:{node.consensus_port}",
            "timing": "local",
            "segment_bytes": SEGMENT_BYTES,
            "admit": "all",
        },
        "publishing": {
            "publish": "auto",
            "signing_key": str(place / "signing.key"),
            "pace": "reporting-period",
            "reporting_period_ms": REPORTING_PERIOD_MS,
        },
        "router": {
            "kind": "file",
            "directory": str(place / "published"),
            **({} if bridge is None else {"sam": str(bridge)}),
        },
        "leaf": [{"destination": leaf_key(node).destination.base64}],
    }
    return f"# Written by `garlicfarm up`; written again at its next start.\n{toml_text(settings)}"
