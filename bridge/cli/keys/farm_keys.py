"""`garlicfarm keys`: make the farm key, the shared secret of a farm, and change it while the farm runs.

These commands show the keys of gossip only by their ids; `new-farm` and `export` write such keys into a file. The keys
of the farm's destination are made by `bridge.cli.keys.destination_keys`.
"""

import re
import shlex
from functools import partial
from pathlib import Path

import click

from bridge.api.control import FarmKeyState, FarmKeyView, KeysAnswer
from bridge.api.control_routes import (
    KEYS,
    KEYS_EXPORT,
    KEYS_INSTALL,
    KEYS_REMOVE,
    KEYS_REMOVE_CHECK,
    KEYS_REPLACE,
    KEYS_REPLACE_CHECK,
    KEYS_USE,
)
from bridge.api.outputs import (
    CurveKeyOutput,
    KafkaUserOutput,
    KeyExportOutput,
    NewClientOutput,
    NewFarmOutput,
    RotationOutput,
)
from bridge.api.requests import ExportKeysRequest, KeyRequest, ReplaceKeysRequest
from bridge.cli.failure import fail, failures
from bridge.cli.founding.starting import as_reader
from bridge.cli.keys.destination_keys import import_destination, new_destination, offline
from bridge.cli.keys.master import master
from bridge.cli.keys.receive import receive
from bridge.cli.keys.rotation import RotationError, rotate
from bridge.cli.node_queries import (
    call_current,
    call_node,
    confirm_checked,
    node_option,
    nodes_option,
    patient_node_option,
    query_leader,
    query_node,
)
from bridge.cli.options import (
    IntegerRange,
    SummaryGroup,
    file_path,
    json_option,
    timeout_option,
    watchable,
    yes_option,
)
from bridge.cli.printing import echo, echo_whole, end_with_json, print_facts, print_table
from bridge.core.log.fields import NAME, NAME_FORM
from bridge.node.control.client import ControlClient
from bridge.node.raft.client_scopes import CommitScope
from bridge.node.security.key_files import (
    KeyFileError,
    load_curve_key,
    public_path_of,
    read_password,
    replace_farm_key,
    save_client_key,
    save_curve_key,
    save_farm_key,
    write_private_file,
)
from bridge.node.settings.places import node_places
from bridge.wire.keys.client_key import new_client_key
from bridge.wire.keys.curve_key import CurveKey, new_curve_key, to_z85
from bridge.wire.keys.farm_key import DEFAULT_CLUSTER, EXPECT_LIMIT, FarmKeyError, new_farm_key, parse_farm_key
from bridge.wire.keys.scram_text import new_credential, new_password
from bridge.wire.keys.text import KeyTextError
from consensus import counted
from consensus.protocols.kafka import Mechanism

STATES = {
    FarmKeyState.PRIMARY: "in use",
    FarmKeyState.INSTALLED: "installed",
    FarmKeyState.REMOVED: "removed",
}
force_option = click.option(
    "--force",
    is_flag=True,
    help="Continue even if members are down or do not confirm: they may lose their connection to the farm.",
)


class InOrder(SummaryGroup):
    """Shows its commands in the order of their use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of their definition."""
        del ctx
        return list(self.commands)


@click.group(cls=InOrder)
def keys() -> None:
    """Make the keys of a farm, list them, and change them while it runs."""


@keys.command("new-farm")
@click.option(
    "--expect",
    required=True,
    type=IntegerRange(1, EXPECT_LIMIT),
    help="Number of nodes that create the farm: more than half of all nodes that may take part in its creation.",
)
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Name of the cluster.")
@click.option(
    "--output",
    default="farm.key",
    show_default=True,
    type=file_path,
    help="The new file; it must not exist.",
)
@json_option
def new_farm(*, expect: int, cluster: str, output: Path, as_json: bool) -> None:
    """Make the key file of a new farm."""
    with failures(FarmKeyError, KeyFileError):
        farm_key = new_farm_key(expect, cluster)
        save_farm_key(output, farm_key)
    label = farm_key.label.hex()
    end_with_json(NewFarmOutput(str(output), label, cluster, expect), as_json=as_json)
    founders = counted(expect, "node creates", "nodes create")
    echo(f"{output}: the key of farm {label} ({cluster}), for a farm that {founders}.")
    echo("A node with this file can join the farm. Copy it to each node of the farm, mode 0600, nowhere else.")
    echo(f"Then, on each node:  garlicfarm run --farm-key {shlex.quote(str(output))}")


