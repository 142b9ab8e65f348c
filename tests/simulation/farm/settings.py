"""The files of a farm, as an operator makes them: the farm's key, a master, and the settings of each node.

`Profile` has the choices of a world. A node's settings are TOML. The product's own reader reads them on each start, so
a changed file has an effect from the next start on.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from bridge.node.raft import replica
from bridge.node.security.key_files import save_farm_key, save_master_key, save_signing_key
from bridge.wire.i2p.destination_keys import MasterKey, SigningKey, new_master_key
from bridge.wire.i2p.structures import Destination
from bridge.wire.keys.farm_key import new_farm_key, parse_farm_key
from consensus.server.options import ServerOptions
from tests.destinations import new_demo_leaf
from tests.simulation.farm.host import Host

GOSSIP_PORT: Final = 7668
RAFT_PORT: Final = 7669
I2CP_PORT: Final = 7654
SMALL_LOG: Final = ServerOptions(snapshot_log_bytes=12 * 1024, snapshot_age_ms=60_000, retain_bytes=0)
"""Options for a snapshot about each minute, without earlier entries in the log. The product's settings lack them."""


def no_more_settings(_: Host) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The choices of a world that are the same for all of its nodes."""

    timing: str = "lan"
    reporting_period_ms: int = 10_000
    segment_bytes: int = 64 * 1024
    admit: str = "all"
    voters_max: int | None = None
    """Limit of the voters; the default without a value."""
    seeds: int | None = None
    """Number of seeds in each file; None: all founders; 0: discovery by broadcast."""
    fixed_address: bool = True
    """False: no address in the settings, so that the node chooses the machine's and follows its changes."""
    with_nat: frozenset[int] = frozenset()
    """Numbers of the machines with a NAT. Their nodes advertise its address."""
    has_routers: bool = False
    """True: each machine has a router of `routers.py`, Java or i2pd; False: a router with files."""
    leaf: bool = True
    more: Callable[[Host], str] = no_more_settings
    """More tables for the settings of one node, such as `[kafka]`."""


def is_i2pd(host: Host) -> bool:
    """Return True for each third machine: its router is i2pd."""
    return host.number % 3 == 0


def write_farm(directory: Path, founders: int, *, demo: bool = True) -> MasterKey:
    """Write the keys of a farm; return its master. Routers do not take the structures of a demonstration."""
    directory.mkdir(parents=True, exist_ok=True)
    save_farm_key(directory / "farm.key", new_farm_key(founders))
    master = new_master_key(demo=demo)
    save_master_key(directory / "master.key", master)
    return master


def write_node(
    directory: Path,
    host: Host,
    seeds: list[str],
    master: MasterKey,
    profile: Profile,
    exported_key: str | None = None,
) -> tuple[SigningKey, Destination]:
    """Write the settings and the keys of one node; return its signing key and its leaf.

    A later node has the key file that a node of its farm has exported.
    """
    farm_key = directory / "farm.key"
    if exported_key is not None:
        farm_key = directory / f"{host.name}.farm.key"
        save_farm_key(farm_key, parse_farm_key(exported_key))
    host.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = directory / f"{host.name}.signing.key"
    key.unlink(missing_ok=True)
    signing_key, leaf = master.sign_transient(int(host.wall_s)), new_demo_leaf()
    save_signing_key(key, signing_key)
    host.configuration_file.write_text(_toml(farm_key, host, seeds, key, profile, leaf), encoding="utf-8")
    return signing_key, leaf


def set_seeds(host: Host, seeds: list[str]) -> None:
    file = host.configuration_file
    text = re.sub(r"(?m)^seeds = .*$", lambda _: f"seeds = {json.dumps(seeds)}", file.read_text(encoding="utf-8"))
    file.write_text(text, encoding="utf-8")


def _toml(farm_key: Path, host: Host, seeds: list[str], key: Path, profile: Profile, leaf: Destination) -> str:
    address = host.addresses[0]
    gossip = f'bind = "{address}:{GOSSIP_PORT}"\n' if profile.fixed_address else ""
    raft = f'bind = "{address}:{RAFT_PORT}"\n' if profile.fixed_address else ""
    if host.public is not None:
        gossip += f'advertise = "{host.public}:{GOSSIP_PORT}"\n'
        raft += f'advertise = "{host.public}:{RAFT_PORT}"\n'
    router = f'kind = "file"\ndirectory = {_quoted(host.directory / "published")}\n'
    if profile.has_routers:
        router = f'kind = "i2cp"\nsoftware = "{"i2pd" if is_i2pd(host) else "java"}"\ni2cp = "127.0.0.1:{I2CP_PORT}"\n'
    leaves = f'[[leaf]]\ndestination = "{leaf.base64}"\n' if profile.leaf else ""
    return f"""name = "{host.name}"
state_dir = {_quoted(host.directory)}
farm_key = {_quoted(farm_key)}
demo = {"false" if profile.has_routers else "true"}

[gossip]
{gossip}seeds = {json.dumps(seeds)}
broadcast = "{"off" if seeds else "auto"}"
timing = "{profile.timing}"

[consensus]
{raft}timing = "{profile.timing}"
segment_bytes = {profile.segment_bytes}
admit = "{profile.admit}"
{"" if profile.voters_max is None else f"voters_max = {profile.voters_max}"}

[publishing]
publish = "auto"
signing_key = {_quoted(key)}
{"" if profile.has_routers else 'pace = "reporting-period"'}
reporting_period_ms = {profile.reporting_period_ms}

[router]
{router}
{leaves}
{profile.more(host)}
"""


@contextmanager
def small_logs() -> Iterator[None]:
    """Limit the logs of nodes that start within the block by `SMALL_LOG`."""
    parts = replica._server_parts

    def small_parts(*arguments: Any) -> Any:
        return replace(parts(*arguments), server_options=SMALL_LOG)

    with patch.object(replica, "_server_parts", small_parts):
        yield


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()))
