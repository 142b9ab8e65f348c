"""Options and kinds of arguments that several commands share. What a command asks a node is in `bridge.cli.asking`."""

from pathlib import Path

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask first.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with the documented keys.")
file_path = click.Path(path_type=Path, dir_okay=False)
directory_path = click.Path(path_type=Path, file_okay=False)
