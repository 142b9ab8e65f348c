"""The Java I2P classes on this machine: their location, and programs that use them.

`make interop` downloads the two libraries to `build/java` by their names in the package registry. Each program is one
source file, which `java` compiles at the start; this needs a Java development kit.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bridge.wire.i2p.structures import base64_encode
from tests.processes import END_S, free_ports

VERSION: Final = "2.7.0"
LIBRARIES: Final = Path(__file__).parents[2] / "build" / "java"
PROGRAMS: Final = Path(__file__).parent / "java"
TIMEOUT_S: Final = 120.0


def missing() -> str | None:
    """Return a description of missing tools or libraries, or None."""
    if shutil.which("javac") is None:
        return "no Java development kit on this machine"
    absent = [name for name in ("i2p", "router") if not _library(name).is_file()]
    return f"`make interop` downloads the missing libraries: net.i2p {', '.join(absent)}" if absent else None


def _library(name: str) -> Path:
    return LIBRARIES / f"{name}-{VERSION}.jar"


def command(program: str, *arguments: str) -> list[str]:
    return class_command(str(PROGRAMS / f"{program}.java"), *arguments)


def class_command(name: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx256m", "-cp", f"{_library('i2p')}:{_library('router')}", name, *arguments]


def messages(directory: Path, mode: str, lines: list[str]) -> list[str]:
    """Return the output of the program `Messages`; the library stores its own files in `directory`."""
    done = subprocess.run(
        command("Messages", mode),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
        cwd=directory,
    )
    return done.stdout.splitlines()


@dataclass(frozen=True)
class LoopbackRouter:
    """A complete Java router without a network, and the port of its I2CP."""

    process: "subprocess.Popen[str]"
    port: int

    def holds(self, destination_hash: bytes) -> str:
        """Return its network database's entry for a hash: `absent`, or `type=… verifies=… HEX`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(base64_encode(destination_hash) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def loopback_router(directory: Path, port: int | None = None, password: str | None = None) -> Iterator[LoopbackRouter]:
    """Run a router within the block; with a password it accepts only the user `farm`."""
    directory.mkdir(exist_ok=True)
    port = port or free_ports(1)[0]
    with (directory / "errors").open("w") as errors:
        process = subprocess.Popen(
            command("LoopbackRouter", str(directory), str(port), *([] if password is None else [password])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=directory,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield LoopbackRouter(process, port)
        finally:
            process.kill()
            process.communicate(timeout=END_S)
