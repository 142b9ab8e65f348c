"""`garlicfarm pipeline repair`: find tables that lost rows, and a checkpoint that does not fit, and repair them.

This is a separate module, because the other commands start Spark or only read tables.
"""

from contextlib import ExitStack

import click

from pipeline.cli.options import StatusLine, output_option, reported_errors
from pipeline.cli.places import LogPlace, Topic, place_options
from pipeline.lake import alone_in
from pipeline.output.buckets import Output
from pipeline.output.documents import Document
from pipeline.repair.damage import examine
from pipeline.repair.repairing import refuse_damaged_watch
from pipeline.repair.repairing import repair as repair_tables
from pipeline.run import LAYOUT_FILE, claim_layout, layout_of
from pipeline.serve.printing import echo
from pipeline.source.farm import FarmDataSource


@click.command()
@place_options
@output_option("Place of the tables.")
@click.option("--dry-run", is_flag=True, help="Only list the damage. The farm is not read.")
def repair(*, place: LogPlace, output: Output, dry_run: bool) -> None:
    """Read lost entries again, and replace a checkpoint that does not fit the tables.

    Stop the pipeline first. Entries that the farm does not have any more are recorded as gone.
    """
    if isinstance(place, Topic):
        raise click.UsageError("entries are read again by index: name the farm with --node, --directory or --farms")
    line = StatusLine()
    with reported_errors(line), ExitStack() as held:
        if not output.is_dir():
            raise click.UsageError(f"{output} does not contain tables: name the --output of a run")
        held.enter_context(alone_in(output, line.print_line))
        layout_of(output, Document(output / LAYOUT_FILE).read())
        refuse_damaged_watch(output)
        found = examine(output)
        for each in found.lines():
            echo(each)
        if not found:
            echo(f"{output} is not damaged.")
        elif not dry_run:
            farms = FarmDataSource(place.options()).farms()
            # An earlier version could not continue what this one writes.
            claim_layout(output)
            repair_tables(output, farms, echo)
            echo(f"{output} is repaired. Start the pipeline again.")
        else:
            echo("Nothing was changed. Without --dry-run, the lost entries are read again.")
