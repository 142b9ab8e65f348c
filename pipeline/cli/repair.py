"""`garlicfarm pipeline repair`: find tables that lost rows, and a checkpoint that does not fit, and repair them.

This is a separate module, because the other commands run the pipeline or only read tables. Spark is started only for
records of a topic.
"""

from contextlib import ExitStack
from functools import partial

import click
from pyspark.sql import SparkSession

from pipeline.cli.options import Engine, StatusLine, output_option, reported_errors, spark_options
from pipeline.cli.places import LogPlace, Topic, place_options
from pipeline.lake import alone_in
from pipeline.output.buckets import Output
from pipeline.output.documents import Document
from pipeline.repair.damage import examine
from pipeline.repair.record import stored_notes
from pipeline.repair.repairing import repair as repair_tables
from pipeline.run import LAYOUT_FILE, claim_layout, layout_of
from pipeline.serve.printing import echo
from pipeline.source.farm import FarmDataSource
from pipeline.source.farms import OneFarm, Place, StreamFarms
from pipeline.source.kafka import TopicRanges


@click.command()
@place_options
@spark_options
@output_option("Place of the tables.")
@click.option("--dry-run", is_flag=True, help="Only list the damage. The farm is not read.")
def repair(*, place: LogPlace, spark: partial[SparkSession], output: Output, dry_run: bool) -> None:
    """Read lost entries again, and replace a checkpoint that does not fit the tables.

    Stop the pipeline first. Entries that the farm does not have any more are recorded as gone. --kafka is for tables
    of a topic.
    """
    if any(spark.args) and not isinstance(place, Topic):
        raise click.UsageError("--master and --conf belong to --kafka")
    line = StatusLine()
    with reported_errors(line), ExitStack() as held:
        if not output.is_dir():
            raise click.UsageError(f"{output} does not contain tables: name the --output of a run")
        held.enter_context(alone_in(output, line.print_line))
        layout_of(output, Document(output / LAYOUT_FILE).read())
        if isinstance(place, Topic) and not stored_notes(output).of_topic:
            raise click.UsageError(
                "the tables are not from a topic, which lacks some entries: name the farm with --node, --directory or"
                " --farms"
            )
        found = examine(output)
        for each in found.lines():
            echo(each)
        if not found:
            echo(f"{output} is not damaged.")
        elif not dry_run:
            # An earlier version could not continue what this one writes.
            claim_layout(output)
            repair_tables(output, found, partial(_farms, held, place, spark), echo)
            echo(f"{output} is repaired. Start the pipeline again.")
        else:
            echo("Nothing was changed. Without --dry-run, the lost entries are read again.")


def _farms(held: ExitStack, place: LogPlace, spark: partial[SparkSession]) -> StreamFarms:
    if not isinstance(place, Topic):
        return FarmDataSource(place.options()).farms()
    session = held.enter_context(Engine(None, *spark.args).spark(place))
    return OneFarm(Place(None, TopicRanges(session, place.options())))
