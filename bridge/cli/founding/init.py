"""`garlicfarm init`: the first machine of a new farm.

    farm key, configuration, state ──▶ router, master key ──▶ an invitation for the other founders ──▶ the node starts
                                                                   └──▶ one line: garlicfarm join TOKEN

The invitation is made before the node starts, so that the line is shown first. The running node opens the port for new
nodes.
"""

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final

import click

from bridge.api.outputs import InitOutput
from bridge.cli.failure import failures, interruptible
from bridge.cli.founding import new_files
from bridge.cli.founding.starting import as_node_user, node_farm_key, start_node
from bridge.cli.founding.token_screen import join_command, minutes_option, print_token
from bridge.cli.keys.master import DEFAULT_FILE, make_master, present_s, print_master
from bridge.cli.keys.master import WRONG as MASTER_WRONG
from bridge.cli.options import IntegerRange, file_path, json_option, yes_option
from bridge.cli.printing import ask_yes_or_no, echo, print_json
from bridge.cli.router.attaching import offer_router
from bridge.cli.run import loaded_when_addressed
from bridge.node.inviting.invitations import (
    Invitations,
    UnusableInvitationsError,
)
from bridge.node.inviting.inviting import NotInvitingError, create_invitation
from bridge.node.security.key_files import KeyFileError
from bridge.node.security.local_trust import UntrustedPathError
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, load_configuration
from bridge.node.settings.places import Places, node_places
from bridge.wire.keys.farm_key import EXPECT_LIMIT, FarmKey, FarmKeyError, new_farm_key
from bridge.wire.keys.invitation import InvitationError, Token
from consensus.net import CertificateError
from gossip.node import endpoint

EXPECT_DEFAULT: Final = 3
WRONG: Final = (
    CertificateError,
    ConfigurationError,
    FarmKeyError,
    InvitationError,
    KeyFileError,
    NotInvitingError,
    UntrustedPathError,
    UnusableInvitationsError,
    OSError,
)


@click.command()
@click.option(
    "--expect",
    default=EXPECT_DEFAULT,
    show_default=True,
    type=IntegerRange(1, EXPECT_LIMIT),
    help="Number of machines that create the farm, this one included.",
)
@click.option("--name", help="The name of this node (default: the host's name).")
@click.option("--bind", metavar="HOST:PORT", help="The address of gossip (default: the private address, port 7668).")
@minutes_option
@click.option("--master", type=file_path, help="The master key of the farm's address; a missing file is made.")
@click.option("--no-start", is_flag=True, help="Only write the files.")
@click.option("--no-qr", is_flag=True, help="Do not print a QR code.")
@yes_option
@json_option
def init(
    *,
    expect: int,
    name: str | None,
    bind: str | None,
    minutes: int,
    master: Path | None,
    no_start: bool,
    no_qr: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Make a new farm with this machine, and print the command for the other machines.

    It writes the farm key and the configuration, and starts the node. If root runs it with the Debian package
    installed, the package's service starts; otherwise the node runs in this terminal. Existing files are never
    overwritten. With --json it only writes files.

    At a terminal, or with --yes, it also attaches the I2P router of this machine as `router detect` does. Then it makes
    the address of the farm as `keys master` does. It prompts once for each of the two. After Ctrl-C or Ctrl-D, run the
    same command again to continue; it revokes a token that it has already printed.
    """
    places = node_places()
    with interruptible(lambda: new_files.interrupted_state(places)), new_files.only_run(places):
        with failures(*WRONG):
            present_s()
            if new_files.is_continued(places, "init"):
                farm_key = node_farm_key(places, places.farm_key)
            else:
                farm_key = new_farm_key(expect)
                new_files.make_state(places)
                text = new_files.configuration_text(places, new_files.merged(new_files.own_settings(name, bind), {}))
                new_files.write_files(places, "init", farm_key, text, {})
            configuration = loaded_when_addressed(partial(load_configuration, places.configuration))
            _refuse_other(places, configuration, farm_key, expect, name, bind)
        _print_facts(places, configuration)
        has_router = not as_json and offer_router(places, yes=yes)
        with failures(*WRONG, *MASTER_WRONG):
            _offer_master(places, master, has_router=has_router, yes=yes)
            token = _token(places, configuration, expect - 1, minutes * 60) if expect > 1 else None
        if as_json:
            command = None if token is None else join_command(token)
            new_files.end_command(places)
            print_json(InitOutput(str(places.configuration), str(places.farm_key), farm_key.label.hex(), command))
            return
        if token is not None:
            print_token(token, expect - 1, minutes * 60, qr=not no_qr)
        new_files.end_command(places)
    if not no_start:
        start_node(places)


def _refuse_other(
    places: Places, configuration: NodeConfiguration, farm_key: FarmKey, expect: int, name: str | None, bind: str | None
) -> None:
    """Raise ConfigurationError if an earlier attempt has written other settings."""
    written_bind = None if configuration.gossip is None else endpoint(configuration.gossip.bind)
    change = f"change {places.configuration}"
    for option, written, wanted, remedy in (
        ("--expect", farm_key.expect, expect, f"remove {places.farm_key}"),
        ("--name", configuration.name, name, change),
        ("--bind", written_bind, bind, change),
    ):
        if wanted not in {None, written}:
            raise ConfigurationError(
                f"an earlier `garlicfarm init` has written {option} {written}: repeat it with that, or {remedy} first"
            )


def _offer_master(places: Places, file: Path | None, *, has_router: bool, yes: bool) -> None:
    """Make the farm's address if its file is named, or if the user agrees after a router was attached."""
    if load_configuration(places.configuration).masters:
        return  # An earlier attempt has made it.
    wanted = Path(DEFAULT_FILE).absolute() if file is None else file
    if file is None:
        known = "Use the master key in" if wanted.exists() else "Make the farm's address now, with a master key in"
        if not has_router or not (yes or ask_yes_or_no(f"{known} {wanted}?", default=True)):
            return
    made = make_master(places, wanted)
    with redirect_stdout(sys.stderr):
        print_master(made)


def _token(places: Places, configuration: NodeConfiguration, uses: int, lifetime_s: int) -> Token:
    """Make the only invitation: a token that an earlier attempt may have shown is revoked."""
    with as_node_user(places):
        invitations = Invitations(configuration.state_dir)
        for each in invitations.all:
            invitations.revoke(each.id)
        _, token = create_invitation(configuration, invitations, uses, lifetime_s)
    return token


def _print_facts(places: Places, configuration: NodeConfiguration) -> None:
    at = "" if configuration.gossip is None else f" at {endpoint(configuration.gossip.bind)}"
    echo(f"{configuration.name}{at}: {places.configuration} and {places.farm_key} are written.", err=True)
