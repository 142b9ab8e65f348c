"""`garlicfarm recover --from DIR|BACKUP`: a farm that lost the majority of its voters for good goes on with a survivor.

The node of DIR does not run; a BACKUP is for the day on which no directory is left. What it holds becomes a new
cluster, of which it is the only server; all others join it anew. It is the last resort: what only the others had
acknowledged is lost, and a majority that turns out to live after all is another farm from then on. So the command says
what it is going to give up, and asks.
"""

from dataclasses import replace
from pathlib import Path

import click
import trio

from bridge.cli.failure import confirm, fail, failures
from bridge.cli.options import json_option, print_json, yes_option
from bridge.node.key_files import KeyFileError, load_farm_key, replace_farm_key
from bridge.node.recovering import RecoveryError, RecoveryPlan, carry_out, plan_recovery, plan_recovery_of_backup
from bridge.tui.words import printable

REJOIN = (
    "each other router: stop garlicfarm there if it runs, `mv STATE_DIR STATE_DIR.old`, bring the key file that"
    " `garlicfarm keys export FILE` writes on the started node, start it again; it joins as a new server (its name may"
    " stay; a key file inside of STATE_DIR has to be copied back)"
)


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="DIR|BACKUP",
    type=click.Path(path_type=Path, exists=True),
    help="The state directory of a node that survived and does not run; or a backup, if none did.",
)
@click.option(
    "--state-dir",
    "new",
    type=click.Path(path_type=Path, file_okay=False),
    help="With a backup: the state directory of a new router, to be made.",
)
@click.option(
    "--farm-key",
    "key_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The farm key file, in which the new cluster is named in place of the old one.",
)
@yes_option
@json_option
def recover(*, source: Path, new: Path | None, key_file: Path | None, yes: bool, as_json: bool) -> None:
    """Make a new farm of a survivor, when a majority is gone for good.

    Take a state directory if there is one: its log goes further than any backup.
    """
    if as_json and not yes:
        fail("with --json nothing can be asked: add --yes if the other voters are gone for good")
    with failures(RecoveryError, KeyFileError):
        farm_key = None if key_file is None else load_farm_key(key_file)
        plan = _plan(source, new)
        if not yes:
            _explain(plan)
            confirm("Are they gone for good, and shall this node go on without them?", yes=False)
        trio.run(carry_out, plan)
        if key_file is not None and farm_key is not None:
            replace_farm_key(key_file, replace(farm_key, cluster_id=plan.new_cluster_id))
    if as_json:
        print_json({"schema": 1, "recovered": True, **_facts(plan)})
        return
    click.echo(
        f"A new cluster, {plan.new_cluster_id.hex()}; start the node of {plan.state_dir}, and it leads it alone."
    )
    if plan.aside is None:
        click.echo("It is a new router: give it the current farm key file, its signing key and its leaves.")
    else:
        click.echo(f"The old storage was kept as {plan.aside}.")
    if key_file is not None:
        click.echo(f"{key_file} names the new cluster.")
    click.echo(f"Then, {REJOIN}.")


def _plan(source: Path, new: Path | None) -> RecoveryPlan:
    if source.is_dir():
        if new is not None:
            fail("--state-dir goes with a backup; a state directory becomes the new farm where it is")
        return trio.run(plan_recovery, source.absolute())
    if new is None:
        fail(f"{source} is a file: if it is a backup, say with --state-dir where a new router's state is to be made")
    return trio.run(plan_recovery_of_backup, source, new.absolute())


def _explain(plan: RecoveryPlan) -> None:
    survivor = plan.survivor
    others = ", ".join(printable(each) for each in plan.left_behind) or "nobody"
    click.echo(f"{survivor.source} is of cluster {survivor.cluster_id.hex()}.")
    click.echo(f"Its log ends at entry {survivor.last.index} of term {survivor.last.term}; all of it is kept.")
    click.echo(f"Left behind: {others}. What only they had acknowledged is lost, and they can never come back as they")
    click.echo("were. If a majority of them lives, start those instead.")


def _facts(plan: RecoveryPlan) -> dict[str, object]:
    survivor = plan.survivor
    return {
        "stateDirectory": str(plan.state_dir),
        "oldClusterId": survivor.cluster_id.hex(),
        "newClusterId": plan.new_cluster_id.hex(),
        "nodeId": plan.node_id.hex(),
        "lastIndex": survivor.last.index,
        "lastTerm": survivor.last.term,
        "leftBehind": list(plan.left_behind),
        "oldStorage": None if plan.aside is None else str(plan.aside),
        "rejoin": REJOIN,
    }