@keys.command("new-client")
@click.argument("file", type=file_path)
@click.option("--name", required=True, help="Its name in the farm.")
@json_option
def new_client(file: Path, *, name: str, as_json: bool) -> None:
    """Make a client key, which signs the submissions of a program.

    FILE gets mode 0600 and contains the private key; FILE.pub contains the public key, which is not secret. The farm
    refuses the key until an operator admits it.
    """
    with failures(KeyTextError, KeyFileError):
        client = new_client_key(name)
        save_client_key(file, client)
    end_with_json(NewClientOutput(str(file), name, client.public_key), as_json=as_json)
    echo(f"{file}: the client key {name}, public key {client.public_key}.")
    public = shlex.quote(str(public_path_of(file)))
    echo(f"At a node of the farm:  garlicfarm node admit-client {public} --scope weights  (or operator)")


@keys.command("new-curve")
@click.argument("file", type=file_path)
@click.option("--name", required=True, help="Its name in the list of keys.")
@json_option
def new_curve(file: Path, *, name: str, as_json: bool) -> None:
    """Make a key for a ØMQ Raft client.

    FILE gets mode 0600 and contains the secret key. A node serves this client if the printed line is in the file
    `zmq.keys` of the node.
    """
    with failures(KeyTextError, KeyFileError):
        key = new_curve_key(name)
        save_curve_key(file, key)
    _print_curve(file, key, as_json=as_json)


@keys.command("show-curve")
@click.argument("file", type=file_path)
@json_option
def show_curve(file: Path, *, as_json: bool) -> None:
    """Show the public half of a CURVE key: of a client, or of a node (`zmq.key` in its state directory)."""
    with failures(KeyFileError):
        key = load_curve_key(file)
    _print_curve(file, key, as_json=as_json)


def _print_curve(file: Path, key: CurveKey, *, as_json: bool) -> None:
    end_with_json(CurveKeyOutput(str(file), key.name, to_z85(key.public)), as_json=as_json)
    echo_whole(f"{key.name} {to_z85(key.public)}")


@keys.command("kafka-user")
@click.argument("file", type=file_path)
@click.option("--name", required=True, help="The user's name.")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([each.value for each in CommitScope]),
    help="A kind of entries that the user may produce; may be given several times (default: the user only reads).",
)
@click.option(
    "--mechanism",
    default=Mechanism.SCRAM_SHA_512.value,
    show_default=True,
    type=click.Choice([each.value for each in Mechanism]),
    help="How the user's client logs in.",
)
@json_option
def kafka_user(file: Path, *, name: str, scopes: tuple[str, ...], mechanism: str, as_json: bool) -> None:
    """Make the line of a user for the file `kafka.users`, which Kafka listeners read.

    FILE is for the client and contains the user's password, in one line. If it does not exist, the command creates it
    with mode 0600 and a random password. Add the printed line to `kafka.users` of the nodes. The password cannot be
    computed from that line.
    """
    if re.fullmatch(NAME, name) is None:
        fail(f"name {name[:40]!r}: {NAME_FORM}")
    with failures(KeyFileError):
        if not file.exists():
            write_private_file(file, new_password() + "\n")
        credential = new_credential(Mechanism(mechanism), read_password(file))
    line = " ".join((name, credential, *scopes))
    end_with_json(KafkaUserOutput(str(file), name, line), as_json=as_json)
    echo_whole(line)


# Here, because the help shows commands in the order of their use.
keys.add_command(new_destination)
keys.add_command(import_destination)
keys.add_command(offline)
keys.add_command(master)
keys.add_command(receive)


@keys.command("list")
@node_option
@json_option
@watchable
def list_keys(node: str | None, *, as_json: bool) -> None:
    """Show the key ring by key ids, and which members have it."""
    answer = call_current(node, KEYS)
    end_with_json(answer, as_json=as_json)
    print_facts(_facts(answer))
    echo()
    print_table(
        ("KEY", "STATE", "SINCE", "OPENED BY", "SEALED BY", "MISSING"), [_row(each, answer) for each in answer.keys]
    )


