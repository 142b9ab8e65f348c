"""`garlicfarm config` and `doctor`: a node's configuration shown, exported, imported, and checked with its machine.

    config show      the complete settings of a node, with every default
    config export    farm key and shared settings ──▶ one secret file (0600)
    config import    on each node: bundle + its own settings ──▶ farm.key and node.toml, which `run` reads
    doctor           this machine before a node runs on it: each check is ok, a warning or a problem

With a warning, a node runs, but a part of it fails or will fail soon. With a problem, a node does not start or must not
be trusted. A node's own settings (name, signing key, leaves, address) are options of the import, or are written into
node.toml later.
"""

import shlex
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import click

from bridge.api.outputs import BundleOutput, Check, CheckResult, ConfigurationOutput, DoctorOutput, ImportOutput
from bridge.cli.failure import fail, failures
from bridge.cli.founding.starting import as_reader
from bridge.cli.node_queries import local_configuration
from bridge.cli.options import SummaryGroup, directory_path, file_path, json_option
from bridge.cli.printing import echo, echo_whole, end_with_json, print_json
from bridge.node.doctor.checks import check_machine
from bridge.node.security.farm_keys import with_stored_keys
from bridge.node.security.key_files import (
    KeyFileError,
    load_farm_key,
    load_signing_key,
    read_private_file,
    save_farm_key,
    write_private_file,
)
from bridge.node.settings.bundle import BundleError, bundle_text, parse_bundle, shared_settings, toml_text
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, Overrides, load_configuration
from bridge.node.settings.declared import written
from bridge.node.settings.places import default_configuration, node_places
from bridge.wire.i2p.structures import Destination
from consensus.storage import replace_file
from gossip import StateError

WRONG = (ConfigurationError, KeyFileError, BundleError, StateError, OSError)
MARKS = {
    CheckResult.OK: ("ok", "green"),
    CheckResult.WARNING: ("warning", "yellow"),
    CheckResult.PROBLEM: ("problem", "red"),
}
NAME_CELLS: Final = 14
"""Width of the names of most checks; a longer name ends with a colon."""
config_option = click.option("--config", "path", type=file_path, required=True, help="The node's configuration, TOML.")


@click.group(cls=SummaryGroup)
def config() -> None:
    """Show a configuration; export one for many nodes, import it on each."""


@config.command()
@config_option
@json_option
def show(path: Path, *, as_json: bool) -> None:
    """Show a configuration with all defaults, in the form of a file. Keys appear as the names of their files."""
    with failures(*WRONG):
        configuration = load_configuration(path)
    settings = written(configuration)
    end_with_json(ConfigurationOutput(settings), as_json=as_json)
    for line in toml_text(settings).splitlines():
        echo_whole(line)
    for kind, each in (
        *(("leaf", leaf.destination) for leaf in configuration.leaves),
        *(("master", master.destination) for master in configuration.masters if master.destination is not None),
    ):
        # Show a destination's address, as all other commands do.
        echo_whole(f"# {kind} {each.address}")


@config.command("export")
@config_option
@click.argument("bundle", type=file_path)
@json_option
def export(path: Path, bundle: Path, *, as_json: bool) -> None:
    """Write BUNDLE: the farm's key and the settings of a node that others may share. Secret."""
    with failures(*WRONG):
        configuration = load_configuration(path)
        farm_key = load_farm_key(configuration.farm_key)
        # Without gossip, a node uses only the keys of the file.
        if configuration.gossip:
            farm_key = with_stored_keys(farm_key, configuration.state_dir)
        configured = configuration.masters
        masters = tuple((_destination(each.signing_key, each.destination), each.publish.value) for each in configured)
        settings = shared_settings(tomllib.loads(path.read_text(encoding="utf-8")), masters)
        write_private_file(bundle, bundle_text(farm_key, settings))
    end_with_json(BundleOutput(str(bundle), farm_key.label.hex(), settings), as_json=as_json)
    echo(f"{bundle} holds the farm key and the shared settings; a node with this file can request to join the farm.")
    echo(f"On each node: garlicfarm config import {shlex.quote(bundle.name)} DIRECTORY")


def _destination(signing_key: Path | None, destination: Destination | None) -> str:
    if signing_key is not None:
        return load_signing_key(signing_key).destination.base64
    if destination is None:
        raise ConfigurationError("a master has neither a signing key nor a destination")
    return destination.base64


