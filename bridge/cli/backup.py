"""`garlicfarm backup` and `restore`: what the farm agreed on, in a file, and a state directory made of it.

A backup holds no hard state, no identity and no key (`bridge.wire.keys.backup`). So a router that is restored from one
is a new router: a new identity, hence a new Raft id and an empty storage, which the farm fills. The file tells it which
farm it belongs to, so that it waits to be admitted and never founds another one.
"""

from pathlib import Path

import click
import trio

from bridge.api.outputs import BackupOutput, RestoreOutput
from bridge.cli.failure import fail, failures
from bridge.cli.options import ask_node, json_option, node_option
from bridge.cli.printing import echo, print_json
from bridge.core.formation.founding import FormationState, Founding
from bridge.node.control.client import ControlClient
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.offline.recovering import RecoveryError, carry_out, plan_recovery_of_backup
from bridge.node.offline.state_reading import StateReadingError, read_directory, read_state
from bridge.node.security.local_trust import UntrustedPathError, make_state_directory
from bridge.wire.keys.backup import Backup, BackupError, decode_backup, encode_backup
from bridge.wire.membership.formation_state import encode_formation_state
from consensus.storage import replace_file, sync_directory

SUFFIX = ".backup"


@click.command()
@click.argument("target", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of a node that does not run (default: ask a running one).",
)
@node_option
@json_option
def backup(target: Path, source: Path | None, node: str | None, *, as_json: bool) -> None:
    """Write down what the farm agreed on, mode 0600. FILE must not exist; in a DIR the file gets a name.

    There is no hard state, identity or key in it: the farm key file and the master key are kept by themselves.
    """
    content = ask_node(node, ControlClient.backup) if source is None else _of_directory(source)
    with failures(BackupError):
        made = decode_backup(content)
    path = target / _name(made) if target.is_dir() else target
    if path.exists():
        fail(f"{path} exists already and is not overwritten: move it away, or choose another name")
    try:
        replace_file(path, content)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")
    head = made.head
    if as_json:
        print_json(BackupOutput(str(path), head.cluster_id.hex(), head.last.index, head.last.term, len(content)))
        return
    echo(f"{path}: cluster {head.cluster_id.hex()} after entry {head.last.index}, {len(content)} bytes.")
    echo("It holds no keys: keep the farm key file, and the master key, by themselves.")


def _of_directory(source: Path) -> bytes:
    with failures(StateReadingError):
        return encode_backup(trio.run(read_directory, source).backup)


def _name(made: Backup) -> str:
    head = made.head
    return f"garlicfarm-{head.cluster or head.cluster_id.hex()[:8]}-{head.last.index}{SUFFIX}"


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path, exists=True))
@click.option("--state-dir", required=True, type=click.Path(path_type=Path, file_okay=False), help="To be made.")
@json_option
def restore(source: Path, state_dir: Path, *, as_json: bool) -> None:
    """Make a new router's state directory out of BACKUP: it joins the farm that is in it, under a new Raft id.

    BACKUP is a file, or the state directory of a node that does not run. The farm must still be there; if it is not,
    `garlicfarm recover` makes a new one of either. So does this command of a backup whose farm was made before farms
    could be verified: its state goes on in a new cluster, of which this router is the first server.
    """
    with failures(StateReadingError):
        farm = trio.run(read_state, source)
    if farm.founding is None:
        _make_anew(source, state_dir, as_json=as_json)
        return
    _make(state_dir, farm.founding)
    if as_json:
        print_json(RestoreOutput(str(state_dir), farm.cluster_id.hex(), farm.last.index))
        return
    echo(f"{state_dir} belongs to cluster {farm.cluster_id.hex()} and to no router yet.")
    echo("Start a node with it and with the current farm key file; it gets a new identity and a new Raft id.")
    echo("If it keeps the name of a router that was lost, at the leader:  garlicfarm node approve NAME")


def _make(state_dir: Path, founding: Founding) -> None:
    """A directory that knows its farm, and nothing else: identity, generation and storage are made at the start."""
    try:
        make_state_directory(state_dir)
        if any(state_dir.iterdir()):
            fail(f"{state_dir} is not empty: name a new directory, a restored router shares nothing with another one")
        replace_file(state_dir / FORMATION_FILE, encode_formation_state(FormationState(known=founding)))
        sync_directory(state_dir)
    except UntrustedPathError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{state_dir} cannot be made: {error.strerror or error}")


def _make_anew(source: Path, state_dir: Path, *, as_json: bool) -> None:
    """Of a farm that nobody can join any more: its state as the first state of a new one."""
    with failures(RecoveryError):
        plan = trio.run(plan_recovery_of_backup, source.absolute(), state_dir.absolute())
        trio.run(carry_out, plan)
    cluster_id, survivor = plan.new_cluster_id.hex(), plan.survivor
    if as_json:
        print_json(RestoreOutput(str(state_dir), cluster_id, survivor.last.index, survivor.cluster_id.hex()))
        return
    echo(f"{source} is of cluster {survivor.cluster_id.hex()}, which was made before farms could be verified.")
    echo(f"{state_dir} goes on with its state, in a new cluster: {cluster_id}. Do this on one router only.")
    echo("Carried over: log time, publications, weights, exclusions, and who was evicted. Left behind: all other")
    echo("servers, which join anew, with empty state directories.")
    echo("Start a node with it and with the farm key file; then, for the others:  garlicfarm keys export FILE")
