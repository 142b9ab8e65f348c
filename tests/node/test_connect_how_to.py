"""docs/how-to/let-users-reach-the-service.md: the commands and the program of a user, at a loopback bridge.

The page's ports are replaced by free ones, and each client gets the bridge of this test.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bridge.sam.connection import SamBridge
from tests.end_to_end.settings import free_port
from tests.node.wall_clock_farm import WallClockFarm, wall_clock_farm
from tests.structure.sources import ROOT

PAGE = (ROOT / "docs" / "how-to" / "let-users-reach-the-service.md").read_text(encoding="utf-8")
PROXY, PORT = "127.0.0.1:8118", "127.0.0.1:8080"
BOUND_S = 120.0
BRIDGE_OF_PROGRAM = "from bridge.sam.connection import SamBridge\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


class Shell:
    """Runs commands of the page as a user would."""

    def __init__(self, directory: Path, farm: WallClockFarm) -> None:
        ports = {each: f"127.0.0.1:{free_port(socket.SOCK_STREAM)}" for each in (PROXY, PORT)}
        self._replaced = {**ports, "LINK": f"'{farm.link}'"}
        self.bridge: SamBridge = farm.bridge
        runtime = directory / "run"
        runtime.mkdir(mode=0o700)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        places = {"XDG_RUNTIME_DIR": str(runtime), "XDG_CACHE_HOME": str(directory / "cache")}
        self.environment = {**os.environ, **places, "PATH": path, "PYTHONPATH": str(ROOT), "no_proxy": "*"}

    def adapted(self, text: str) -> str:
        for theirs, own in self._replaced.items():
            text = text.replace(theirs, own)
        return text

    async def run(self, command: str) -> str:
        """Run a command that ends; return its output."""
        shell = ["/bin/sh", "-c", self.adapted(command)]
        done = await trio.run_process(
            shell, capture_stdout=True, capture_stderr=True, env=self.environment, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode()

    @asynccontextmanager
    async def client(self, command: str) -> AsyncIterator[None]:
        """Run a client of the page until the block ends."""
        given = f"exec {self.adapted(command).strip()} --sam {self.bridge}"
        process = await trio.lowlevel.open_process(
            ["/bin/sh", "-c", given], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment
        )
        assert process.stdout is not None
        try:
            text = ""
            while "ready, with" not in text:
                part = (await process.stdout.receive_some()).decode()
                assert part, text
                text += part
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            with trio.move_on_after(BOUND_S, shield=True):
                await process.wait()
            if process.returncode is None:
                process.kill()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl (Debian: apt-get install curl)")
async def test_commands_of_how_to_reach_service(tmp_path: Path) -> None:
    proxy, as_service, port, status, metrics = blocks("sh")
    with trio.fail_after(BOUND_S):
        async with wall_clock_farm() as farm:
            shell = Shell(tmp_path, farm)
            async with shell.client(proxy):
                assert await shell.run(as_service) == "hello"
                assert await shell.run(f"curl --noproxy '' -x http://{PROXY} http://{farm.link.address}/") == "hello"
            async with shell.client(port):
                assert await shell.run(f"curl http://{PORT}/") == "hello"
                assert farm.link.address in await shell.run(status)
                assert 'garlicfarm_connect_ready{link="1"} 1.0' in await shell.run(metrics)


async def test_program_of_how_to_gets_reply(tmp_path: Path) -> None:
    (program,) = blocks("python")
    with trio.fail_after(BOUND_S):
        async with wall_clock_farm() as farm:
            shell = Shell(tmp_path, farm)
            text = program.replace("garlicfarm:ADDRESS?at=DIRECTORY", str(farm.link))
            bridge = f"SamBridge({farm.bridge.host!r}, {farm.bridge.port})"
            text = BRIDGE_OF_PROGRAM + text.replace("connect(link)", f"connect(link, bridge={bridge})")
            file = tmp_path / "program.py"
            file.write_text(text)
            assert "HTTP/1.1 200 OK" in await shell.run(f"{sys.executable} {file}")
