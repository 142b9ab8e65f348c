"""`garlicfarm invite`: invitations of further machines, made, listed and revoked at a node of the farm.

invite new      a token, shown once      ──▶ on the other machine: garlicfarm join TOKEN
invite list     uses and end times; never a token
invite revoke   no further machine can redeem it, and waiting machines are not approved; admitted nodes stay
"""

from datetime import UTC, datetime

import click

from bridge.api.control import InvitationView
from bridge.api.control_routes import INVITATIONS, INVITATIONS_NEW, INVITATIONS_REVOKE
from bridge.api.requests import InvitationRequest, RevokeRequest
from bridge.cli.founding.token_screen import minutes_option, print_token
from bridge.cli.help.completion import complete_invitation
from bridge.cli.node_queries import call_node, node_option
from bridge.cli.options import IntegerRange, SummaryGroup, json_option
from bridge.cli.printing import echo, end_with_json, print_table
from bridge.node.inviting.invitations import USES_MAX


@click.group(cls=SummaryGroup)
def invite() -> None:
    """Invite further machines into the farm; list and revoke invitations."""


@invite.command()
@click.option(
    "--uses",
    default=1,
    show_default=True,
    type=IntegerRange(1, USES_MAX),
    help="Number of machines that may redeem it.",
)
@minutes_option
@click.option("--no-qr", is_flag=True, help="Do not print a QR code.")
@node_option
@json_option
def new(node: str | None, *, uses: int, minutes: int, no_qr: bool, as_json: bool) -> None:
    """Print the command for another machine to join. To a pipe it prints only the command."""
    made = call_node(node, INVITATIONS_NEW, InvitationRequest(uses, minutes * 60))
    end_with_json(made, as_json=as_json)
    print_token(made.token, uses, minutes * 60, qr=not no_qr)


@invite.command("list")
@node_option
@json_option
def list_invitations(node: str | None, *, as_json: bool) -> None:
    """List the invitations of a node, and the machines that have redeemed them."""
    found = call_node(node, INVITATIONS)
    end_with_json(found, as_json=as_json)
    print_table(("ID", "STATE", "USED", "ENDS", "REDEEMED BY"), [_row(each) for each in found.invitations])


def _row(each: InvitationView) -> tuple[str, ...]:
    used = f"{len(each.uses)}/{each.uses_max}"
    names = ", ".join(f"{use.name} ({use.id}{', waits' if use.waits else ''})" for use in each.uses)
    return each.id, each.state, used, _minute(each.ends_ms), names


def _minute(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M UTC}"


@invite.command()
@click.argument("invitation", metavar="ID", shell_complete=complete_invitation)
@node_option
@json_option
def revoke(invitation: str, node: str | None, *, as_json: bool) -> None:
    """Revoke an invitation by its id. Admitted machines stay, and waiting machines are not approved."""
    done = call_node(node, INVITATIONS_REVOKE, RevokeRequest(invitation))
    end_with_json(done, as_json=as_json)
    echo(f"The invitation {done.invitation.id} is revoked.")
    for use in done.invitation.uses:
        echo(f"{use.name} ({use.id}) received the farm key. If it is not your machine: garlicfarm node evict {use.id}")