@config.command("import")
@click.argument("bundle", type=file_path)
@click.argument("directory", type=directory_path)
@click.option("--name", help="The name of this node (default: the host's name).")
@click.option("--bind", metavar="HOST:PORT", help="The address of gossip (default: the private address, port 7668).")
@click.option("--signing-key", "keys", type=file_path, multiple=True, help="A signing key of this node.")
@click.option("--leaf", "leaves", multiple=True, metavar="DESTINATION[=HOST:PORT]", help="A tunnel, and its service.")
@click.option("--replace", is_flag=True, help="Replace the existing node.toml in DIRECTORY.")
@json_option
def import_bundle(
    bundle: Path,
    directory: Path,
    name: str | None,
    bind: str | None,
    keys: tuple[Path, ...],
    leaves: tuple[str, ...],
    *,
    replace: bool,
    as_json: bool,
) -> None:
    """Write farm.key and node.toml into DIRECTORY, from BUNDLE and the options of this node."""
    with failures(*WRONG):
        farm_key, settings = parse_bundle(read_private_file(bundle))
        node, key_file = directory / "node.toml", directory / "farm.key"
        if node.exists() and not replace:
            fail(
                f"{node} exists: show it with `garlicfarm config show --config {shlex.quote(str(node))}`, or overwrite"
                " it with --replace"
            )
        own: dict[str, Any] = {"name": name} if name is not None else {}
        made = {**own, "farm_key": key_file.name, "state_dir": "state", **settings}
        if bind is not None:
            made["gossip"] = {"bind": bind, **made.get("gossip", {})}
        _sign_with(made, keys)
        if leaves:
            made["leaf"] = [_leaf(each) for each in leaves]
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if key_file.exists() and load_farm_key(key_file).label != farm_key.label:
            fail(f"{key_file} is another farm's key: give each farm a separate directory")
        check_text(node, toml_text(made))
        if not key_file.exists():
            save_farm_key(key_file, farm_key)
        replace_file(node, toml_text(made).encode())
    end_with_json(ImportOutput(str(node), str(key_file), farm_key.label.hex()), as_json=as_json)
    file = shlex.quote(str(node))
    echo(f"{node} is ready: garlicfarm doctor --config {file}, then garlicfarm run --config {file}")


def _sign_with(made: dict[str, Any], keys: tuple[Path, ...]) -> None:
    """Replace each master's destination with its signing key."""
    for path in keys:
        destination = load_signing_key(path).destination
        master = next((each for each in made.get("master", []) if each.get("destination") == destination.base64), None)
        if master is None:
            raise BundleError(f"{path} signs for {destination.address}, which is not a master of this bundle")
        del master["destination"]
        master["signing_key"] = str(path.absolute())
    for master in made.get("master", []):
        if "destination" in master and master.get("publish") == "on":
            # "on" would prefer this node as the publisher, but the node does not have a key.
            master["publish"] = "auto"


def _leaf(text: str) -> dict[str, str]:
    """Split a leaf into destination and probe.

    A destination's base64 may end in `=` too, so the last `=` before a port counts.
    """
    destination, separator, probe = text.rpartition("=")
    return {"destination": destination, "probe": probe} if separator and ":" in probe else {"destination": text}


def check_text(path: Path, text: str) -> NodeConfiguration:
    """Return a configuration before it is written; raise ConfigurationError if `run` would not accept it."""
    trial = path.with_name(".node.toml.trial")
    trial.unlink(missing_ok=True)
    write_private_file(trial, text)
    try:
        return load_configuration(trial, Overrides())
    except ConfigurationError as error:
        reason = str(error).replace(str(trial), str(path))
        hint = "; give the address with --bind HOST:PORT" if "gossip.bind" in reason and "--bind" not in reason else ""
        raise ConfigurationError(f"{reason}{hint}") from error
    finally:
        trial.unlink(missing_ok=True)


@click.command()
@click.option(
    "--config",
    type=file_path,
    help="The node's configuration file (default without other options: of a node in ./farm-state, else the file that"
    " `init` or `join` has written).",
)
@click.option("--farm-key", type=file_path, help="The farm's key file.")
@click.option("--state-dir", type=directory_path, help="The node's state directory.")
@json_option
def doctor(*, config: Path | None, farm_key: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Check clock, ports, keys, Java and disk; list missing parts and remedies."""
    if config is None and farm_key is None:
        config = (local_configuration() if state_dir is None else None) or default_configuration()
    places = node_places()
    # root checks the node of the package as the package's user.
    with as_reader(places, places.farm_key) if config == places.configuration else nullcontext():
        checks = check_machine(config, Overrides(farm_key=farm_key, state_dir=state_dir))
    problems = [check for check in checks if check.result is CheckResult.PROBLEM]
    if as_json:
        print_json(DoctorOutput(not problems, tuple(checks)))
    else:
        for check in checks:
            print_check(check)
    if problems:
        fail(f"not ready: {', '.join(dict.fromkeys(each.name for each in problems if not each.cause))}")


def print_check(check: Check) -> None:
    """Print one check, and its action below it.

    If another failed check is the cause, print its name instead of a remedy.
    """
    mark, color = MARKS[check.result]
    name = check.name if len(check.name) <= NAME_CELLS else f"{check.name}:"
    text = f"{check.text} (because of: {check.cause})" if check.cause else check.text
    echo(text, mark=f"{'follows' if check.cause else mark:<8} {name:<{NAME_CELLS}} ", color=color)
    if check.action and not check.cause:
        echo(f"{'':<24}-> {check.action}")
