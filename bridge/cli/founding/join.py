"""`garlicfarm join`: another machine of a farm.

    token ──▶ the inviting node ──▶ farm key, settings, signing key ──▶ files ──▶ router ──▶ the node starts

The identity of this machine is made first, because the inviting node approves exactly this identity. If the command
ends early, repeat it on this machine: only this machine may use the token again. If the files are written already, the
repetition does not need the token, which may have expired. With --json it still needs the token.
"""

import socket
import sys
from pathlib import Path

import click
import trio

from bridge.api.outputs import JoinOutput
from bridge.cli.failure import fail, failures, interruptible
from bridge.cli.founding import new_files
from bridge.cli.founding.init import WRONG
from bridge.cli.founding.starting import as_node_user, start_node
from bridge.cli.founding.token_screen import join_command
from bridge.cli.options import json_option, yes_option
from bridge.cli.printing import ask_secret, echo, is_terminal, print_json
from bridge.cli.router.attaching import offer_router
from bridge.node.inviting.redeeming import JoinError, redeem
from bridge.node.local.farm_files import loopback_settings
from bridge.node.membership.own_name import note_name, own_end
from bridge.node.security.key_files import read_private_file
from bridge.node.settings.bundle import BundleError, parse_bundle
from bridge.node.settings.configuration import name_of_host
from bridge.node.settings.places import Places, node_places
from bridge.wire.i2p.destination_keys import DestinationKeyError, SigningKey, parse_signing_key
from bridge.wire.keys.invitation import TOKEN_LIMIT_CHARACTERS, Granted, RefusalCode, Token, parse_token
from bridge.wire.keys.text import KeyTextError
from consensus.protocols.garlic_farm import is_loopback
from gossip import StateError
from gossip.node import NodeIdentity, load_identity

token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="A file of mode 0600 with the token; - is standard input.",
)


@click.command()
@click.argument("token", required=False)
@token_file_option
@click.option("--name", help="The name of this node (default: the host's name).")
@click.option(
    "--bind",
    metavar="HOST:PORT",
    help="The address of gossip (default: the private address, port 7668; in a farm on loopback, a free port there).",
)
@click.option("--no-start", is_flag=True, help="Do not start the node.")
@yes_option
@json_option
def join(
    *,
    token: str | None,
    token_file: Path | None,
    name: str | None,
    bind: str | None,
    no_start: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make this machine a node of a farm, with the TOKEN of `garlicfarm init` or `garlicfarm invite new`.

    Without TOKEN and --token-file, the command prompts for the token, or reads it from standard input without a
    terminal. Other users of this machine can see arguments, and the shell keeps them in its history. A token from the
    prompt or a file is safe from both. Existing files are never overwritten. With --json the command writes the files
    and prints the result, but does not attach a router or start the node.

    At a terminal, or with --yes, it also attaches the I2P router of this machine as `router detect` does.
    """
    if token is not None and token_file is not None:
        fail("give the token once: as an argument, or with --token-file")
    places = node_places()
    with interruptible(lambda: new_files.interrupted_state(places)), new_files.only_run(places):
        with failures(*WRONG, BundleError, JoinError, StateError, KeyTextError, DestinationKeyError):
            continues = new_files.is_continued(places, "join")
            if as_json or not continues:
                parsed = parse_token(token or secret_token(token_file))
                made, files = _redeemed(places, parsed, name, bind, writes=not continues)
        if as_json:
            new_files.end_command(places)
            print_json(made)
            return
        if not continues:
            echo(f"{made.inviter} has invited this machine: {places.configuration} and {places.farm_key} are written.")
            for path, key in files.items():
                echo(f"{path}: this node may publish {key.destination.address}.")
        offer_router(places, yes=yes)
        new_files.end_command(places)
    if not no_start:
        start_node(places)


def _granted(places: Places, token: Token, identity: NodeIdentity, name: str | None) -> Granted:
    """Redeem the token. If another node has the name of the host, store this node's name for its first start."""
    host = name_of_host(socket.gethostname())
    try:
        return trio.run(redeem, token, identity, name or host)
    except JoinError as error:
        if error.code is not RefusalCode.NAME_TAKEN:
            raise
        if name is not None:
            raise JoinError(f"{error}, and repeat the command with it (--name)") from None
    own = own_end(host, identity.node_id)
    granted = trio.run(redeem, token, identity, own)
    with as_node_user(places):
        note_name(places.state_dir, own)
    return granted


def secret_token(token_file: Path | None) -> str:
    """Return the token from a file, standard input or the prompt; the printed `garlicfarm join TOKEN` is valid too."""
    if token_file is not None and str(token_file) != "-":
        text = read_private_file(token_file)
    elif token_file is None and sys.stdin.isatty() and is_terminal():
        text = ask_secret("Token")
    else:
        text = sys.stdin.readline(TOKEN_LIMIT_CHARACTERS + len(join_command("")))
    return text.strip().removeprefix(join_command(""))


def _redeemed(
    places: Places, token: Token, name: str | None, bind: str | None, *, writes: bool
) -> tuple[JoinOutput, dict[Path, SigningKey]]:
    """Redeem the token, and write the granted files unless an earlier run has written them."""
    new_files.make_state(places)
    own = new_files.own_settings(name, bind)
    if bind is None and all(is_loopback(each.host) for each in token.places):
        # The farm is on this machine, and its nodes may use the default ports.
        own = new_files.merged(own, loopback_settings())
    if writes:
        new_files.check_own_settings(places, own)
    with as_node_user(places):
        identity = load_identity(places.state_dir)
    granted = _granted(places, token, identity, name)
    farm_key, shared = parse_bundle(granted.bundle)
    keys = [parse_signing_key(each) for each in granted.signing_keys]
    settings, files = new_files.with_signing_keys(places.directory, new_files.merged(own, shared), keys)
    if writes:
        new_files.write_files(places, "join", farm_key, new_files.configuration_text(places, settings), files)
    signing = tuple(map(str, files))
    places_of_files = str(places.configuration), str(places.farm_key)
    return JoinOutput(*places_of_files, farm_key.label.hex(), granted.inviter, signing), files
