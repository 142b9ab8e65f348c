"""docs/how-to/run-a-kraft-quorum.md: its commands, run in order, create a quorum and change it.

Addresses are replaced by free ports. A block with a server runs until the test ends it. All others run in one shell.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import IO

import pytest

from tests.processes import child, free_ports

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-kraft-quorum.md"
SERVERS = (1, 2, 3, 4)
SERVE = re.compile(r"garlicfarm kraft serve -c ([1-4])\.properties\n")
BOUND_S = 60.0
END = "the block has ended with"


class HowTo:
    """The blocks of the document, run in order in a separate directory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        text = DOCUMENT.read_text(encoding="utf-8")
        for server, port in ports.items():
            text = text.replace(f"127.0.0.1:909{server}", f"127.0.0.1:{port}")
        self._blocks = iter(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
        (settings,) = re.findall(r"^```properties\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for server, port in ports.items():
            own = settings.replace("node.id=1", f"node.id={server}").replace("=server-1", f"=server-{server}")
            own = own.replace(f"//127.0.0.1:{ports[1]}", f"//127.0.0.1:{port}")
            (directory / f"{server}.properties").write_text(own)
        self.directory = directory
        self.ports = ports
        self.serving: dict[int, subprocess.Popen[str]] = {}
        self._stack = stack
        bin_directory = Path(sys.executable).parent
        # kio imports hypothesis if it is installed, for half a second. Operators run without it.
        (directory / "hypothesis.py").write_text("raise ImportError\n")
        paths = {"PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(directory)}
        self._environment = os.environ | paths
        self._shell = stack.enter_context(
            child(["/bin/bash"], cwd=directory, env=self._environment, stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
        )

    def run(self) -> str:
        """Run the next block; return its output."""
        block = next(self._blocks)
        assert SERVE.fullmatch(block) is None, block
        standard_input, output = self._shell.stdin, self._shell.stdout
        assert standard_input is not None
        assert output is not None
        standard_input.write(f'set -e\n{block}\necho "{END} $?"\n')
        standard_input.flush()
        bound = Timer(BOUND_S, self._shell.kill)
        bound.start()
        try:
            return "".join(self._printed(block, output))
        finally:
            bound.cancel()

    def _printed(self, block: str, output: IO[str]) -> Iterator[str]:
        for line in output:
            if line.startswith(END):
                return
            yield line
        raise AssertionError(f"the shell has ended within:\n{block}")

    def skip(self) -> None:
        next(self._blocks)

    def serve(self) -> None:
        """Run the server of the next block in the background, until it listens."""
        block = next(self._blocks)
        found = SERVE.fullmatch(block)
        assert found is not None, block
        server, log = int(found[1]), self.directory / f"{found[1]}.log"
        output = self._stack.enter_context(log.open("w"))
        process = self._stack.enter_context(
            child(block.split(), cwd=self.directory, env=self._environment, stdout=output, stderr=output)
        )
        self.serving[server] = process
        deadline = time.monotonic() + BOUND_S
        while "serving" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def remaining(self) -> list[str]:
        return [*self._blocks]


@pytest.mark.soak
def test_document_commands_create_quorum_and_change_voters(tmp_path: Path) -> None:
    with ExitStack() as stack:
        document = HowTo(tmp_path, stack)
        assert document.run().count("cluster") == 3
        for _ in range(3):
            document.serve()
        shown = document.run()
        assert "CurrentObservers:       []" in shown
        assert shown.count("Follower") >= 2
        assert "LeaderChange" in shown
        if shutil.which("kcat") is None:
            document.skip()
        else:
            assert document.run().endswith(" hello\n")
        document.run()
        document.serve()
        assert document.run() == "Committed: the voters are 1, 2, 3, 4.\n"
        document.serving[2].send_signal(signal.SIGKILL)
        document.serving[2].wait(BOUND_S)
        shutil.rmtree(tmp_path / "server-2")
        assert document.run() == "Committed: the voters are 1, 3, 4.\n"
        document.run()
        document.serve()
        assert document.run() == "Committed: the voters are 1, 2, 3, 4.\n"
        assert document.remaining() == []
        for process in document.serving.values():
            process.terminate()
        assert [process.wait(BOUND_S) for process in document.serving.values()] == [0, 0, 0, 0]
