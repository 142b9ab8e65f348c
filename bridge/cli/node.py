"""`garlicfarm node`: the identities of the farm, and an operator's decisions about them.

node list           the identities in the log, and up to 64 that wait for approval
node approve NODE   admit a new node; or give a node's name to its new identity, and retire the old identity
node evict NODE     exclude the identity of a stolen node permanently, and replace all keys
node clients        the client keys of programs, and their rights
node admit-client   allow a client key to submit entries of some scopes
node remove-client  remove a client key
"""

from functools import partial
from pathlib import Path

import click
from msgspec import UNSET

from bridge.api.control_routes import NODES, NODES_APPROVE, NODES_APPROVE_CHECK, NODES_EVICT, NODES_EVICT_CHECK
from bridge.api.outputs import ClientsOutput
from bridge.api.requests import ClientOrder, CommandRequest, NodeRequest
from bridge.api.words import eviction_lines
from bridge.cli.failure import fail, failures
from bridge.cli.help.completion import complete_member
from bridge.cli.node_queries import call_current, confirm_checked, node_option, nodes_option, query_leader
from bridge.cli.options import SummaryGroup, json_option, watchable, yes_option
from bridge.cli.printing import echo, end_with_json, print_table
from bridge.cli.publish import confirm_order, submit_command
from bridge.core.log.records import Scope
from bridge.node.security.key_files import KeyFileError, load_public_client_key


@click.group(cls=SummaryGroup)
def node() -> None:
    """List the identities of the farm; approve a new one; evict one; admit client keys."""


@node.command("list")
@node_option
@json_option
@watchable
def list_nodes(node: str | None, *, as_json: bool) -> None:
    """Show the identities in the log, and up to 64 that wait for approval: id, name, Raft id and status."""
    found = call_current(node, NODES)
    end_with_json(found, as_json=as_json)
    rows = [
        (
            each.id,
            each.name or "-",
            "-" if each.raft_id is None else str(each.raft_id),
            each.standing,
            each.status,
            each.server_role,
        )
        for each in found.nodes
    ]
    print_table(("ID", "NAME", "RAFT ID", "STANDING", "GOSSIP", "SERVER"), rows)
    for each in found.nodes:
        if each.reason:
            echo(f"{each.name}: {each.reason}")
    if found.not_listed:
        echo(f"{found.not_listed} more wait for approval.")


@node.command()
@click.argument("which", metavar="NODE", shell_complete=complete_member)
@nodes_option
@yes_option
@json_option
def approve(which: str, nodes: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Approve a new node, or let a new identity take the name of another identity.

    NODE is the id of the new identity, or its name. If another identity has the name, that identity is retired
    permanently. The leader removes its server, usually after the server of the new identity has become a voter. A
    holder of a copied key file can use any name, so compare the id with `garlicfarm status` on the node itself.
    """
    ask, order = partial(query_leader, nodes), NodeRequest(which)
    question = f"If another identity has the name of {which}, it is permanently retired. Approve {which}?"
    confirm_checked(ask, NODES_APPROVE_CHECK, order, question, yes=yes)
    done = ask(lambda client: client.call(NODES_APPROVE, order))
    end_with_json(done, as_json=as_json)
    echo(f"{done.name} is the identity {done.id} from here on, server {done.raft_id}.")
    if done.retired is not None:
        retired = f"{done.retired.id} (server {done.retired.raft_id})"
        echo(f"The identity {retired} is retired; the group replaces its server.")


@node.command()
@click.argument("which", metavar="NODE", shell_complete=complete_member)
@nodes_option
@click.option("--force", is_flag=True, help="Evict even if no majority remains; or repeat an eviction.")
@yes_option
@json_option
def evict(which: str, nodes: tuple[str, ...], *, force: bool, yes: bool, as_json: bool) -> None:
    """Evict an identity permanently, and replace all keys.

    NODE is an id, or a name. The remaining nodes receive new gossip keys, sealed for each of them. With the old keys,
    a node can no longer read, join or submit. With transport = "i2p" the operator replaces the keys by hand.
    """
    ask, order = partial(query_leader, nodes), NodeRequest(which, force)
    question = f"Evict {which} permanently, and replace all keys of the farm?"
    confirm_checked(ask, NODES_EVICT_CHECK, order, question, yes=yes)
    done = ask(lambda client: client.call(NODES_EVICT, order))
    end_with_json(done, as_json=as_json)
    for line in eviction_lines(done):
        echo(line)


@node.command("clients")
@node_option
@json_option
@watchable
def list_clients(node: str | None, *, as_json: bool) -> None:
    """Show all client keys with their scopes, including removed keys."""
    found = call_current(node, NODES)
    end_with_json(ClientsOutput(found.clients), as_json=as_json)
    rows = [
        (
            each.id,
            each.name,
            " ".join(each.scopes),
            "admitted" if each.admitted else "removed",
            "" if each.admitted_by is UNSET else each.admitted_by,
        )
        for each in found.clients
    ]
    print_table(("ID", "NAME", "SCOPES", "STANDING", "ADMITTED BY"), rows)


@node.command("admit-client")
@click.argument("key", metavar="FILE-OR-KEY")
@click.option("--name", help="Its name in the farm (default: the name in the file).")
@click.option(
    "--scope",
    "scopes",
    required=True,
    multiple=True,
    type=click.Choice([each.value for each in Scope]),
    help="weights: the pipeline's factors. operator: exclude, cost, force, removal, log time. May be given twice.",
)
@node_option
@json_option
def admit_client(key: str, name: str | None, node: str | None, *, scopes: tuple[str, ...], as_json: bool) -> None:
    """Allow a client key to submit entries of these scopes only.

    FILE-OR-KEY is the file FILE.pub of a client key, or its public key in base64 (then with --name). The key file
    itself is accepted, too, but FILE.pub is enough: the command does not use the private key.
    """
    if Path(key).exists():
        with failures(KeyFileError):
            filed_name, key = load_public_client_key(Path(key))
        name = name or filed_name
    if name is None:
        fail(f"{key!r} is not a file; if it is a public key, add --name")
    order = ClientOrder(name, admitted=True, key=key, scopes=tuple(Scope(each) for each in dict.fromkeys(scopes)))
    submit_command(node, CommandRequest(client=order), as_json=as_json)


@node.command("remove-client")
@click.argument("which", metavar="NAME")
@node_option
@yes_option
@json_option
def remove_client(which: str, node: str | None, *, yes: bool, as_json: bool) -> None:
    """Remove a client key, by its name or id: the farm ignores its entries from then on."""
    order = CommandRequest(client=ClientOrder(which, admitted=False))
    confirm_order(
        node,
        order,
        f"Remove the client key {which}, so that the farm ignores entries that it signs from now on?",
        yes=yes,
    )
    submit_command(node, order, as_json=as_json)
