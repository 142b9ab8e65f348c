"""`garlicfarm keys master`: the master key, this node's signing key, and spare keys for the nodes that it invites.

    FILE, new or existing ──▶ a signing key for this node ──▶ [publishing] signing_key ──▶ the service starts again
                         └──▶ spare signing keys ──▶ `garlicfarm join` on the other machines gets one each

The running node does not read the master key. Afterwards the operator carries FILE to a machine that is offline.
Alternatively, the operator runs `keys offline` on such a machine, and not this command. Each signing key contains the
session configuration for i2pd, so the keys suit each router that `garlicfarm router detect` finds, and also nodes
without a router.
"""

import time
from pathlib import Path
from typing import Final

import click

from bridge.api.outputs import MasterOutput
from bridge.cli.config import check_text
from bridge.cli.failure import fail, failures
from bridge.cli.founding.new_files import replace_configuration
from bridge.cli.founding.starting import as_node_user, as_reader, node_farm_key, restart_service
from bridge.cli.keys.destination_keys import DAY_S, DAYS_LIMIT
from bridge.cli.options import IntegerRange, file_path, json_option
from bridge.cli.printing import echo, end_with_json
from bridge.node.doctor.checks import RELEASED_S
from bridge.node.inviting.spare_keys import KEYS_MAX, SpareKeys
from bridge.node.security.key_files import (
    KeyFileError,
    load_master_key,
    load_signing_key,
    save_master_key,
    save_signing_key,
)
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, load_configuration
from bridge.node.settings.places import Places, node_places
from bridge.node.settings.toml_editor import EditError, set_table
from bridge.wire.i2p.destination_keys import TRANSIENT_LIFE_S, DestinationKeyError, MasterKey, new_master_key

START_AGAIN: Final = "To publish, start the node again: end it with Ctrl-C, then `garlicfarm run`."
DEFAULT_FILE: Final = "master.key"
_LATEST_S: Final = 2**32 - DAYS_LIMIT * DAY_S
"""The latest time for making a key: the end of its validity, up to `DAYS_LIMIT` days later, must fit into 32 bits."""
WRONG: Final = (ConfigurationError, DestinationKeyError, EditError, KeyFileError, OSError)


@click.command()
@click.argument("file", type=file_path, default=DEFAULT_FILE)
@click.option(
    "--spare",
    type=IntegerRange(0, KEYS_MAX),
    help="Number of signing keys for other nodes (default: one for each other founder).",
)
@click.option(
    "--days",
    default=TRANSIENT_LIFE_S // DAY_S,
    show_default=True,
    type=IntegerRange(1, DAYS_LIMIT),
    help="Validity of the signing keys, in days.",
)
@json_option
def master(file: Path, *, spare: int | None, days: int, as_json: bool) -> None:
    """Make signing keys for this node and its invited nodes, from the master key in FILE.

    The first run creates FILE if it is missing.

    Run it on the first machine of a farm, after `init` and before `join` on the others. Then move FILE to a safe place
    off the nodes. To keep an existing address, create FILE with `keys import-destination` first. Later, --spare adds
    keys for further machines.
    """
    places = node_places()
    if not places.configuration.is_file():
        fail(f"{places.configuration} does not exist: run `garlicfarm init` first, or `keys offline` for other places")
    with failures(*WRONG):
        is_first = spare is None or not load_configuration(places.configuration).masters
        made = make_master(places, file, spare, days) if is_first else _add_spare_keys(places, file, spare or 0, days)
    restarts = not is_first or restart_service(places)
    end_with_json(made, as_json=as_json)
    print_master(made, days, is_first=is_first)
    if not restarts:
        echo(START_AGAIN)


def make_master(
    places: Places, file: Path, spare: int | None = None, days: int = TRANSIENT_LIFE_S // DAY_S
) -> MasterOutput:
    """Make the keys, and name this node's key in its configuration; raise one of the errors in `WRONG`."""
    now_s = present_s()
    configuration = load_configuration(places.configuration)
    refuse_configured(configuration)
    count = node_farm_key(places, configuration.farm_key).expect - 1 if spare is None else spare
    key = _master_key(file)
    own = _own_key(places, key)
    text = set_table(places.configuration.read_text(encoding="utf-8"), "publishing", {"signing_key": own.name})
    check_text(places.configuration, text)
    # A killed attempt leaves key files that the configuration does not name. The repeated command reuses them.
    if not _has_signing_key(places, own, key):
        save_signing_key(own, key.sign_transient(now_s, days * DAY_S))
    with as_node_user(places):
        spare_keys = SpareKeys(configuration.state_dir)
        missing = range(spare_keys.count(key.destination.base64), count)
        spare_keys.add([key.sign_transient(now_s, days * DAY_S) for _ in missing])
    replace_configuration(places.configuration, text)
    return MasterOutput(key.destination.address, str(file), str(own), count)


def _has_signing_key(places: Places, path: Path, key: MasterKey) -> bool:
    with as_reader(places, path):
        return path.exists() and load_signing_key(path).destination == key.destination


def _add_spare_keys(places: Places, file: Path, count: int, days: int) -> MasterOutput:
    """Make further spare keys with the master key of this node."""
    now_s, key = present_s(), load_master_key(file)
    own = _own_key(places, key)
    if not own.exists():
        raise KeyFileError(f"{file} is not the master key of this node: {own} does not exist")
    state_dir = load_configuration(places.configuration).state_dir
    with as_node_user(places):
        made = SpareKeys(state_dir).add([key.sign_transient(now_s, days * DAY_S) for _ in range(count)])
    return MasterOutput(key.destination.address, str(file), str(own), len(made))


def present_s() -> int:
    """Return the time in seconds; raise KeyFileError if it is before this release, or too late for a key."""
    now_s = int(time.time())
    if not RELEASED_S <= now_s < _LATEST_S:
        raise KeyFileError("the clock of this machine is wrong: set it, or keys and tokens would end at a wrong time")
    return now_s


def _own_key(places: Places, key: MasterKey) -> Path:
    return places.directory / f"{key.destination.address[:8]}.key"


def print_master(made: MasterOutput, days: int = TRANSIENT_LIFE_S // DAY_S, *, is_first: bool = True) -> None:
    """Print the address, the keys, and the advice for the storage of the master key."""
    echo(f"{made.address}  is the farm's address.")
    if is_first:
        echo(f"{made.signing_key}: with this key, this node may publish the address for {days} days.")
    if made.spare_keys:
        echo(f"Spare keys: {made.spare_keys}. Each machine that joins by a token of this node gets one.")
        echo("A machine that has joined already: `garlicfarm invite new` here, `garlicfarm keys receive TOKEN` there.")
    echo(f"{made.file}: the master key. A holder of this file controls the address permanently.")
    echo("Move it to a safe place off the nodes now, and keep a second copy of it.")


def refuse_configured(configuration: NodeConfiguration) -> None:
    """Raise KeyFileError if the node's configuration already names a signing key."""
    if configuration.masters:
        raise KeyFileError(
            "this node has a master already; renew its keys with `garlicfarm keys offline` (`garlicfarm help"
            " signing-keys Renew`), or add spare keys with its master key and --spare. A node that serves a master"
            " without a key gets one with `garlicfarm keys receive`"
        )


def _master_key(file: Path) -> MasterKey:
    if file.exists():
        return load_master_key(file)
    key = new_master_key()
    save_master_key(file, key)
    return key
