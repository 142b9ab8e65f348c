"""The token of an invitation on the terminal: one line to copy, and a QR code if it fits."""

import click

from bridge.cli.link import qr_lines
from bridge.cli.options import IntegerRange
from bridge.cli.printing import echo, echo_whole, is_terminal, print_picture, terminal_columns
from bridge.node.inviting.invitations import LIFETIME_DEFAULT_S, LIFETIME_LIMIT_S
from bridge.wire.keys.invitation import Token
from consensus import counted

minutes_option = click.option(
    "--minutes",
    default=LIFETIME_DEFAULT_S // 60,
    show_default=True,
    type=IntegerRange(1, LIFETIME_LIMIT_S // 60),
    help="Lifetime of the invitation, in minutes.",
)


def join_command(token: Token | str) -> str:
    """Return the command for the new machine."""
    return f"garlicfarm join {token}"


def print_token(token: Token | str, nodes: int, lifetime_s: int, *, qr: bool) -> None:
    """Print the command for the new machines, and its limits. To a pipe it prints only the command."""
    command = join_command(token)
    if not is_terminal():
        echo_whole(command)
        return
    machines = "one other machine" if nodes == 1 else f"each of {nodes} other machines"
    echo(f"On {machines}, within {lifetime_text(lifetime_s)}:")
    echo()
    echo_whole(command)
    echo()
    lines = qr_lines(command) if qr else []
    if lines and len(lines[0]) <= terminal_columns():
        print_picture(lines)
    echo("The token is secret while it is valid, and is not shown again. `garlicfarm invite list` shows its uses.")


def lifetime_text(lifetime_s: int) -> str:
    """Return a lifetime in minutes, hours or days."""
    for size, name in ((86_400, "day"), (3600, "hour"), (60, "minute")):
        count, rest = divmod(lifetime_s, size)
        if count and not rest:
            return counted(count, name)
    return counted(lifetime_s, "second")
