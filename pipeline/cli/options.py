"""What the pipeline's commands share: where the log is read, a line that shows progress, and errors in plain words."""

import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipeline.feedback.client_key import ClientKeyError, load_client_key
from pipeline.feedback.farms import FarmsFile, OneReach, Reach, Reaches
from pipeline.feedback.submitting import NodeSubmission
from pipeline.gold.tables import window_ms
from pipeline.run import Progress
from pipeline.serve.metrics import RunMetrics, address
from pipeline.serve.printing import echo, overwrite_line
from pipeline.source.endpoint import TCP_SCHEME, CredentialError, load_credentials
from pipeline.source.farm import DEFAULT_PAGE_SIZE
from pipeline.source.farms import OLDEST, SNAPSHOT, ManyFarms
from pipeline.source.kafka import SERVERS, connector
from pipeline.source.log_client import FarmLog, FarmLogError, first_without_gap
from pipeline.source.stored_log import StoredLog
from pipeline.spark.failures import reason_of
from pipeline.spark.java import NoJavaError
from pipeline.spark.scratch import ScratchError
from pipeline.spark.session import open_session
from pipeline.spark.settings import MASTER, PREFIX
from pipeline.tables.files import TableDamagedError

CONTROL_SOCKET = "control.sock"
LINE_WIDTH = 100
INDEX_DIGITS = 16
"""An index is at most 2^53, as JSON has it exactly."""
_MASTER = re.compile(r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[[\d, ]+\]|spark://.+|yarn|k8s://.+")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log is read, as the options of a command say it."""

    nodes: tuple[str, ...]
    directory: Path | None
    token_file: Path | None
    certificate: Path | None
    committed_through: int | None = None
    farms: Path | None = None
    kafka: str | None = None
    kafka_settings: tuple[tuple[str, str], ...] = ()

    @property
    def follows_one_farm(self) -> bool:
        """Whether it is one farm that runs, to whose control endpoint factors can be submitted."""
        return self.directory is None and self.farms is None and self.kafka is None

    def packages(self) -> tuple[str, ...]:
        """The Maven coordinates of what Spark needs beside what PySpark brings."""
        return () if self.kafka is None else (connector(),)

    def options(self) -> dict[str, str]:
        """Options of the source `farm`. Raises FarmLogError when no node answers, before a JVM is started."""
        if self.kafka is not None:
            others = (self.nodes, self.directory, self.farms, self.token_file, self.certificate, self.committed_through)
            if any(others):
                raise FarmLogError("--kafka reads the farm's topic: the other places are not read as well, choose one")
            return {SERVERS: self.kafka, **dict(self.kafka_settings)}
        if self.kafka_settings:
            raise FarmLogError("--kafka-option is about a topic: name its broker with --kafka, or leave the option out")
        if self.farms is not None:
            if self.nodes or self.directory or self.token_file or self.certificate or self.committed_through:
                raise FarmLogError(
                    f"--farms names all places itself: say the other options of each farm in {self.farms}"
                )
            ManyFarms(self.farms, DEFAULT_PAGE_SIZE)
            return {"farms": str(self.farms.resolve()), "start": OLDEST}
        if self.directory is not None:
            if self.nodes:
                raise FarmLogError("--node and --directory are two places: choose one")
            return self._stored(self.directory)
        return self._running()

    def refuse_outside(self, first: int, last: int) -> None:
        """Raises FarmLogError when the log does not have all entries from `first` to `last`."""
        if self.kafka is not None:
            raise FarmLogError("a part of a log is read with --node or --directory, not with --kafka")
        if self.farms is not None:
            raise FarmLogError("a part of a log is of one farm: name it with --node or --directory, not with --farms")
        if self.directory is not None:
            oldest, newest = StoredLog(self.directory, self.committed_through).bounds()
        else:
            found = FarmLog(self._addresses(), load_credentials(self.token_file, self.certificate)).statuses()
            oldest, newest = first_without_gap(found), max(status.commit_index for status in found)
        if last > newest:
            raise FarmLogError(
                f"entries up to {last} are wanted and the log is known to be committed up to {newest} only; choose an"
                " earlier --to, or wait"
            )
        if first < oldest:
            raise FarmLogError(
                f"entries from {first} on are wanted and the oldest that is left is {oldest}; choose a later --from, or"
                " read an older copy of a state directory (--directory)"
            )

    def reaches(self, client_key: Path | None, tell: Callable[[str], None]) -> Reaches:
        """Where factors are submitted: to the nodes that are read. Raises FarmLogError when there are none."""
        if self.kafka is not None:
            raise FarmLogError("--submit needs a control endpoint: read with --node, not with --kafka")
        if self.directory is not None:
            raise FarmLogError("--submit needs a farm that runs: a --directory is read only")
        if self.farms is not None:
            if client_key is not None:
                raise FarmLogError(f"--client-key is of one farm: say `client_key` of each farm in {self.farms}")
            return FarmsFile(self.farms, tell)
        try:
            addresses, credentials = self._addresses(), load_credentials(self.token_file, self.certificate)
            key = None if client_key is None else load_client_key(client_key)
        except (CredentialError, ClientKeyError) as error:
            raise FarmLogError(str(error)) from error
        cluster = FarmLog(addresses, credentials).status().cluster
        return OneReach(Reach(NodeSubmission(addresses, credentials, cluster, key), self.options()))

    def _running(self) -> dict[str, str]:
        if self.committed_through is not None:
            raise FarmLogError("--committed-through is about a --directory: running nodes know what is committed")
        addresses = self._addresses()
        try:
            credentials = load_credentials(self.token_file, self.certificate)
        except CredentialError as error:
            raise FarmLogError(str(error)) from error
        FarmLog(addresses, credentials).status()
        found = {"node": ",".join(addresses)}
        if self.token_file is not None:
            found["tokenFile"] = str(self.token_file.resolve())
        if self.certificate is not None:
            found["certificate"] = str(self.certificate.resolve())
        return found

    def _stored(self, directory: Path) -> dict[str, str]:
        first, committed = StoredLog(directory, self.committed_through).bounds()
        if committed < first - 1 or not committed:
            raise FarmLogError(
                f"of the log in {directory} nothing is known to be committed: a node notes it in committed.json, every"
                " half minute and when it stops. Wait for that; or, where the note is lost and you know that the farm"
                " was stopped in order, say how far with --committed-through (`garlicfarm log verify` tells its end)",
            )
        found = {"directory": str(directory.resolve())}
        if self.committed_through is not None:
            found["committedThrough"] = str(self.committed_through)
        return found

    def _addresses(self) -> tuple[str, ...]:
        if not self.nodes:
            found = sorted(Path("farm-state").glob(f"*/{CONTROL_SOCKET}"))
            if not found:
                raise FarmLogError(
                    "no farm found below ./farm-state; start one (`garlicfarm up --servers 3`)"
                    " or name a node's control socket with --node",
                )
            return tuple(str(path.resolve()) for path in found)
        return tuple(_address(node) for node in self.nodes)


def opened(spark: Callable[..., SparkSession], place: LogPlace) -> SparkSession:
    """The session, with what the place needs. Raises FarmLogError when Spark cannot have it."""
    packages = place.packages()
    try:
        return spark(packages=packages)
    except PySparkException as error:
        # The JVM fetches packages before anything else, and ends if it cannot.
        if packages and error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise FarmLogError(
                f"Spark did not start with {', '.join(packages)}: if Maven's repository cannot be reached from here,"
                " put the jar and those that it needs on this machine, and name them with --conf spark.jars=FILE,FILE"
            ) from error
        raise


def traces_of(source: dict[str, str], files: str | None) -> dict[str, str] | None:
    """Options of the source `farm_events`: files, or the nodes of these options of `farm`; None for a directory."""
    if files is not None:
        # By their whole path: the checkpoint knows them by that name, wherever the next run is started.
        return {"files": ",".join(str(Path(part.strip()).absolute()) for part in files.split(",") if part.strip())}
    if "node" not in source:
        return None
    return {name: source[name] for name in ("node", "tokenFile", "certificate") if name in source}


def _address(node: str) -> str:
    if node.startswith(f"{TCP_SCHEME}://"):
        return node
    path = Path(node)
    return str((path / CONTROL_SOCKET if path.is_dir() else path).resolve())


def a_window(_: click.Context, __: click.Parameter, value: str) -> str:
    """Check the width of windows before a JVM is started."""
    try:
        window_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def an_address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Check an address at which metrics are served before a JVM is started."""
    try:
        return None if value is None else address(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@contextmanager
def serving_metrics(host: str, port: int, tell: Callable[[str], None]) -> Iterator[RunMetrics]:
    """The metrics of a run, served until its end; ends the command plainly where the address cannot be had."""
    metrics = RunMetrics()
    with ExitStack() as held:
        try:
            port = held.enter_context(metrics.serving(host, port))
        except OSError as error:
            raise click.ClickException(
                f"cannot listen for metrics on {host}:{port}: {error.strerror or error}. Choose another --metrics"
            ) from error
        tell(f"Metrics: http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        yield metrics


def a_master(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check the kind of Spark master before a JVM is started, which would answer with pages of text."""
    if value is not None and _MASTER.fullmatch(value) is None:
        kinds = "local[*], local[N], spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
        raise click.BadParameter(f"{value!r} is no Spark master: say {kinds}.")
    return value


def settings_of_spark(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Check the form of `--conf` before a JVM is started, which would pass over what it does not know."""
    found = []
    for value in values:
        name, is_one, setting = value.partition("=")
        if not is_one or not name.startswith(PREFIX) or name == PREFIX:
            raise click.BadParameter(f"{value!r} is no setting of Spark: say spark.NAME=VALUE.")
        found.append((name, setting))
    return tuple(found)


def options_of_kafka(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Check the form of `--kafka-option` before a JVM is started."""
    found = [value.partition("=") for value in values]
    for name, is_one, _value in found:
        if not is_one or not name:
            raise click.BadParameter(f"{name!r} is no option of Spark's connector: say NAME=VALUE.")
    return tuple((name, value) for name, _is, value in found)


def output_option(told: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The option `--output` of commands about a run's directory."""
    return click.option(
        "--output",
        default="farm-tables",
        show_default=True,
        type=click.Path(path_type=Path, file_okay=False),
        help=told,
    )


tables_option = output_option("Directory of the tables.")
"""Of commands that find tables there."""


def spark_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options about Spark itself; the command gets them as `spark`, which opens the session."""

    @click.option(
        "--master",
        callback=a_master,
        help=f"The Spark master. Default: {MASTER}, or spark.master of spark-defaults.conf.",
    )
    @click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=settings_of_spark,
        help="A setting of Spark, as spark-submit takes it; may be given several times. It replaces what"
        " spark-defaults.conf says.",
    )
    @wraps(command)
    def taking(*, master: str | None, conf: tuple[tuple[str, str], ...], **others: Any) -> None:
        command(spark=partial(open_session, master, conf), **others)

    return taking


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say where the log is read; the command gets them as `place`."""

    @click.option(
        "--node",
        "nodes",
        multiple=True,
        metavar="ADDRESS",
        help="A node's control socket, its state directory, or https://HOST:PORT; may be given several times: any that"
        " answers is read. Default: every node below ./farm-state.",
    )
    @click.option(
        "--directory",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Read the log in this state directory (or a copy of one) instead; its node need not run.",
    )
    @click.option(
        "--token-file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="For https: the node's control.read.token; to submit factors as well, its control.admin.token.",
    )
    @click.option(
        "--certificate",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="For https: the control.crt of the nodes, one after the other in one file.",
    )
    @click.option(
        "--committed-through",
        type=click.IntRange(min=1),
        metavar="INDEX",
        help="With --directory: entries up to INDEX are committed, where the node's own note (committed.json) is lost.",
    )
    @click.option(
        "--farms",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="A TOML or JSON file that names several farms, to be read into the same tables. It is read again when it"
        " changes, so that farms join and leave.",
    )
    @click.option(
        "--kafka",
        metavar="HOST:PORT,…",
        help="Read the farm's Kafka topic instead, by Spark's own connector, which Spark fetches from Maven's"
        " repository once.",
    )
    @click.option(
        "--kafka-option",
        "kafka_settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=options_of_kafka,
        help="With --kafka: an option of the connector, such as subscribe=TOPIC or"
        " kafka.security.protocol=SASL_SSL; may be given several times.",
    )
    @wraps(command)
    def taking(
        *,
        nodes: tuple[str, ...],
        directory: Path | None,
        token_file: Path | None,
        certificate: Path | None,
        committed_through: int | None,
        farms: Path | None,
        kafka: str | None,
        kafka_settings: tuple[tuple[str, str], ...],
        **others: Any,
    ) -> None:
        place = LogPlace(nodes, directory, token_file, certificate, committed_through, farms, kafka, kafka_settings)
        command(place=place, **others)

    return taking


class Start(click.ParamType[str]):
    """Where reading begins: `oldest`, `snapshot`, or an index."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuses anything else before a JVM is started."""
        text = str(value)
        is_index = text.isascii() and text.isdecimal() and len(text) <= INDEX_DIGITS and int(text) > 0
        if text not in {OLDEST, SNAPSHOT} and not is_index:
            self.fail(f"{text!r} is neither 'oldest' nor 'snapshot' nor an index of the log, from 1 on.", param, ctx)
        return text


class Finite(click.FloatRange):
    """A number within a range; not NaN, which every range lets through, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no number to count with.", param, ctx)
        return number


class StatusLine:
    """One line on standard error that is overwritten again and again; nothing if that is no terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()
        self._written = 0

    def show(self, text: str) -> None:
        """The line says `text` from now on."""
        if self._shows:
            # One column less than there are, or the terminal begins a new line.
            width = min(LINE_WIDTH, shutil.get_terminal_size().columns - 1)
            overwrite_line(text[:width].ljust(width))
            self._written = width

    def clear(self) -> None:
        """The line is gone."""
        if self._written:
            overwrite_line(" " * self._written)
            overwrite_line("")
            self._written = 0

    def tell(self, text: str) -> None:
        """Says something that stays, on a line of its own."""
        self.clear()
        echo(text, err=True)


class ProgressLine(StatusLine):
    """How far a run is."""

    def __call__(self, progress: Progress) -> None:
        """Shows one state of it."""
        batch = "first batch" if progress.batch < 0 else f"batch {progress.batch} done"
        place = f", entry {progress.read_through}" if progress.read_through else ""
        place += f" of {progress.newest}" if progress.read_through and progress.newest else ""
        place += f", {len(progress.problems)} farms not read" if progress.problems else ""
        tasks = f", {progress.tasks_done} of {progress.tasks} tasks" if progress.tasks else ""
        self.show(f"{batch}{place}, {progress.entries_per_s:.0f} entries/s{tasks}: {progress.message}")


@contextmanager
def told_plainly(line: StatusLine | None = None, *, endless: bool = False) -> Iterator[None]:
    """Turns what can go wrong into the end of the command with the reason.

    An `endless` command ends by Ctrl-C. Any other is cut off by it, and has not done what it should.
    `line` is removed from the screen first.
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
    except (FarmLogError, NoJavaError, ScratchError, TableDamagedError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(reason_of(str(error))) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark refused: {reason_of(str(error))}") from error
