"""Options and kinds of arguments that several commands share. What a command asks a node is in `bridge.cli.asking`."""

from pathlib import Path

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask first.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with the documented keys.")
wide_option = click.option(
    "--wide", is_flag=True, help="Print the table as it is, also on a terminal that is narrower than its rows."
)
file_path = click.Path(path_type=Path, dir_okay=False)
directory_path = click.Path(path_type=Path, file_okay=False)
