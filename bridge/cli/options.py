"""Options and kinds of arguments that several commands share. `bridge.cli.node_queries` queries nodes."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import click

yes_option = click.option("--yes", is_flag=True, help="Do not prompt.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with the documented keys.")


def output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--json` and `-w`, as other tools for clusters call it; it gets `as_json`."""

    @click.option(
        "-w",
        "--output",
        type=click.Choice(("table", "json")),
        default="table",
        show_default=True,
        help="Output format; json is the same as --json.",
    )
    @json_option
    @wraps(command)
    def with_output(*arguments: object, output: str, as_json: bool, **others: object) -> None:
        command(*arguments, as_json=as_json or output == "json", **others)

    return with_output


wide_option = click.option(
    "--wide", is_flag=True, help="Print the full table, even on a terminal that is narrower than its rows."
)
file_path = click.Path(path_type=Path, dir_okay=False)
directory_path = click.Path(path_type=Path, file_okay=False)
