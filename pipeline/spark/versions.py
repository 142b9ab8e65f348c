"""The versions that the pipeline supports.

    command ──▶ the installed packages are supported ──▶ a Delta jar is for PySpark's Spark ──▶ the JVM runs this Spark

The packages and the Delta jar are checked before Spark starts, the JVM's Spark right after. Each refusal is one
sentence with the remedy.

Python and Java are checked elsewhere: pip refuses another Python, and `pipeline/spark/java.py` finds a Java. The
pipeline does not need the Delta Lake jar, because only delta-rs (the package `deltalake`) commits to its Delta tables.
An operator can add the jar to the same session, for other tables. Each jar works with one version of Spark, and fails
at its first use with any other one.

Nothing here imports Spark or its dependencies. `garlicfarm pipeline doctor` uses this module, and must also run on
machines without Spark.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from pipeline import INSTALL

Versions = Mapping[str, tuple[tuple[int, ...], tuple[int, ...] | None]]
PACKAGES: Versions = {
    "pyspark": ((4, 2), (4, 3)),
    "pandas": ((2, 2), (3,)),
    "pyarrow": ((17,), None),
    "deltalake": ((1, 6), (2,)),
    "duckdb": ((1, 4), (2,)),
    "vl-convert-python": ((1, 9), (2,)),
}
"""For each package: the first supported version and the first unsupported one (None: no upper limit)."""
OF_STORES: Mapping[str, tuple[Versions, str]] = {
    "s3://": ({"obstore": ((0, 8), (1,))}, INSTALL),
    "hdfs://": ({"hdfs-native": ((0, 14, 7), (0, 15))}, "pip install 'garlicfarm[pipeline,hdfs]'"),
}
"""For each kind of store: the package of its client, which only commands with this store use, and its installation."""
_DELTA_JAR = re.compile(r"delta-spark_(\d+\.\d+)_")
_JARS = ("spark.jars.packages", "spark.jars")


class VersionError(Exception):
    """Versions that do not work together; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A required package, its installed version (None: not installed), and the supported versions as words."""

    name: str
    version: str | None
    supported: str
    is_supported: bool


def installed(packages: Versions | None = None) -> Iterator[Installed]:
    """Yield the state of these packages; by default, of the packages that every command requires."""
    for name, (least, below) in (PACKAGES if packages is None else packages).items():
        supported = _dotted(least) + (" or newer" if below is None else f" to below {_dotted(below)}")
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Installed(name, None, supported, is_supported=False)
            continue
        found = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
        yield Installed(name, version, supported, found >= least and (below is None or found < below))


def refuse_unsupported(store: str | None = None) -> None:
    """Raise VersionError if a package is missing or has an unsupported version; `store`: a key of `OF_STORES`."""
    packages, remedy = (PACKAGES, INSTALL) if store is None else OF_STORES[store]
    wrong = [
        f"{each.name} {each.supported} (found: {each.version or 'none'})"
        for each in installed(packages)
        if not each.is_supported
    ]
    if wrong:
        raise VersionError(f"the pipeline needs {', '.join(wrong)}; install it with: {remedy}")


def refuse_other_spark(python: str, jvm: str) -> None:
    """Raise VersionError if the JVM runs a different Spark version from PySpark's.

    This can happen if SPARK_HOME names another installation.
    """
    if python != jvm:
        raise VersionError(
            f"PySpark is {python}, and its Java part is Spark {jvm}: set SPARK_HOME to Spark"
            f" {python} or unset it, or install pyspark=={jvm} if the pipeline supports it"
        )


def refuse_other_delta_jar(python: str, settings: Mapping[str, str]) -> None:
    """Raise VersionError if a setting adds a jar of Delta Lake for another Spark."""
    spark = ".".join(python.split(".")[:2])
    for name in _JARS:
        for jar in _DELTA_JAR.findall(settings.get(name, "")):
            if jar != spark:
                raise VersionError(
                    f"{name} names a Delta Lake jar for Spark {jar}, and PySpark is {python}: use the jar"
                    f" io.delta:delta-spark_{spark}_2.13, or remove the jar, because the pipeline does not need it"
                )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