def _facts(answer: KeysAnswer) -> list[tuple[str, str]]:
    facts = [
        ("farm", answer.farm),
        ("epoch", str(answer.epoch)),
        ("members", f"{answer.members} run, {answer.members - len(answer.behind) - len(answer.silent)} have this ring"),
    ]
    for name, found in (
        ("differ", answer.behind),
        ("silent", answer.silent),
        ("down", answer.absent),
        ("NOT STORED", answer.unstored or ()),
    ):
        if found:
            facts.append((name, ", ".join(found)))
    if answer.refused:
        facts.append(("REFUSED", "the farm has removed this node's keys: query another node (--node); see the alarms"))
    facts.append(("key file", f"{answer.file}, {_file_state(answer)}"))
    return facts


def _file_state(answer: KeysAnswer) -> str:
    if answer.file_epoch is None:
        return "which cannot be used: the alarm `farm-key-file` (`garlicfarm status`) shows the reason and the action"
    of_file, of_ring = (answer.file_era or 0, answer.file_epoch), (answer.era or 0, answer.epoch)
    if of_file < of_ring:
        return (
            f"of epoch {answer.file_epoch}: out of date: `garlicfarm keys export --replace {shlex.quote(answer.file)}`"
        )
    if of_file > of_ring:
        return f"of epoch {answer.file_epoch}: restart the node to use it"
    return "up to date"


def _row(key: FarmKeyView, answer: KeysAnswer) -> tuple[str, ...]:
    return (
        key.key_id,
        STATES[key.state],
        str(key.since),
        f"{key.opened_by} of {answer.members}",
        f"{key.sealed_by} of {answer.members}",
        ", ".join(key.missing) or "-",
    )


@keys.command()
@node_option
@json_option
def install(node: str | None, *, as_json: bool) -> None:
    """Make a new key, and let every member open datagrams with it.

    The first step of a rotation: the node makes a random key; members do not seal with it yet.
    """
    answer = call_node(node, KEYS_INSTALL)
    end_with_json(answer, as_json=as_json)
    key = answer.key
    echo(f"Key {key} is created and installed, and spreads to all members.")
    echo(f"When `garlicfarm keys list` shows it at all members:  garlicfarm keys use {key}")


@keys.command()
@click.argument("key")
@node_option
@force_option
@json_option
def use(key: str, node: str | None, *, force: bool, as_json: bool) -> None:
    """Make every member seal with KEY.

    KEY is the id of an installed key, from `list`. The previous key still opens datagrams.
    """
    end_with_json(call_node(node, KEYS_USE, KeyRequest(key, force)), as_json=as_json)
    echo(f"Key {key} is in use; the previous key still opens datagrams.")
    echo("When `garlicfarm keys list` shows it in use everywhere:  garlicfarm keys remove OLD_KEY")


@keys.command()
@click.argument("key")
@node_option
@force_option
@yes_option
@json_option
def remove(key: str, node: str | None, *, force: bool, yes: bool, as_json: bool) -> None:
    """Make every member refuse KEY permanently.

    KEY is the id of an installed key that is not in use. A removed key cannot be installed again.
    """
    request, question = KeyRequest(key, force), f"Remove key {key}, so that every member refuses it permanently?"
    confirm_checked(partial(query_node, node), KEYS_REMOVE_CHECK, request, question, yes=yes)
    end_with_json(call_node(node, KEYS_REMOVE, request), as_json=as_json)
    echo(f"Key {key} is removed: a node that has only this one is refused, and raises the alarm key-retired.")


