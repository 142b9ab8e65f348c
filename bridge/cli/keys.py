"""`garlicfarm keys new-farm`: the one secret that makes a router a member of a farm."""

from pathlib import Path

import click

from bridge.cli.failure import failures
from bridge.cli.options import json_option, print_json
from bridge.node.key_files import KeyFileError, save_farm_key
from bridge.wire.farm_key import DEFAULT_CLUSTER, EXPECT_LIMIT, FarmKeyError, new_farm_key


@click.group()
def keys() -> None:
    """Make keys."""


@keys.command("new-farm")
@click.option(
    "--expect",
    required=True,
    type=click.IntRange(1, EXPECT_LIMIT),
    help="How many routers found the farm: more than half of all that may ever found.",
)
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="Name of the cluster.")
@click.option(
    "--output",
    default="farm.key",
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The new file; it is never written over another.",
)
@json_option
def new_farm(*, expect: int, cluster: str, output: Path, as_json: bool) -> None:
    """Make the key file of a new farm."""
    with failures(FarmKeyError, KeyFileError):
        farm_key = new_farm_key(expect, cluster)
        save_farm_key(output, farm_key)
    label = farm_key.label.hex()
    if as_json:
        print_json({"schema": 1, "file": str(output), "label": label, "cluster": cluster, "expect": expect})
        return
    click.echo(f"{output}: the key of farm {label} ({cluster}), to be founded by {expect} routers.")
    click.echo("Whoever holds this file can join the farm. Copy it to each of its routers, mode 0600, nowhere else.")
    click.echo(f"Then, on each router:  garlicfarm run --farm-key {output}")
