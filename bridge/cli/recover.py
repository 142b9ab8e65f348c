"""`garlicfarm recover --from DIR`: a farm that has lost the majority of its voters for good goes on with a survivor.

The node of DIR does not run. What it holds becomes a new cluster, of which it is the only server; all others join it
anew. It is the last resort: what only the others had acknowledged is lost, and a majority that turns out to live after
all is another farm from then on. So the command says what it is going to give up, and asks.
"""

from pathlib import Path

import click
import trio

from bridge.cli.failure import confirm, fail, failures
from bridge.cli.options import json_option, print_json
from bridge.node.recovering import RecoveryError, RecoveryPlan, carry_out, plan_recovery
from bridge.tui.words import printable

REJOIN = (
    "each other router: stop garlicfarm there if it runs, `mv STATE_DIR STATE_DIR.old`, start it again; it joins as a"
    " new server (its name may stay; a key file inside of STATE_DIR has to be copied back)"
)


@click.command()
@click.option(
    "--from",
    "state_dir",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The state directory of a node that survived and does not run.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def recover(*, state_dir: Path, yes: bool, as_json: bool) -> None:
    """Make a new farm of a survivor, when a majority is gone for good."""
    if as_json and not yes:
        fail("with --json nothing can be asked: add --yes if the other voters are gone for good")
    with failures(RecoveryError):
        plan = trio.run(plan_recovery, state_dir.absolute())
        if not yes:
            _explain(plan)
            confirm("Are they gone for good, and shall this node go on without them?", yes=False)
        trio.run(carry_out, plan)
    if as_json:
        print_json({"schema": 1, "recovered": True, **_facts(plan)})
        return
    click.echo(f"A new cluster, {plan.new_cluster_id.hex()}; start the node of {state_dir}, and it leads it alone.")
    click.echo(f"The old storage was kept as {plan.aside}.")
    click.echo(f"Then, {REJOIN}.")


def _explain(plan: RecoveryPlan) -> None:
    survivor = plan.survivor
    others = ", ".join(printable(each) for each in plan.left_behind) or "nobody"
    click.echo(f"{survivor.source} belongs to cluster {survivor.founding.cluster_id.hex()}.")
    click.echo(f"Its log ends at entry {survivor.last.index} of term {survivor.last.term}; all of it is kept.")
    click.echo(f"Left behind: {others}. What only they had acknowledged is lost, and they can never come back as they")
    click.echo("were. If a majority of them lives, start those instead.")


def _facts(plan: RecoveryPlan) -> dict[str, object]:
    survivor = plan.survivor
    return {
        "stateDirectory": str(survivor.source),
        "oldClusterId": survivor.founding.cluster_id.hex(),
        "newClusterId": plan.new_cluster_id.hex(),
        "nodeId": survivor.node_id.hex(),
        "lastIndex": survivor.last.index,
        "lastTerm": survivor.last.term,
        "leftBehind": list(plan.left_behind),
        "oldStorage": str(plan.aside),
        "rejoin": REJOIN,
    }
