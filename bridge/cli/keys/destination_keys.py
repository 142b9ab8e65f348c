"""`garlicfarm keys new-destination`, `import-destination` and `offline`: the farm's identity, and its signing keys.

    on a machine that is offline                                      on each node
    keys new-destination master.key
    (or: keys import-destination eepPriv.dat master.key)
    keys offline --master master.key --output a.key --output b.key   ──▶   [publishing] signing_key = "a.key"

The commands run without a node and a network: the machine with the master key needs neither. Files get mode 0600, and
existing files are never overwritten. No private key is printed. Either all requested keys are made or none, so the
command can be repeated after an error.
"""

import shlex
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from bridge.api.outputs import DestinationOutput, SigningKeysOutput, SigningKeyView
from bridge.cli.failure import fail, failures
from bridge.cli.options import IntegerRange, RespelledOption, file_path, json_option
from bridge.cli.printing import echo, echo_whole, end_with_json
from bridge.node.doctor.checks import RELEASED_S
from bridge.node.security.key_files import (
    KeyFileError,
    load_i2p_key_file,
    load_master_key,
    save_master_key,
    save_signing_keys,
)
from bridge.wire.i2p.destination_keys import (
    TRANSIENT_ALARM_S,
    TRANSIENT_LIFE_S,
    DestinationKeyError,
    MasterKey,
    SigningKey,
    new_master_key,
)

DAY_S = 86_400
DAYS_LIMIT = 366
"""A stolen node can publish for the farm until its key expires, so a year is the limit."""
KEYS_LIMIT = 64


@click.command("new-destination")
@click.argument("file", type=file_path)
@json_option
def new_destination(file: Path, *, as_json: bool) -> None:
    """Make the farm's destination and its master key.

    FILE gets mode 0600 and contains the private key. Run this on a machine without a node, and keep FILE there.
    """
    key = new_master_key()
    with failures(KeyFileError):
        save_master_key(file, key)
    _print_master(key, file, as_json=as_json)


@click.command("import-destination")
@click.argument("source", type=file_path)
@click.argument("file", type=file_path)
@json_option
def import_destination(source: Path, file: Path, *, as_json: bool) -> None:
    """Make the master key file of an existing address.

    SOURCE is a router's private key file of an Ed25519 destination (eepPriv.dat, i2pd's keys.dat); it is only read.
    FILE gets mode 0600.
    """
    with failures(KeyFileError):
        key = load_i2p_key_file(source)
        save_master_key(file, key)
    _print_master(key, file, as_json=as_json)
    echo("Before the farm publishes: no router may run a tunnel with this destination any more. Give each")
    echo(f"router's tunnel a separate destination, as a leaf, and remove {source} from the routers.")


def _print_master(key: MasterKey, file: Path, *, as_json: bool) -> None:
    destination = key.destination
    end_with_json(
        DestinationOutput(str(file), destination.address, destination.hash.hex(), destination.base64), as_json=as_json
    )
    echo(f"{destination.address}  is the farm's address.")
    echo(
        f"{file}: its master key. A holder of this file controls that address permanently, and the key cannot be"
        " replaced."
    )
    echo("Keep it off the nodes, and a copy of it in a second safe place. For each node make a signing key:")
    echo_whole(f"  garlicfarm keys offline --master {shlex.quote(str(file))} --output NODE.key")


@click.command()
@click.option("--master", required=True, type=file_path, help="The master key file from `new-destination`.")
@click.option(
    "--output",
    "--out",
    "files",
    cls=RespelledOption,
    required=True,
    multiple=True,
    type=file_path,
    help="The new signing key file of one node; give it once for each node.",
)
@click.option(
    "--days",
    default=TRANSIENT_LIFE_S // DAY_S,
    show_default=True,
    type=IntegerRange(1, DAYS_LIMIT),
    help="Validity of the keys, in days.",
)
@json_option
def offline(master: Path, files: tuple[Path, ...], days: int, *, as_json: bool) -> None:
    """Make the nodes' signing keys.

    Each file, with mode 0600, contains a separate transient key, signed by the master key for some days. It also
    has the session configuration that i2pd requires. The command works without a node or a network. The node raises an
    alarm a week before its key ends.
    """
    now_s = int(time.time())
    if now_s < RELEASED_S:
        fail(f"this machine's clock is at {_second(now_s)}: set it, or the keys would end at a wrong time")
    if len(files) > KEYS_LIMIT:
        fail(f"at most {KEYS_LIMIT} keys in one run, not {len(files)}")
    if len({file.absolute() for file in files}) < len(files):
        fail("--output names a file twice: each node needs its own key")
    with failures(KeyFileError, DestinationKeyError):
        master_key = load_master_key(master)
        made = {file: master_key.sign_transient(now_s, days * DAY_S) for file in files}
        save_signing_keys(made)
    if days * DAY_S <= TRANSIENT_ALARM_S:
        echo("These keys end within a week: the alarm `signing-key` is active from the start.", err=True)
    keys = (SigningKeyView(str(file), key.can_sign_until_s, _public_key(key)) for file, key in made.items())
    end_with_json(SigningKeysOutput(master_key.destination.address, tuple(keys)), as_json=as_json)
    ends = _second(now_s + days * DAY_S)
    for file in made:
        echo(f"{file}: signs for {master_key.destination.address} until {ends}.")
    echo("Give each node its own file, mode 0600, and delete it here. In the node's settings:")
    echo_whole("  [publishing]")
    echo_whole('  signing_key = "FILE"')


def _public_key(key: SigningKey) -> str:
    return key.private_key.public_key().public_bytes_raw().hex()


def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M UTC")
