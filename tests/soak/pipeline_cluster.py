"""A real standalone cluster makes the same tables as local mode: one master and two workers, all on loopback.

    python -m tests.soak.pipeline_cluster [--place bucket]

Master and workers come from the pip package. The driver runs here, as `pipeline run --master spark://…` does, and the
executors run in processes of the workers. Their input is pickled and sent through sockets, so a reader that shares
memory with the planner fails only here. All processes are stopped at the end, or after `END_TIMEOUT_S` at the latest.

With `--place bucket` the tables are in a bucket of the test's own S3 server. The executors get its address and key by
`spark.executorEnv`.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from pipeline.output.buckets import BucketPath, Output
from pipeline.spark.java import find_java
from tests.pipeline.s3_server import BUCKET, serving_s3
from tests.processes import END_S, free_ports
from tests.soak.pipeline_tables import differences, generate_log, pipeline_command, start, tables_of, wait_for_success

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 600.0
WORKERS = 2
DIRECTORY, IN_BUCKET = "directory", "bucket"
WORKER_MEMORY = "700m"
EXECUTOR_MEMORY = "600m"
_DAEMON_MEMORY = "256m"
_LOGGING = """rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def cluster_environment(directory: Path, of_executors: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of master, workers and driver; `of_executors`: further variables of the executors."""
    java = find_java(dict(os.environ), directory)
    configuration = directory / "conf"
    configuration.mkdir()
    (configuration / "log4j2.properties").write_text(_LOGGING, encoding="utf-8")
    (configuration / "spark-defaults.conf").write_text(
        f"spark.executor.memory {EXECUTOR_MEMORY}\nspark.executor.cores 1\n"
        f"spark.driver.host {LOOPBACK}\nspark.driver.bindAddress {LOOPBACK}\n"
        f"spark.executorEnv.PYTHONPATH {os.environ.get('PYTHONPATH', '')}\n"
        + "".join(f"spark.executorEnv.{name} {value}\n" for name, value in of_executors.items()),
        encoding="utf-8",
    )
    return {
        **({} if java.home is None else {"JAVA_HOME": str(java.home)}),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_WORKER_DIR": str(directory / "work"),
        "SPARK_NO_DAEMONIZE": "1",
    }


def wait_for_text(log: Path, words: str, count: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the log of a process contains `words` `count` times."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while log.read_text(errors="replace").count(words) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the cluster is not up: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.2)


@contextmanager
def standalone(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a master with its workers; yield its address."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    [port] = free_ports(1)
    address = f"spark://{LOOPBACK}:{port}"
    place = ["--host", LOOPBACK, "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        master_log = directory / "master.txt"
        command = [spark_class, f"{deploy}.master.Master", *place, "--port", str(port)]
        processes.append(start(command, master_log, environment))
        wait_for_text(master_log, "I have been elected leader", 1, processes[0])
        for number in range(WORKERS):
            sizes = ["--cores", "1", "--memory", WORKER_MEMORY]
            command = [spark_class, f"{deploy}.worker.Worker", *place, *sizes, address]
            processes.append(start(command, directory / f"worker-{number}.txt", environment))
        wait_for_text(master_log, "Registering worker", WORKERS, processes[0])
        yield address
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(END_S)


@contextmanager
def tables_place(place: str, directory: Path) -> Iterator[tuple[Output, dict[str, str]]]:
    """Yield the place of the cluster's tables, and the variables that its clients need."""
    if place == DIRECTORY:
        yield directory / "cluster", {}
        return
    with serving_s3() as server:
        yield BucketPath(BUCKET, "cluster"), {**server.environment(), "XDG_CACHE_HOME": str(directory / "cache")}


def run(directory: Path, *, routers: int, days: float, batch: int, place: str = DIRECTORY) -> list[str]:
    """Run local mode, then the cluster with its tables at `place`; return the differences as text."""
    log = directory / "log"
    entries = generate_log(log, routers, days, seed=1)
    size = ("--entries-per-batch", str(batch))
    local, log_file = directory / "local", directory / "local.txt"
    began = time.monotonic()
    wait_for_success(
        start(pipeline_command(log, local, "--master", "local[2]", *size), log_file), log_file, END_TIMEOUT_S
    )
    print(f"{entries} entries in local mode: {time.monotonic() - began:.0f} s", flush=True)
    log_file, began = directory / "cluster.txt", time.monotonic()
    with tables_place(place, directory) as (far, variables):
        environment = cluster_environment(directory, variables)
        with standalone(directory, environment) as address:
            print(f"one master and {WORKERS} workers are up: {time.monotonic() - began:.0f} s", flush=True)
            # The processes of the cluster are without these variables.
            os.environ.update(variables)
            began = time.monotonic()
            command = pipeline_command(log, far, "--master", address, *size)
            wait_for_success(start(command, log_file, environment), log_file, END_TIMEOUT_S)
            executors = len(list((directory / "work").glob("app-*/*")))
        print(f"the same on the cluster, with {executors} executors: {time.monotonic() - began:.0f} s", flush=True)
        found = tables_of(far)
    for name, rows in sorted(found.items()):
        print(f"  {name}: {rows.total()} rows", flush=True)
    if executors < WORKERS:
        return [f"only {executors} executors ran, not one on each of {WORKERS} workers"]
    return differences(tables_of(local), found)


def main() -> None:
    """Parse the command line; exit with code 1 if a table differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--routers", type=int, default=10)
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=10_000, help="entries per batch")
    parser.add_argument("--place", choices=(DIRECTORY, IN_BUCKET), default=DIRECTORY, help="the place of the tables")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pipeline-cluster-"))
    found = run(directory, routers=arguments.routers, days=arguments.days, batch=arguments.batch, place=arguments.place)
    for line in found:
        print(f"DIFFERS {line}", flush=True)
    if found:
        print(f"the output is kept in {directory}", flush=True)
        sys.exit(1)
    shutil.rmtree(directory)
    print("the cluster's tables equal those of local mode, row for row", flush=True)


if __name__ == "__main__":
    main()
