"""`garlicfarm completion`, and the suggestions of a shell while the user types a command.

    garlicfarm completion bash | zsh | fish     the script that the shell reads at its start; click makes it
    members, servers, leaves, invitations …     from the node that the command would query
    topics of `garlicfarm help`                 from the documents

Each press of the key runs `garlicfarm` once, so a request to a node has half a second. If a node does not answer, or
refuses this user, the command prints nothing: an error would appear in the line that the user types.
"""

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO
from typing import TypeVar

import click
from click.shell_completion import CompletionItem, get_completion_class
from msgspec import Struct

from bridge.api.control import InvitationsAnswer
from bridge.api.control_routes import INVITATIONS, VIEW, Route
from bridge.api.view import FarmView
from bridge.cli.node_queries import find_control_socket
from bridge.cli.printing import echo_whole
from bridge.node.control.client import ControlError, call_blocking

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_GARLICFARM_COMPLETE"
ANSWER_TIMEOUT_S = 0.5
A = TypeVar("A", bound=Struct)
Offered = Iterable[tuple[str, str]]
"""Words, each with a description for shells that show one."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and members in a SHELL. The packages install it.

    \b
    bash   eval "$(garlicfarm completion bash)"      in ~/.bashrc
    zsh    eval "$(garlicfarm completion zsh)"       in ~/.zshrc, after compinit
    fish   garlicfarm completion fish > ~/.config/fish/completions/garlicfarm.fish
    """  # noqa: D301 - the backspace is click's mark of lines that stay as they are
    for line in completion_script(context.find_root().command, shell).splitlines():
        echo_whole(line)


def completion_script(command: click.Command, shell: str) -> str:
    """Return click's script for one of SHELLS."""
    made = get_completion_class(shell)
    if made is None:
        raise LookupError(f"completion is not available in {shell}")
    # click warns on stderr without a recent bash on this machine, but the script may be for another one.
    with redirect_stderr(StringIO()):
        script = made(command, {}, "garlicfarm", VARIABLE).source()
    # Click's script for fish would end the description of a word at its first comma.
    return script.replace('string split "," $completion', 'string split --max 1 "," $completion')


def _from_node(
    route: Route[A], offered: Callable[[A], Offered]
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion with suggestions from a node's document; empty if no node answers in time."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del parameter
        try:
            path = find_control_socket(context.params.get("node"))
            document = call_blocking(path, route, timeout_s=ANSWER_TIMEOUT_S)
        except (ControlError, OSError):
            return []
        found = dict(offered(document))
        return [CompletionItem(word, help=about) for word, about in found.items() if word.startswith(incomplete)]

    return complete


def _members(view: FarmView) -> Offered:
    return [(each.name, each.status.value) for each in view.members]


def _servers(view: FarmView) -> Offered:
    return [
        *((each.name or str(each.raft_id), "voter") for each in view.raft.voters),
        *((each.name or str(each.raft_id), "learner") for each in view.raft.learners),
    ]


def _leaves(view: FarmView) -> Offered:
    return [(leaf.destination, leaf.name or "") for each in view.publishing for leaf in each.entries]


def _masters(view: FarmView) -> Offered:
    return [(each.master, each.publisher_name or "") for each in view.publishing]


def _open_invitations(answer: InvitationsAnswer) -> Offered:
    named = ((each, ", ".join(use.name for use in each.uses)) for each in answer.invitations if each.state != "revoked")
    return [(each.id, f"{each.state}: {names}" if names else each.state) for each, names in named]


complete_member = _from_node(VIEW, _members)
complete_server = _from_node(VIEW, _servers)
complete_leaf = _from_node(VIEW, _leaves)
complete_master = _from_node(VIEW, _masters)
complete_invitation = _from_node(INVITATIONS, _open_invitations)
