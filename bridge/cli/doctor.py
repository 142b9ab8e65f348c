"""`garlicfarm doctor`: looks at this machine before a node does, and says what is missing and what to do.

    ok        as it should be
    warning   a node runs, and something else will not, or not for long
    problem   a node will not start or must not be trusted; the command ends with 1

The checks use the node's own code to read keys and configuration, so that what passes here passes there.
"""

from pathlib import Path

import click

from bridge.api.outputs import Check, CheckResult, DoctorOutput
from bridge.cli.failure import fail
from bridge.cli.options import json_option
from bridge.cli.printing import echo, print_json
from bridge.node.doctor.checks import check_machine
from bridge.node.settings.configuration import Overrides

MARKS = {
    CheckResult.OK: ("ok", "green"),
    CheckResult.WARNING: ("warning", "yellow"),
    CheckResult.PROBLEM: ("problem", "red"),
}


@click.command()
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="The node's configuration file.")
@click.option("--farm-key", type=click.Path(path_type=Path, dir_okay=False), help="The farm's key file.")
@click.option("--state-dir", type=click.Path(path_type=Path, file_okay=False), help="The node's state directory.")
@json_option
def doctor(*, config: Path | None, farm_key: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Check clock, ports, keys, Java, disk: what is missing and what to do."""
    checks = check_machine(config, Overrides(farm_key=farm_key, state_dir=state_dir))
    problems = [check.name for check in checks if check.result is CheckResult.PROBLEM]
    if as_json:
        print_json(DoctorOutput(not problems, tuple(checks)))
    else:
        for check in checks:
            _print(check)
    if problems:
        fail(f"not ready: {', '.join(problems)}")


def _print(check: Check) -> None:
    mark, color = MARKS[check.result]
    echo(f" {check.name:<14} {check.text}", mark=f"{mark:<8}", color=color)
    if check.action:
        echo(f"{'':<24}-> {check.action}")
