"""The common parts of pipeline commands: options about Spark, a line that shows progress, plain errors."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bridge.cli.options import IntegerRange as IntegerRange  # noqa: PLC0414 - for all commands of the pipeline
from bridge.cli.options import NumberRange as NumberRange  # noqa: PLC0414 - as above
from bridge.cli.options import SummaryGroup as SummaryGroup  # noqa: PLC0414 - as above
from bridge.cli.options import file_path as file_path  # noqa: PLC0414 - as above
from bridge.cli.options import write_user_file
from pipeline.cli.places import Farms, LogPlace, Topic
from pipeline.gold.tables import window_ms
from pipeline.output.buckets import HDFS, SCHEME, Output, output_of
from pipeline.run import Progress
from pipeline.serve.metrics import RunMetrics, address
from pipeline.serve.printing import echo, overwrite_line
from pipeline.source.farms import OLDEST, SNAPSHOT
from pipeline.source.log_client import FarmLogError
from pipeline.spark.failures import reason_of
from pipeline.spark.java import NoJavaError
from pipeline.spark.scratch import ScratchError
from pipeline.spark.session import open_session
from pipeline.spark.settings import MASTER, PREFIX, operator_settings, without_jars
from pipeline.spark.versions import VersionError, refuse_unsupported
from pipeline.tables.files import TableDamagedError

LINE_WIDTH = 100
INDEX_DIGITS = 16
"""The maximum number of digits of an index, which is at most 2^53, so that JSON represents it exactly."""
_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[[\d, ]+\]|spark://.+|yarn|k8s://.+")


LOCAL, SPARK = "local", "spark"
LOCAL_ENTRIES_MAX = 2_000_000
"""The number of entries above which Spark reads a range, with all processors."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine chosen on the command line: Spark, or this process."""

    name: str | None
    master: str | None
    conf: tuple[tuple[str, str], ...]
    open_spark: Callable[..., SparkSession] = open_session

    def is_local(self, place: LogPlace, entries: int = 0) -> bool:
        """Return True if this process does the work of Spark. Raise click.UsageError for contradicting options."""
        needs = {"--kafka": isinstance(place, Topic), "--master": self.master, "--conf": self.conf}
        reasons = [option for option, given in needs.items() if given]
        if self.name == LOCAL and reasons:
            raise click.UsageError(f"{reasons[0]} needs Spark, and --engine local does not use it: choose one")
        if self.name is not None:
            return self.name == LOCAL
        # A master in Spark's settings, or spark-submit, selects Spark.
        is_set_up = "spark.master" in operator_settings(os.environ) or "PYSPARK_GATEWAY_PORT" in os.environ
        return not (reasons or is_set_up or isinstance(place, Farms) or entries > LOCAL_ENTRIES_MAX)

    def writing(self, output: Output, place: LogPlace) -> "Engine":
        """Return the engine that writes to `output`: for a bucket the local engine, unless Spark is chosen.

        Raise click.UsageError if the engine cannot write there.
        """
        if isinstance(output, Path):
            return self
        if isinstance(place, Topic):
            raise click.UsageError(f"--kafka needs a local or shared directory, and --output is {output}")
        return self if self.name or self.master or self.conf else replace(self, name=LOCAL)

    def fetched(self, place: LogPlace) -> list[str]:
        """Return the Maven coordinates of jars that Spark fetches for a place."""
        return without_jars(operator_settings(os.environ, self.conf), place.packages())

    def opened(self, place: LogPlace, entries: int = 0) -> AbstractContextManager[SparkSession | None]:
        """Open Spark's session; yield None if this process does the work. Raise FarmLogError, NoJavaError."""
        return nullcontext() if self.is_local(place, entries) else self.spark(place)

    def spark(self, place: LogPlace) -> SparkSession:
        """Open Spark's session. Raise FarmLogError, NoJavaError."""
        packages = place.packages()
        try:
            return self.open_spark(self.master, self.conf, packages=packages)
        except PySparkException as error:
            # The JVM fetches packages first, and ends if it cannot fetch them.
            if packages and error.getCondition() == "JAVA_GATEWAY_EXITED":
                raise FarmLogError(
                    f"Spark did not start with {', '.join(packages)}: if this machine cannot reach Maven's repository,"
                    " copy the jar and its dependencies to this machine, and name them with --conf spark.jars=FILE,FILE"
                ) from error
            raise


def a_window(_: click.Context, __: click.Parameter, value: str) -> str:
    """Check the width of windows before a JVM is started."""
    try:
        window_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def an_address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Check an address for metrics before a JVM is started."""
    try:
        return None if value is None else address(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@contextmanager
def serving_metrics(host: str, port: int, notify: Callable[[str], None]) -> Iterator[RunMetrics]:
    """Serve the metrics of a run until its end; raise ClickException if the address is unavailable."""
    metrics = RunMetrics()
    with ExitStack() as held:
        try:
            port = held.enter_context(metrics.serving(host, port))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.ClickException(
                f"cannot listen for metrics on {host}:{port}: {reason}. Choose another --metrics"
            ) from error
        notify(f"Metrics: http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        yield metrics


def a_master(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check the kind of Spark master before a JVM is started, because the JVM's error is several pages long."""
    if value is not None and _MASTER.fullmatch(value) is None:
        kinds = "local[*], local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        raise click.BadParameter(f"{value!r} is not a Spark master: use {kinds}.")
    return value


