"""The entry point of `garlicfarm pipeline`, which the distribution registers in the group `garlicfarm.commands`.

This is a separate module: the base install has this package without Spark, and the overview of all commands loads this
module. So it imports the commands, with Spark, only when one of them runs. Without Spark only the doctor runs, and any
other command reports how to install Spark.
"""

import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder

import click
from click.shell_completion import CompletionItem, ShellComplete

from pipeline import INSTALL
from pipeline.spark.interrupt import terminable
from pipeline.spark.versions import VersionError, refuse_unsupported

_POOL = "ARROW_DEFAULT_MEMORY_POOL"
EXTRA_MODULES = frozenset({"pyspark", "pyarrow", "pandas", "numpy", "google", "py4j", "duckdb"})


def load() -> click.Command:
    """Return the group of all commands. Raises ClickException if Spark or a package is missing or unsupported."""
    try:
        refuse_unsupported()
        save_memory()
        found = import_module("pipeline.cli.commands").pipeline
    except VersionError as error:
        raise click.ClickException(str(error)) from error
    except ImportError as error:
        if (error.name or "").partition(".")[0] in EXTRA_MODULES:
            raise click.ClickException(f"the pipeline needs Spark; install it with: {INSTALL}") from error
        raise
    if not isinstance(found, click.Command):
        raise TypeError("pipeline.cli.commands:pipeline is not a command")
    return found


class _WithoutPandas(MetaPathFinder):
    """Reports that pandas is missing."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for pandas."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname, name=fullname)


def save_memory() -> None:
    """Keep pyarrow from importing pandas, which no command uses, and make pyarrow return unused memory.

    Without pandas a process uses less memory and starts earlier. pyarrow imports pandas with its first array, and only
    once. pyarrow's own allocator keeps more memory than the system's after each batch. `set_memory_pool` would not
    replace that allocator for all functions in C++, such as reading a stream.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    is_chosen = _POOL in os.environ
    os.environ.setdefault(_POOL, "system")
    try:
        import_module("pyarrow").array([0])
    finally:
        sys.meta_path.remove(finder)
        if not is_chosen:
            # Other processes, such as Spark's Python workers, choose for themselves.
            del os.environ[_POOL]


def doctor_alone() -> click.Command:
    """Return a group with only the doctor, which does not need the packages that it checks."""
    return click.Group("pipeline", commands={"doctor": import_module("pipeline.cli.doctor").doctor})


def _offered(context: click.Context, _parameter: object, incomplete: str) -> list[CompletionItem]:
    """Return the completions of a word after `pipeline`; the names of commands and queries without Spark."""
    arguments, found = context.params["arguments"], dict[str, str]()
    if incomplete.startswith("-"):
        pass
    elif arguments == ("query",):
        found = import_module("pipeline.gold.answers").SUBJECTS
    elif not arguments and context.info_name is not None:
        # The main group of `garlicfarm` reads the names of all commands from the reference, without their modules.
        commands_below = getattr(context.find_root().command, "commands_below", None)
        found = {} if commands_below is None else commands_below(context.info_name)
    if found:
        return [CompletionItem(each, help=found[each]) for each in sorted(found) if each.startswith(incomplete)]
    try:
        command = doctor_alone() if arguments[:1] == ("doctor",) else load()
    except click.ClickException:
        command = doctor_alone()
    return ShellComplete(command, {}, "pipeline", "").get_completions([*arguments], incomplete)


class _CompletedCommand(click.Command):
    """A command that offers the options of the commands after it."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of an option."""
        return _offered(ctx, None, incomplete)


@click.command(
    cls=_CompletedCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, shell_complete=_offered)
@click.pass_context
def pipeline(context: click.Context, arguments: tuple[str, ...]) -> None:
    """History and health of the routers, from the farm's log."""
    command = doctor_alone() if arguments[:1] == ("doctor",) else load()
    with terminable(), command.make_context("pipeline", list(arguments), parent=context.parent) as inner:
        try:
            command.invoke(inner)
        except click.UsageError as error:
            # An option without its value raises without a context, and would be reported for the outer command.
            error.ctx = error.ctx or inner
            raise
