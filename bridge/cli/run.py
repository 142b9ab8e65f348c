"""`garlicfarm run`: one node, until a signal stops it.

When the node fails, the last line has the reason: a text for the operator if there is a remedy. Any other failure is a
fault of the program, with the traceback above.
"""

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import trio

from bridge.cli.failure import INTERRUPTED, reasons
from bridge.cli.node_log import NodeLog
from bridge.cli.options import directory_path, file_path
from bridge.cli.serving.process_memory import bound_malloc, exclude_modules_from_collections
from bridge.cli.serving.stop_deadline import StopDeadline
from bridge.core.log.feature_level import UnsupportedLevelError
from bridge.node.app import run_node
from bridge.node.events.alarms import NodeStopped
from bridge.node.inviting.invitations import UnusableInvitationsError
from bridge.node.membership.forming import UnusableFormationError
from bridge.node.router.router import RouterError
from bridge.node.security.control_socket import ControlSocketError
from bridge.node.security.key_files import KeyFileError
from bridge.node.settings.choices import LogFormat, LogLevel
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, Overrides, load_configuration
from bridge.node.settings.descriptors import DescriptorError
from bridge.node.settings.masters import MasterError
from bridge.node.settings.places import default_configuration
from bridge.wire.log.snapshot import FarmSnapshotError
from consensus.net import CertificateError
from consensus.storage import StorageError
from gossip import ConfigError, StateError

LOG = logging.getLogger(__name__)
REASONS = (
    NodeStopped,
    UnsupportedLevelError,
    ConfigurationError,
    ControlSocketError,
    DescriptorError,
    UnusableFormationError,
    UnusableInvitationsError,
    KeyFileError,
    MasterError,
    RouterError,
    StorageError,
    CertificateError,
    ConfigError,
    StateError,
    OSError,
)
"""Errors that an operator can remedy."""
ADDRESS_WAIT_S = 30.0
"""Longest wait in seconds for an address.

A lease arrives within seconds, and after a refusal a service manager starts the node again.
"""
ADDRESS_LOOK_S = 1.0


def loaded_when_addressed(
    load: Callable[[], NodeConfiguration],
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> NodeConfiguration:
    """Load the configuration; while an interface may still get the address that a default needs, load it again.

    At boot the node may start before the network. An address of a VPN or of a container may already exist then, and
    without this wait the node would choose and keep it.
    """
    ends_s, is_reported = now_s() + ADDRESS_WAIT_S, False
    while True:
        try:
            configuration = load()
            gossip = configuration.gossip
            waits_for = () if gossip is None or gossip.chosen is None else gossip.chosen.waits_for
            if not waits_for or now_s() >= ends_s:
                return configuration
        except ConfigurationError as error:
            waits_for = error.waits_for
            if not waits_for or now_s() >= ends_s:
                raise
        if not is_reported:
            is_reported = True
            LOG.warning("no LAN address yet: waiting up to %.0f s for %s", ADDRESS_WAIT_S, ", ".join(waits_for))
        sleep(ADDRESS_LOOK_S)


@click.command()
@click.option(
    "--config",
    type=file_path,
    help="The node's configuration, TOML (default without --farm-key: the file that `init` or `join` has written).",
)
@click.option("--farm-key", type=file_path, help="The farm's key file.")
@click.option("--state-dir", type=directory_path, help="The directory of the node's state.")
@click.option("--name", help="The name of the node (default: the host's name).")
@click.option("--bind", metavar="HOST:PORT", help="The address of gossip (default: the private address, port 7668).")
@click.option(
    "--log-format",
    type=click.Choice([each.value for each in LogFormat]),
    help="The format of the log on stderr: text for people, or a JSON object on each line (default: log.format, text).",
)
@click.option(
    "--log-level",
    type=click.Choice([each.value for each in LogLevel]),
    help="Write only records of this severity or worse (default: log.level, info).",
)
@click.option("--stop-with-stdin", is_flag=True, help="Stop when standard input closes; for a parent process.")
def run(
    *,
    config: Path | None,
    farm_key: Path | None,
    state_dir: Path | None,
    name: str | None,
    bind: str | None,
    log_format: str | None,
    log_level: str | None,
    stop_with_stdin: bool,
) -> None:
    """Run one node. After `init` or `join` options are not necessary; otherwise, on a LAN, --farm-key FILE suffices."""
    bound_malloc()
    form = None if log_format is None else LogFormat(log_format)
    level = None if log_level is None else LogLevel(log_level)
    log = NodeLog(form, level)
    deadline = StopDeadline(log.log_end)
    ends: list[str] = []
    interrupted = False
    try:
        overrides = Overrides(
            farm_key=farm_key, state_dir=state_dir, name=name, bind=bind, log_format=form, log_level=level
        )
        config = config or (default_configuration() if farm_key is None else None)
        configuration = loaded_when_addressed(partial(load_configuration, config, overrides, try_files=True))
        log.use(configuration.log.format, configuration.log.level, configuration.name)
        exclude_modules_from_collections()
        trio.run(partial(run_node, configuration, stop_with_stdin=stop_with_stdin, ends_within=deadline.within))
    except* REASONS as group:
        ends.extend(reasons(group))
    except* FarmSnapshotError as group:
        ends.extend(
            f"{configuration.state_dir}: {reason}. Start the version of garlicfarm that wrote it, or move the directory"
            " away and let the node join again as a new server"
            for reason in reasons(group)
        )
    except* KeyboardInterrupt:
        interrupted = True  # Ctrl-C before the node handles signals.
    except* Exception as group:
        LOG.critical("a fault of the program", exc_info=group)
        ends.extend(
            f"a fault of the program ended this node, please report the lines above: {r}" for r in reasons(group)
        )
    deadline.within(None)
    if ends:
        log.fail("; ".join(dict.fromkeys(ends)))
    log.close()
    if interrupted:
        sys.exit(INTERRUPTED)