def settings_of_spark(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Check the form of `--conf` before a JVM is started: Spark would ignore unknown names."""
    found = []
    for value in values:
        name, is_one, setting = value.partition("=")
        if not is_one or not name.startswith(PREFIX) or name == PREFIX:
            raise click.BadParameter(f"{value!r} is not a setting of Spark: write spark.NAME=VALUE.")
        found.append((name, setting))
    return tuple(found)


class OutputType(click.Path):
    """The place of tables: a directory, or `s3://BUCKET/PREFIX` or `hdfs://HOST:PORT/PREFIX` unless `is_local`."""

    def __init__(self, *, is_local: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=False)
        self._is_local = is_local

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a `Path` or a `BucketPath`."""
        if self._is_local and os.fspath(value).startswith((SCHEME, HDFS)):
            self.fail("this command works with Spark, which needs a local or shared directory.", param, ctx)
        try:
            found = output_of(os.fspath(value))
            if isinstance(found, Path):
                return super().convert(value, param, ctx)
            refuse_unsupported(found.scheme)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        except VersionError as error:
            raise click.ClickException(str(error)) from error
        return found


def output_option(
    meaning: str, *, is_required: bool = False, is_local: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option `--output` of commands about the tables of a run."""
    return click.option(
        "--output",
        default=None if is_required else "farm-tables",
        show_default=True,
        required=is_required,
        type=OutputType(is_local=is_local),
        metavar="DIRECTORY" if is_local else "DIRECTORY|s3://BUCKET/PREFIX|hdfs://…",
        help=meaning,
    )


tables_option = output_option("Place of the tables.")
"""The option of commands that read existing tables."""


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options about Spark itself; the command gets them as `spark`, which opens the session."""

    @click.option(
        "--master",
        metavar="URL",
        callback=a_master,
        help=f"The Spark master. Default: {MASTER}, or spark.master of spark-defaults.conf.",
    )
    @click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=settings_of_spark,
        help="A setting of Spark, as for spark-submit; may be given several times. It overrides spark-defaults.conf.",
    )
    @wraps(command)
    def taking(*, master: str | None, conf: tuple[tuple[str, str], ...], **others: Any) -> None:
        command(spark=partial(open_session, master, conf), **others)

    return taking


def engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the choice of the engine, and the options about Spark; the command gets them as `engine`."""

    @click.option(
        "--engine",
        "engine_name",
        type=click.Choice([LOCAL, SPARK]),
        help="The engine: local reads one farm in this process, without Java; spark uses all processors, or a cluster."
        " Both write the same tables and continue each other's directories. Default: local, but spark with --farms,"
        f" --kafka, --master or --conf, and for more than {LOCAL_ENTRIES_MAX:,} entries of a backfill.",
    )
    @spark_options
    @wraps(command)
    def taking(*, engine_name: str | None, spark: partial[SparkSession], **others: Any) -> None:
        master, conf = spark.args
        command(engine=Engine(engine_name, master, conf), **others)

    return taking


class Start(click.ParamType[str]):
    """The place where reading begins: `oldest`, `snapshot`, or an index."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Reject any other value before a JVM is started."""
        text = str(value)
        is_index = text.isascii() and text.isdecimal() and len(text) <= INDEX_DIGITS and int(text) > 0
        if text not in {OLDEST, SNAPSHOT} and not is_index:
            self.fail(f"{text!r} is neither 'oldest' nor 'snapshot' nor an index of the log, from 1 on.", param, ctx)
        return text


class StatusLine:
    """A status line on standard error, overwritten at each change; shown only on a terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._written = 0

    def show(self, text: str) -> None:
        """Show `text` in the line."""
        if self._shows:
            # One column is left free: after a full line, the terminal would begin a new one.
            width = min(LINE_WIDTH, shutil.get_terminal_size().columns - 1)
            overwrite_line(text[:width].ljust(width))
            self._written = width

    def clear(self) -> None:
        """Clear the line."""
        if self._written:
            overwrite_line(" " * self._written)
            overwrite_line("")
            self._written = 0

    def print_line(self, text: str) -> None:
        """Print a permanent text on a separate line."""
        self.clear()
        echo(text, err=True)


class ProgressLine(StatusLine):
    """The progress of a run."""

    def __call__(self, progress: Progress) -> None:
        """Show the current progress."""
        batch = "first batch" if progress.batch < 0 else f"batch {progress.batch} done"
        place = f", entry {progress.read_through}" if progress.read_through else ""
        place += f" of {progress.newest}" if progress.read_through and progress.newest else ""
        place += f", farms not read: {len(progress.problems)}" if progress.problems else ""
        tasks = f", {progress.tasks_done} of {progress.tasks} tasks" if progress.tasks else ""
        self.show(f"{batch}{place}, {progress.entries_per_s:.0f} entries/s{tasks}: {progress.message}")


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named; end the command with the reason of a failure."""
    try:
        write_user_file(path, text)
    except OSError as error:
        raise click.ClickException(f"{path} was not written: {error.strerror or error}; name another file") from error


@contextmanager
def reported_errors(line: StatusLine | None = None, *, endless: bool = False) -> Iterator[None]:
    """Clear `line` at the end of a command; after an error, end the command with the reason.

    Ctrl-C is the normal end of an `endless` command. It aborts any other command, with its work incomplete.
    """
    try:
        try:
            yield
        finally:
            if line is not None:
                line.clear()
    except KeyboardInterrupt as interrupt:
        if endless:
            sys.exit(0)
        raise click.Abort from interrupt
    except (FarmLogError, NoJavaError, ScratchError, TableDamagedError, VersionError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(reason_of(error)) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark refused: {reason_of(error)}") from error