@keys.command("rotate")
@patient_node_option
@timeout_option("timeout_seconds", "Seconds for each step to reach every member.", default_s=60.0)
@force_option
@json_option
def rotate_keys(node: str | None, *, timeout_seconds: float, force: bool, as_json: bool) -> None:
    """Replace the farm's key while it runs.

    This does not protect against a copied key: its holder can read the steps too, and open connections stay open. If
    the key file was copied, use `keys replace`.

    The command installs a new key, uses it, and removes the old key. After each step it waits until every member has
    confirmed it. If interrupted, run it again, on any node.
    """

    def report(line: str) -> None:
        # With --json, standard output is only the document.
        echo(line, err=as_json)

    async def all_steps(client: ControlClient) -> RotationOutput:
        return await rotate(client, report, timeout_seconds, force=force)

    try:
        done = query_node(node, all_steps)
    except RotationError as error:
        fail(str(error))
    end_with_json(done, as_json=as_json)
    echo(f"Done: {counted(done.members, 'member seals', 'members seal')} with key {done.key}, epoch {done.epoch}.")
    echo("If someone has a copy of the old key file, they could read the new key too: run `garlicfarm keys replace`.")
    if done.unstored:
        echo(f"NOT STORED; refused after a restart without the current key file: {', '.join(done.unstored)}")
    else:
        echo(f"The new key is stored at {done.members} of {counted(done.members, 'member')}, and kept over restarts.")
    echo("A node that is new, or was away, needs the current farm key file:")
    echo_whole("  garlicfarm keys export FILE")
    if done.left_out:
        echo(f"Left out: {', '.join(done.left_out)}. With the alarm `key-retired`, such a node needs that file.")


@keys.command("replace")
@nodes_option
@click.option(
    "--force",
    is_flag=True,
    help="Replace the keys even if members would not get one, because their public key is not known.",
)
@yes_option
@json_option
def replace_keys(nodes: tuple[str, ...], *, force: bool, yes: bool, as_json: bool) -> None:
    """Replace all keys because the key file was copied.

    One entry of the log contains a new gossip key, sealed for each member. The members stop accepting all other keys,
    and reopen all their connections. Nodes are not evicted: if a node was stolen, use `garlicfarm node evict`.
    """
    ask, order = partial(query_leader, nodes), ReplaceKeysRequest(force)
    question = "Replace all keys of the farm, and so invalidate the key files on its nodes?"
    confirm_checked(ask, KEYS_REPLACE_CHECK, order, question, yes=yes)
    done = ask(lambda client: client.call(KEYS_REPLACE, order))
    end_with_json(done, as_json=as_json)
    echo(
        f"The farm's keys are replaced (era {done.era}); the new key is sealed for {counted(done.sealed_for, 'node')}."
    )
    if done.away:
        echo(f"Down now; they get the key when they return: {', '.join(done.away)}")
    if done.left_out:
        echo(f"These need the new key file: {', '.join(done.left_out)}")
    echo("On each node, write the new key file over the old one:  garlicfarm keys export --replace FILE")


@keys.command()
@click.argument("file", type=file_path)
@click.option("--replace", is_flag=True, help="Replace FILE, if it is an older key file of the same farm.")
@click.option(
    "--unconfirmed",
    is_flag=True,
    help="Write the keys of the node without a leader's confirmation: another node may have replaced them since.",
)
@node_option
@json_option
def export(file: Path, node: str | None, *, replace: bool, unconfirmed: bool, as_json: bool) -> None:
    """Write the current farm key file.

    FILE gets mode 0600. New nodes need it to join the farm. Nodes that did not run during a rotation also need it.
    """
    text = call_node(node, KEYS_EXPORT, ExportKeysRequest(unconfirmed)).farm_key
    if unconfirmed:
        echo("No leader has confirmed these keys: another node may have replaced them since.", err=True)
    with failures(FarmKeyError, KeyFileError):
        farm_key = parse_farm_key(text)
        if replace and file.exists():
            # The package's unit makes the node's user the owner of the file, but root may run this command.
            replace_farm_key(file, farm_key, reader=as_reader(node_places(), file))
        else:
            save_farm_key(file, farm_key)
    cluster_id = None if farm_key.cluster_id is None else farm_key.cluster_id.hex()
    end_with_json(KeyExportOutput(str(file), farm_key.label.hex(), farm_key.epoch, cluster_id), as_json=as_json)
    echo(f"{file}: the key of farm {farm_key.label.hex()} ({farm_key.cluster}), epoch {farm_key.epoch}.")
    if farm_key.cluster_id is not None:
        echo(f"It names cluster {farm_key.cluster_id.hex()}: a new node with it joins only this cluster.")
    echo("A node with this file can request to join. Copy it to the farm's nodes, mode 0600, nowhere else.")
