"""One command on each of three machines creates a farm, without a prompt; then a fourth machine joins.

Each machine is a home directory and a loopback address. A restart uses the plain `garlicfarm run`.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bridge.wire.i2p.destination_keys import parse_signing_key
from tests.end_to_end import forking

BOUND_S = 90.0
POLL_S = 1.0
GOSSIP_PORT = 17668


@dataclass
class Machine:
    """A machine of the test."""

    home: Path
    host: str
    typed: int = 0
    process: forking.Forked | None = None

    @property
    def environment(self) -> dict[str, str]:
        home = {"HOME": str(self.home), "XDG_CONFIG_HOME": str(self.home / "c"), "XDG_STATE_HOME": str(self.home / "s")}
        return {**os.environ, **home}

    def start(self, *command: str, token: str = "") -> None:
        """Type a command that runs the node."""
        self.typed += 1
        with (self.home / "out").open("wb") as out, (self.home / "log").open("ab") as log:
            self.process = forking.start(
                command, out.fileno(), log.fileno(), piped=True, directory=self.home, environment=self.environment
            )
        assert self.process.stdin is not None
        self.process.stdin.write(f"{token}\n".encode())
        self.process.stdin.close()

    def output(self) -> str:
        """Return the printed text of the node's command."""
        return (self.home / "out").read_text()

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return forking.run(command, 60, self.home, self.environment)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(BOUND_S)
            self.process = None


@contextmanager
def machines(directory: Path, count: int) -> Iterator[list[Machine]]:
    """Yield new machines; end their nodes afterwards."""
    random = Random(os.getpid())
    network = f"127.{random.randint(2, 250)}.{random.randint(2, 250)}"
    made = [Machine(directory / f"m{number}", f"{network}.{number}") for number in range(1, count + 1)]
    try:
        for each in made:
            each.home.mkdir()
        yield made
    finally:
        for each in made:
            each.stop()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    ends_s = time.monotonic() + BOUND_S
    while not condition():
        if time.monotonic() > ends_s:
            pytest.fail(f"not in time: {what}")
        time.sleep(POLL_S)


def voters(machine: Machine) -> int:
    return machine.run("members").stdout.count(" voter ")


@pytest.mark.timeout(600)
def test_three_machines_make_farm_with_one_command_each(tmp_path: Path) -> None:
    with machines(tmp_path, 4) as (first, *others, fourth):
        first.start("init", "--expect", "3", "--name", "site-1", "--bind", f"{first.host}:{GOSSIP_PORT}")
        wait_for(lambda: "garlicfarm join " in first.output(), "the token")
        [line] = first.output().splitlines()
        token = line.split()[-1]
        for number, each in enumerate(others, 2):
            bind = f"{each.host}:{GOSSIP_PORT}"
            each.start("join", "--token-file", "-", "--name", f"site-{number}", "--bind", bind, token=token)
        wait_for(lambda: voters(first) == 3, "three voters")
        assert [each.typed for each in (first, *others)] == [1, 1, 1]
        thief = Machine(tmp_path / "thief", "127.0.0.1")
        thief.home.mkdir()
        refused = thief.run("join", token, "--no-start")
        assert refused.returncode == 1
        assert "used already" in refused.stderr
        assert token not in (others[0].home / "log").read_text()
        check_revoked(first, thief)
        share_signing_keys(first, others[0])
        # The inviting node does not lead, so it takes over leadership to approve the next node.
        first.run("transfer", "site-3")
        wait_for(lambda: view(first)["raft"]["leaderName"] == "site-3", "another node leads")
        token = first.run("invite", "new").stdout.split()[-1]
        bind = f"{fourth.host}:{GOSSIP_PORT}"
        fourth.start("join", "--token-file", "-", "--name", "site-4", "--bind", bind, token=token)
        wait_for(lambda: voters(fourth) == 4, "a later node becomes a voter")
        assert "site-4" in first.run("invite", "list").stdout
        keys = {parse_signing_key(key.read_text()).destination: key.read_text() for key in signing_keys(fourth)}
        assert len(keys) == 1, "the later node has a spare key of the master"
        texts = [key.read_text() for each in (first, others[0], fourth) for key in signing_keys(each)]
        assert len(set(texts)) == 3, "no two nodes have the same key"
        assert all(next(iter(keys)) == parse_signing_key(text).destination for text in texts)
        wait_for(lambda: publishes(first) >= {"site-1", "site-2", "site-4"}, "each node with a key can publish")


def share_signing_keys(first: Machine, joined: Machine) -> None:
    assert first.run("keys", "master", "master.key", "--spare", "2").returncode == 0
    first.stop()
    first.start("run")
    wait_for(lambda: voters(first) == 3, "the first node returns to the farm")
    token = first.run("invite", "new").stdout.split()[-1]
    received = joined.run("keys", "receive", token)
    assert received.returncode == 0, received.stderr
    joined.stop()
    joined.start("run")
    wait_for(lambda: voters(joined) == 3, "the plain `run` returns to the farm, with the key")


def signing_keys(machine: Machine) -> list[Path]:
    return [each for each in (machine.home / "c/garlicfarm").glob("*.key") if each.name != "farm.key"]


def publishes(machine: Machine) -> set[str]:
    return {each["name"] for one in view(machine)["publishing"] for each in one["standings"]}


def view(machine: Machine) -> Any:
    return json.loads(machine.run("status", "--json").stdout)


def check_revoked(inviter: Machine, thief: Machine) -> None:
    """Fail if a revoked token admits a machine."""
    token = inviter.run("invite", "new").stdout.split()[-1]
    [made] = [
        each for each in json.loads(inviter.run("invite", "list", "--json").stdout)["invitations"] if not each["uses"]
    ]
    assert inviter.run("invite", "revoke", made["id"]).returncode == 0
    refused = thief.run("join", token, "--no-start")
    assert refused.returncode == 1
    assert "revoked" in refused.stderr
