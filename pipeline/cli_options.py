"""What the pipeline's commands share: where the log is read, a line that shows progress, and errors told plainly."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.endpoint import TCP_SCHEME, CredentialError, load_credentials
from pipeline.feedback import NodeSubmission
from pipeline.java import NoJavaError
from pipeline.log_client import FarmLog, FarmLogError
from pipeline.run import Progress
from pipeline.stored_log import StoredLog
from pipeline.transforms.windows import window_ms

CONTROL_SOCKET = "control.sock"
LINE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where the log is read, as the options of a command say it."""

    nodes: tuple[str, ...]
    directory: Path | None
    token_file: Path | None
    certificate: Path | None

    def options(self) -> dict[str, str]:
        """Options of the source `farm`. Raises FarmLogError when nobody answers there, before a JVM is started."""
        if self.directory is not None:
            if self.nodes:
                raise FarmLogError("--node and --directory are two places: choose one")
            StoredLog(self.directory)
            return {"directory": str(self.directory.resolve())}
        addresses = self._addresses()
        try:
            credentials = load_credentials(self.token_file, self.certificate)
        except CredentialError as error:
            raise FarmLogError(str(error)) from error
        FarmLog(addresses, credentials).cluster_id()
        found = {"node": ",".join(addresses)}
        if self.token_file is not None:
            found["tokenFile"] = str(self.token_file.resolve())
        if self.certificate is not None:
            found["certificate"] = str(self.certificate.resolve())
        return found

    def submission(self) -> NodeSubmission:
        """Where factors are submitted: to the nodes that are read. Raises FarmLogError when there are none."""
        if self.directory is not None:
            raise FarmLogError("--submit needs a farm that runs: a --directory is read only")
        try:
            return NodeSubmission(self._addresses(), load_credentials(self.token_file, self.certificate))
        except CredentialError as error:
            raise FarmLogError(str(error)) from error

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


def traces_of(source: dict[str, str], files: str | None) -> dict[str, str] | None:
    """Options of the source `farm_events`: files, or the nodes of these options of `farm`; None for a directory."""
    if files is not None:
        return {"files": files}
    if "node" not in source:
        return None
    return {name: source[name] for name in ("node", "tokenFile", "certificate") if name in source}


def _address(node: str) -> str:
    if node.startswith(f"{TCP_SCHEME}://"):
        return node
    path = Path(node)
    return str((path / CONTROL_SOCKET if path.is_dir() else path).resolve())


def a_window(_: click.Context, __: click.Parameter, value: str) -> str:
    """A width of windows that is one, told before a JVM is started."""
    try:
        window_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


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
    @wraps(command)
    def taking(
        *,
        nodes: tuple[str, ...],
        directory: Path | None,
        token_file: Path | None,
        certificate: Path | None,
        **others: Any,
    ) -> None:
        command(place=LogPlace(nodes, directory, token_file, certificate), **others)

    return taking


class StatusLine:
    """One line on standard error that is written over and over; nothing where that is no terminal."""

    def __init__(self) -> None:
        self._shows = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """The line says `text` from now on."""
        if self._shows:
            sys.stderr.write("\r" + text[:LINE_WIDTH].ljust(LINE_WIDTH))
            sys.stderr.flush()

    def clear(self) -> None:
        """The line is gone."""
        if self._shows:
            sys.stderr.write("\r" + " " * LINE_WIDTH + "\r")
            sys.stderr.flush()


class ProgressLine(StatusLine):
    """How far a run is."""

    def __call__(self, progress: Progress) -> None:
        """Shows one state of it."""
        batch = "first batch" if progress.batch < 0 else f"batch {progress.batch} done"
        tasks = f", {progress.tasks_done} of {progress.tasks} tasks" if progress.tasks else ""
        self.show(f"{batch}, {progress.entries_per_s:.0f} entries/s{tasks}: {progress.message}")


@contextmanager
def told_plainly() -> Iterator[None]:
    """Turns what can go wrong into the end of the command with the reason; Ctrl-C just ends it."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(0)
    except (FarmLogError, NoJavaError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(f"Spark refused: {str(error).strip().splitlines()[0]}") from error
