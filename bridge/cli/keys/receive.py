"""`garlicfarm keys receive`: the signing key of a node that joined before its farm had spare keys.

    first machine   keys master ──▶ spare keys; invite new ──▶ TOKEN
    this machine    TOKEN ──▶ the inviting node ──▶ signing key ──▶ [[master]] signing_key ──▶ the service starts again

It is the exchange of `garlicfarm join`, with the identity that this node has already. So a key is assigned to this
identity before it leaves the inviting node, and the command can be repeated after a kill.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import click
import trio

from bridge.api.outputs import ReceiveOutput
from bridge.cli.config import check_text
from bridge.cli.failure import fail, failures, interruptible
from bridge.cli.founding.init import WRONG
from bridge.cli.founding.join import secret_token, token_file_option
from bridge.cli.founding.new_files import replace_configuration
from bridge.cli.founding.starting import as_node_user, node_farm_key, restart_service
from bridge.cli.keys.master import START_AGAIN, refuse_configured
from bridge.cli.options import json_option
from bridge.cli.printing import echo, end_with_json
from bridge.node.inviting.redeeming import JoinError, redeem
from bridge.node.membership.own_name import remembered_name
from bridge.node.security.key_files import KeyFileError, save_signing_key
from bridge.node.settings.bundle import BundleError, parse_bundle
from bridge.node.settings.configuration import NodeConfiguration, load_configuration
from bridge.node.settings.places import Places, node_places
from bridge.node.settings.toml_editor import EditError, add_tables, set_listed_table
from bridge.wire.i2p.destination_keys import DestinationKeyError, SigningKey, parse_signing_key
from bridge.wire.keys.invitation import Granted, RefusalCode, Token, parse_token
from bridge.wire.keys.text import KeyTextError
from gossip import StateError
from gossip.node import load_identity


@click.command()
@click.argument("token", required=False)
@token_file_option
@json_option
def receive(*, token: str | None, token_file: Path | None, as_json: bool) -> None:
    """Let this node publish: get a spare signing key with the TOKEN of `garlicfarm invite new`.

    Run `invite new` on the machine where `keys master` has run. Without TOKEN the command prompts for it, as
    `garlicfarm join` does. Only nodes that joined before `keys master` need this; later nodes
    get their keys by `join`.
    """
    places = node_places()
    with (
        interruptible(),
        failures(*WRONG, BundleError, DestinationKeyError, EditError, JoinError, KeyTextError, StateError),
    ):
        if token is not None and token_file is not None:
            fail("give the token once: as an argument, or with --token-file")
        if not places.configuration.is_file():
            fail(f"{places.configuration} does not exist: run `garlicfarm join` with the token instead")
        configuration = load_configuration(places.configuration)
        keyless = [each.destination.base64 for each in configuration.masters if each.destination is not None]
        if not keyless:
            refuse_configured(configuration)
        # A configuration that cannot be changed ends the command here, before the token is used.
        _configuration_text(places, {next(iter(keyless), ""): places.directory / "trial.key"})
        granted = _granted(places, configuration, parse_token(token or secret_token(token_file)))
        received = map(parse_signing_key, granted.signing_keys)
        # Such a node may have the keys of other masters already.
        keys = [each for each in received if not keyless or each.destination.base64 in keyless]
        if not keys:
            fail(f"{granted.inviter} lacks spare signing keys: run `garlicfarm keys master FILE --spare 1` there")
        files = _write(places, keys)
    restarts = restart_service(places)
    end_with_json(ReceiveOutput(granted.inviter, tuple(map(str, files))), as_json=as_json)
    for path, key in zip(files, keys, strict=True):
        echo(f"{path}: this node may publish {key.destination.address}.")
    if not restarts:
        echo(START_AGAIN)


def _granted(places: Places, configuration: NodeConfiguration, token: Token) -> Granted:
    label = node_farm_key(places, configuration.farm_key).label
    with as_node_user(places):
        identity = load_identity(configuration.state_dir)
        name = remembered_name(configuration).name
    try:
        granted = trio.run(redeem, token, identity, name)
    except JoinError as error:
        if error.code is not RefusalCode.NAME_TAKEN:
            raise
        where = f"`name` in {places.configuration}"
        raise JoinError(f"{error}, set {where}, start the node again, and repeat the command") from None
    if parse_bundle(granted.bundle)[0].label != label:
        raise KeyFileError("the token belongs to another farm; the files here stay as they were")
    return granted


def _write(places: Places, keys: list[SigningKey]) -> list[Path]:
    files = [places.directory / f"{key.destination.address[:8]}.key" for key in keys]
    text = _configuration_text(places, dict(zip((key.destination.base64 for key in keys), files, strict=True)))
    for path, key in zip(files, keys, strict=True):
        save_signing_key(path, key, again=True)
    replace_configuration(places.configuration, text)
    return files


def _configuration_text(places: Places, files: Mapping[str, Path]) -> str:
    """Return the configuration with a signing key for each master (in base64); raise errors if it cannot be written.

    The key replaces the destination of a master that this node serves without a key.
    """
    text = places.configuration.read_text(encoding="utf-8")
    served = [each.get("destination") for each in tomllib.loads(text).get("master", [])]
    for master, path in files.items():
        values = {"signing_key": path.name}
        if master in served:
            text = set_listed_table(text, "master", served.index(master), values, ["destination"])
        else:
            text = add_tables(text, "master", [values])
    check_text(places.configuration, text)
    return text
