"""`garlicfarm pipeline …`: handed on to the package `pipeline`, which knows Spark and is an extra of its own.

It is found by name at run time: the base install has no Spark, and no module of the farm may import it.
"""

from importlib import import_module

import click

from bridge import INSTALL_PIPELINE
from bridge.cli.failure import fail

EXTRA_MODULES = frozenset({"pyspark", "pyarrow", "pandas", "numpy", "google", "py4j", "duckdb"})


def load() -> click.Command:
    """The pipeline's own command, or the end of this one with how to install it."""
    try:
        found = import_module("pipeline.cli.commands").pipeline
    except ImportError as error:
        if (error.name or "").partition(".")[0] in EXTRA_MODULES:
            fail(f"the pipeline needs Spark, which is not installed; install it with: {INSTALL_PIPELINE}")
        raise
    if not isinstance(found, click.Command):
        raise TypeError("pipeline.cli.commands:pipeline is not a command")
    return found


def doctor_alone() -> click.Command:
    """The pipeline's doctor under a group of its own, without what it looks for."""
    return click.Group("pipeline", commands={"doctor": import_module("pipeline.cli.doctor").doctor})


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def pipeline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """History and health of the routers, out of the farm's log, on Spark."""
    # The doctor is for the machine on which the rest cannot be loaded.
    command = doctor_alone() if arguments[:1] == ("doctor",) else load()
    with command.make_context("pipeline", list(arguments), parent=context.parent) as inner:
        try:
            command.invoke(inner)
        except click.UsageError as error:
            # An option without its value is told without a context, and would be taken for an error of this command.
            error.ctx = error.ctx or inner
            raise
