"""`garlicfarm init`: the first machine of a new farm.

    farm key, configuration, state ──▶ an invitation for the other founders ──▶ the node starts
                                              └──▶ one line: garlicfarm join TOKEN

The invitation is made before the node starts, so that the line is shown first. The running node opens its port.
"""

from functools import partial
from typing import Final

import click

from bridge.api.outputs import InitOutput
from bridge.cli.failure import failures
from bridge.cli.founding.new_files import (
    configuration_text,
    make_directories,
    merged,
    own_settings,
    refuse_existing,
    write_files,
)
from bridge.cli.founding.starting import give_to_node, start_node
from bridge.cli.founding.token_screen import join_command, print_token
from bridge.cli.options import json_option
from bridge.cli.printing import echo, print_json
from bridge.cli.run import loaded_when_addressed
from bridge.node.inviting.invitations import (
    FILE_NAME,
    LIFETIME_DEFAULT_S,
    LIFETIME_LIMIT_S,
    Invitations,
    UnusableInvitationsError,
)
from bridge.node.inviting.inviting import NotInvitingError, create_invitation
from bridge.node.inviting.listener import DIRECTORY
from bridge.node.security.key_files import KeyFileError
from bridge.node.security.local_trust import UntrustedPathError
from bridge.node.settings.configuration import ConfigurationError, NodeConfiguration, load_configuration
from bridge.node.settings.places import Places, node_places
from bridge.wire.keys.farm_key import EXPECT_LIMIT, FarmKeyError, new_farm_key
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
    type=click.IntRange(1, EXPECT_LIMIT),
    help="Number of machines that create the farm, this one included.",
)
@click.option("--name", help="The name of this node (default: the host's name).")
@click.option("--bind", metavar="HOST:PORT", help="The address of gossip, if the default is wrong.")
@click.option(
    "--minutes",
    default=LIFETIME_DEFAULT_S // 60,
    show_default=True,
    type=click.IntRange(1, LIFETIME_LIMIT_S // 60),
    help="Lifetime of the invitation.",
)
@click.option("--no-start", is_flag=True, help="Only write the files.")
@click.option("--no-qr", is_flag=True, help="Do not print a QR code.")
@json_option
def init(
    *, expect: int, name: str | None, bind: str | None, minutes: int, no_start: bool, no_qr: bool, as_json: bool
) -> None:
    """Make a new farm with this machine, and print the command for the other machines.

    It writes the farm key and the configuration, and starts the node: the service of the Debian package if root runs
    the command there, otherwise a node in this terminal. Existing files are never overwritten. --json only writes.
    """
    places = node_places()
    with failures(*WRONG):
        refuse_existing(places)
        farm_key = new_farm_key(expect)
        make_directories(places)
        write_files(places, farm_key, configuration_text(places, merged(own_settings(name, bind), {})), {})
        configuration = loaded_when_addressed(partial(load_configuration, places.configuration))
        token = _token(places, configuration, expect - 1, minutes * 60) if expect > 1 else None
    if as_json:
        command = None if token is None else join_command(token)
        print_json(InitOutput(str(places.configuration), str(places.farm_key), farm_key.label.hex(), command))
        return
    _print_facts(places, configuration)
    if token is not None:
        print_token(token, expect - 1, minutes * 60, qr=not no_qr)
    if not no_start:
        start_node(places)


def _token(places: Places, configuration: NodeConfiguration, uses: int, lifetime_s: int) -> Token:
    _, token = create_invitation(configuration, Invitations(configuration.state_dir), uses, lifetime_s)
    give_to_node(places, *(configuration.state_dir / each for each in (FILE_NAME, DIRECTORY)))
    return token


def _print_facts(places: Places, configuration: NodeConfiguration) -> None:
    at = "" if configuration.gossip is None else f" at {endpoint(configuration.gossip.bind)}"
    echo(f"{configuration.name}{at}: {places.configuration} and {places.farm_key} are written.", err=True)
