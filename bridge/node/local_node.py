"""The local parts of a node, before it contacts others: its settings, keys, router, trace and alarms.

    settings ──▶ LocalNode: farm key, masters, trace, alarms, metrics, router
                   └──▶ begin ──▶ Beginning: stored identity and formation

Wrong settings are reported here, before another node discovers this one.
"""

import logging
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from bridge.api.events import event_text, is_warning
from bridge.api.trace import Scalar, TraceEvent
from bridge.core.formation.founding import FormationState
from bridge.core.publishing.publication import Pace
from bridge.node.events.alarms import Alarms, NodeStopped
from bridge.node.events.event_log import EventLog, cause_of, clock_ms
from bridge.node.events.service_manager import ServiceManager
from bridge.node.membership.forming import load_formation
from bridge.node.raft.ineffective_entries import IneffectiveEntries
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.router import FileRouter
from bridge.node.security.control_socket import SOCKET_NAME, answers
from bridge.node.security.key_files import KeyFileError, load_farm_key
from bridge.node.security.local_trust import UntrustedPathError, make_state_directory
from bridge.node.security.signing_keys import PublishingKey
from bridge.node.settings.choices import PublishingPace as PaceSetting
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.masters import Masters, load_masters
from bridge.node.settings.router import FileRouterSettings
from bridge.node.settings.timing import Profile, profile_of
from bridge.wire.i2p.destination_keys import SigningKey
from bridge.wire.keys.farm_key import FarmKey, FarmKeyError, check_founders
from consensus.storage import check_place, remove_left_over
from gossip.node import NodeIdentity, endpoint, load_identity

if TYPE_CHECKING:
    from bridge.node.router.i2cp_router import I2cpRouter

LOG = logging.getLogger("garlicfarm")


class LocalNode(Struct, frozen=True):
    """The parts made from the settings alone, by `load_local_node`."""

    configuration: NodeConfiguration
    farm_key: FarmKey
    """The content of its file at the start."""
    masters: Masters
    trace: EventLog
    alarms: Alarms
    ineffective: IneffectiveEntries
    lag: LoopLag
    router: "FileRouter | I2cpRouter"
    service_manager: ServiceManager

    @property
    def profile(self) -> Profile:
        """The timeouts and limits of this node for other servers."""
        return profile_of(self.configuration.consensus.timing)

    @property
    def pace(self) -> Pace:
        """The times between the publications of a master."""
        publishing = self.configuration.publishing
        if publishing.pace is PaceSetting.REPORTING_PERIOD:
            return Pace.of_period(publishing.reporting_period_ms)
        return Pace(gather_ms=publishing.reporting_period_ms)

    @property
    def endpoint(self) -> str:
        """The endpoint of this node's Raft server for others."""
        address = self.configuration.consensus.advertise
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"tcp://{host}:{address.port}"

    def structure_files(self) -> dict[str, str]:
        """Return the file of each master destination whose structure the router keeps in a file."""
        return structure_files(self.router, self.masters.keys)

    async def run(self) -> None:
        """Run the local tasks while the node lives, with or without others."""
        async with trio.open_nursery() as nursery:
            for each in (self.lag, self.router, self.ineffective):
                nursery.start_soon(each.run)


def load_local_node(configuration: NodeConfiguration) -> LocalNode:
    """Load the files of the settings. Raise `KeyFileError` and `MasterError`."""
    farm_key = load_farm_key(configuration.farm_key)
    founders = configuration.founders or farm_key.founders
    if founders:
        try:
            check_founders(founders, farm_key.expect)
        except FarmKeyError as error:
            raise KeyFileError(f"{error}, in the settings or in {configuration.farm_key}") from None
    trace = EventLog(configuration.name, clock_ms, on_event=_log_event)
    alarms = Alarms(trace)
    masters, lag = load_masters(configuration.masters, configuration.leaves), LoopLag()
    return LocalNode(
        configuration,
        farm_key,
        masters,
        trace,
        alarms,
        IneffectiveEntries(alarms),
        lag,
        make_router(configuration, HostSampler(), lag, alarms, masters.keys),
        ServiceManager(),
    )


def make_router(
    configuration: NodeConfiguration, host: HostSampler, lag: LoopLag, alarms: Alarms, keys: Sequence[PublishingKey]
) -> "FileRouter | I2cpRouter":
    """Make the router of the settings, without running it; raise `KeyFileError` for an unusable password."""
    settings, leaves = configuration.router, configuration.leaves
    if isinstance(settings, FileRouterSettings):
        return FileRouter(settings.directory, leaves, host, lag, demo=configuration.demo)
    from bridge.node.router.i2cp_router import I2cpRouter  # noqa: PLC0415 - needed only with a router; takes a megabyte

    def signing_key_of(master_hash: bytes) -> SigningKey | None:
        # Looked up at each call, so that a renewed key counts immediately.
        return next((each.key for each in keys if each.master_hash == master_hash), None)

    return I2cpRouter(settings.access(), leaves, host, lag, alarms, signing_key_of=signing_key_of)


def structure_files(router: "FileRouter | I2cpRouter", keys: Sequence[PublishingKey]) -> dict[str, str]:
    """Return the file of each master destination whose structure is in a file."""
    if not isinstance(router, FileRouter):
        return {}
    paths = {each.master: router.path_of(each.master_hash) for each in keys}
    return {master: str(path) for master, path in paths.items() if path in router.files}


class Beginning(Struct, frozen=True):
    """The stored state of earlier runs."""

    identity: NodeIdentity
    formation: FormationState


async def begin(configuration: NodeConfiguration) -> Beginning:
    """Make, check and read the state directory; raise NodeStopped if this process must not run."""
    return await trio.to_thread.run_sync(_begin, configuration)


def _begin(configuration: NodeConfiguration) -> Beginning:
    state_dir = configuration.state_dir
    try:
        make_state_directory(state_dir)
    except UntrustedPathError as error:
        raise NodeStopped(str(error)) from error
    if answers(state_dir / SOCKET_NAME):
        # Checked first: otherwise the error would name the ports in use instead of the running process.
        raise NodeStopped(
            f"a node already runs with the state directory {state_dir}: query it with `garlicfarm status --node"
            f" {shlex.quote(str(state_dir))}`, or give this node another state_dir and other ports",
        )
    if isinstance(configuration.router, FileRouterSettings):
        configuration.router.directory.mkdir(parents=True, exist_ok=True)
    # Checked before other nodes discover this process: if a copy announced itself, the original node could treat itself
    # as the copy and stop.
    check_place(state_dir / RAFT_DIRECTORY)
    remove_left_over(state_dir)
    remove_left_over(configuration.farm_key.parent, configuration.farm_key.name)
    identity = load_identity(state_dir)
    return Beginning(identity, load_formation(state_dir, identity.node_id))


def start_facts(local: LocalNode) -> dict[str, Scalar]:
    """Return the facts in the first line of a node's log: its process and its addresses."""
    configuration = local.configuration
    facts: dict[str, Scalar] = {"pid": os.getpid(), "raft": endpoint(configuration.consensus.advertise)}
    if configuration.gossip is not None:
        facts["gossip"] = endpoint(configuration.gossip.advertise or configuration.gossip.bind)
        if configuration.gossip.chosen is not None:
            facts["chosen"] = str(configuration.gossip.chosen)
    return facts


def _log_event(event: TraceEvent) -> None:
    level = logging.WARNING if is_warning(event) else logging.INFO
    if LOG.isEnabledFor(level):
        LOG.log(level, "%s", event_text(event), extra={"cause": cause_of(event), "event": event})
