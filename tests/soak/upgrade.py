"""Upgrades a farm of three nodes from the build of an older commit to the current one, node by node, under load.

    python -m tests.soak.upgrade --from COMMIT

    older commit ──▶ a worktree ──▶ its wheel ──▶ three nodes create a farm and publish
    this tree    ──▶ its wheel  ──▶ stop one node (SIGTERM), start it with the new build, wait until all agree

During the upgrade a client submits marked entries to the nodes in turn. It repeats an entry of
unknown outcome at the next node, under the same request id, until it receives an index. At the end each
acknowledged mark is at its index on every node, and no mark has two indexes. The new nodes reply to the first requests
of the old farm with the same index as before. This shows that the table of executed requests was upgraded. A newer
structure is also published.

The client reads plain JSON, because the types of this version may require keys that an older node does not send.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from bridge.node.control.client import ControlClient, ControlError, send_request
from tests.end_to_end.farm import LOG_TAIL_BYTES, Node
from tests.processes import END_S
from tests.structure.sources import ROOT

NODES = 3
BUILDS = ROOT / "build" / "upgrade"
START_BOUND_S = 90.0
AFTER_S = 10.0
"""Duration of the load before, between and after the upgrades."""
POLL_S = 0.1
PAGE = 1_000
LAG_MAX = 100
ACKNOWLEDGED_LEAST = 200
FIRST_REQUESTS = 50


def build(source: Path, place: Path) -> Path:
    """Build the wheel of a tree; return the directory of its unpacked modules."""
    shutil.rmtree(place, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    wheels = place / "wheel"
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
    subprocess.run([*pip, "install", "--no-deps", "--target", place / "code", *wheels.glob("*.whl")], check=True)
    return place / "code"


def build_commit(commit: str) -> Path:
    """Build an older commit in a temporary worktree."""
    with tempfile.TemporaryDirectory(prefix="garlicfarm-upgrade-") as scratch:
        tree = Path(scratch) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", tree, commit], check=True)
        try:
            return build(tree, BUILDS / "old")
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def environment(code: Path) -> dict[str, str]:
    """Return an environment that lets Python find only this build."""
    return {**os.environ, "PYTHONPATH": str(code), "PYTHONSAFEPATH": "1"}


def check_build(code: Path) -> None:
    """End the soak if Python would find modules outside the build."""
    command = [sys.executable, "-c", "import bridge; print(bridge.__file__)"]
    found = subprocess.run(command, env=environment(code), check=True, capture_output=True, text=True).stdout.strip()
    if not Path(found).is_relative_to(code):
        raise SystemExit(f"nodes would run {found}, not the build in {code}")


class VersionedNode(Node):
    """A node that runs the modules of one build."""

    def __init__(self, configuration: Path, code: Path) -> None:
        super().__init__(configuration)
        self.code = code

    def run(self) -> None:
        with self.log_file.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bridge.cli.main", "run", "--config", self.configuration, "--stop-with-stdin"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self.code),
            )

    def json(self, method: str, target: str, body: bytes = b"", timeout_s: float = 10.0) -> dict[str, Any]:
        """Return its reply as JSON; raise ControlError if it does not reply, or not with JSON."""

        async def question(client: ControlClient) -> bytes:
            _, answer = await client.request(method, target, body)
            return answer

        try:
            found = json.loads(send_request(self.socket, question, timeout_s))
        except ValueError as error:
            raise ControlError(f"{self.name} answers no JSON: {error}") from error
        return dict(found)


@dataclass
class Load:
    """The client: it submits one entry after the other, each until its index is known."""

    nodes: list[VersionedNode]
    name: str
    born: int
    """A committed index, the start of its sessions."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """The index of each entry, by number."""
    repeated: int = 0
    longest_s: float = 0.0
    faults: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Submit until `stop` is set; complete the current entry."""
        number = 0
        while not self.stop.is_set():
            number += 1
            began = time.monotonic()
            attempt = 0
            while (index := self.submit(self.nodes[(number + attempt) % NODES], number)) is None:
                attempt += 1
                if time.monotonic() - began > START_BOUND_S:
                    self.faults.append(f"entry {number} was not acknowledged within {START_BOUND_S:g} s")
                    return
                time.sleep(POLL_S)
            self.repeated += attempt > 0
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.acknowledged[number] = index

    def submit(self, node: VersionedNode, number: int) -> int | None:
        """Return the index of an entry, or None while its outcome is unknown."""
        # The farm stores the latest requests of each client, so each of the first entries has its own client.
        session, sequence = (f"-{number}", 1) if number <= FIRST_REQUESTS else ("", number)
        request = f"{self.name}{session}-{self.born}-{sequence}"
        target = "/v1/submit?" + urlencode({"request": request})
        try:
            answer = node.json("POST", target, json.dumps({"mark": number}).encode(), 30.0)
        except ControlError:
            return None
        if answer.get("outcome") == "expired":
            self.faults.append(f"entry {number} has expired: {answer}")
        return int(answer["index"]) if answer.get("outcome") == "committed" else None


def wait_until(nodes: list[VersionedNode], predicate: Callable[[], bool], what: str) -> None:
    """Poll until `predicate` is true; on timeout, show the nodes' logs."""
    deadline = time.monotonic() + START_BOUND_S
    while True:
        try:
            if predicate():
                return
        except ControlError:
            pass
        if time.monotonic() > deadline:
            logs = "\n".join(f"{each.name}:\n{each.log_file.read_text()[-LOG_TAIL_BYTES:]}" for each in nodes)
            raise SystemExit(f"not within {START_BOUND_S:g} s: {what}\n{logs}")
        time.sleep(POLL_S)


def agree(nodes: list[VersionedNode]) -> bool:
    """Return True if all nodes follow one leader, vote, and have applied its committed entries."""
    views = [each.json("GET", "/v1/view") for each in nodes]
    rafts = [view["raft"] for view in views]
    leaders = {(raft["leaderId"], raft["term"], len(raft["voters"])) for raft in rafts}
    committed = next((raft["commitIndex"] for raft in rafts if raft["role"] == "leader"), None)
    return (
        len(leaders) == 1
        and committed is not None
        and all(raft["appliedIndex"] + LAG_MAX >= committed for raft in rafts)
        and leaders.pop()[2] == len(nodes)
    )


def marks(node: VersionedNode) -> dict[int, int]:
    """Return the load's entries shown by a node: number by index."""
    found: dict[int, int] = {}
    first = 1
    while True:
        page = node.json("GET", f"/v1/log?from={first}&limit={PAGE}", timeout_s=30.0)
        for entry in page["entries"]:
            value = json.loads(entry["value"]) if entry["kind"] == "application" else {}
            if "mark" in value:
                found[entry["index"]] = value["mark"]
        if not page["entries"] or page["nextIndex"] > page["commitIndex"]:
            return found
        first = page["nextIndex"]


def newest_structure(nodes: list[VersionedNode]) -> float:
    files = [path for each in nodes for path in (each.directory / "published").glob("*") if path.is_file()]
    return max((path.stat().st_mtime for path in files), default=0.0)


def check(nodes: list[VersionedNode], load: Load) -> list[str]:
    wrong = list(load.faults)
    if len(load.acknowledged) < ACKNOWLEDGED_LEAST:
        wrong.append(f"too few acknowledged entries: {len(load.acknowledged)}")
    indexes = Counter(load.acknowledged.values())
    wrong += [f"index {index} was given to {count} entries" for index, count in indexes.items() if count > 1]
    for node in nodes:
        shown = marks(node)
        lost = [number for number, index in load.acknowledged.items() if shown.get(index) != number]
        wrong += [f"{node.name} lost entries {lost[:5]}"] * bool(lost)
        copies = len(shown) - len(set(shown.values()))
        sys.stdout.write(
            f"{node.name}: {len(shown)} entries of the load, {copies} of them later copies without effect\n"
        )
    for number in list(load.acknowledged)[:FIRST_REQUESTS]:
        for node in nodes:
            again = load.submit(node, number)
            if again != load.acknowledged[number]:
                wrong.append(f"{node.name} answers request {number} with {again}, not {load.acknowledged[number]}")
    return wrong


def upgrade(nodes: list[VersionedNode], new: Path, load: Load) -> None:
    """Upgrade node by node under load, as described in the how-to guide."""
    for node in nodes:
        time.sleep(AFTER_S)
        before, began = len(load.acknowledged), time.monotonic()
        was_leader = node.json("GET", "/v1/view")["raft"]["role"] == "leader"
        if node.stop() != 0:
            raise SystemExit(f"{node.name} ended with an error\n{node.log_file.read_text()[-LOG_TAIL_BYTES:]}")
        node.code = new
        node.run()
        wait_until(nodes, lambda: agree(nodes), f"the farm agrees with the new {node.name}")
        took_s, more = time.monotonic() - began, len(load.acknowledged) - before
        sys.stdout.write(
            f"{node.name}{' (led)' if was_leader else ''}: upgraded in {took_s:.1f} s, meanwhile {more} acknowledged\n"
        )


def story(directory: Path, old: Path, new: Path) -> list[str]:
    """Run the whole story; return the faults."""
    founding = ["up", "--servers", str(NODES), "--state-dir", str(directory), "--exit-when-published"]
    subprocess.run([sys.executable, "-m", "bridge.cli.main", *founding], env=environment(old), check=True)
    nodes = [VersionedNode(directory / f"node-{number}" / "node.toml", old) for number in range(1, NODES + 1)]
    try:
        for node in nodes:
            node.run()
        wait_until(nodes, lambda: agree(nodes), "the old farm agrees")
        born = nodes[0].json("GET", "/v1/cluster")["commitIndex"]
        load = Load(nodes, f"soak-{secrets.token_hex(4)}", born)
        thread = threading.Thread(target=load.run, name="load")
        thread.start()
        published_s = newest_structure(nodes)
        try:
            upgrade(nodes, new, load)
            time.sleep(AFTER_S)
        finally:
            load.stop.set()
            thread.join(END_S)
        wait_until(nodes, lambda: agree(nodes), "the new farm agrees")
        wrong = check(nodes, load)
        level = nodes[0].json("GET", "/v1/view")["farm"]["level"]
        sys.stdout.write(
            f"{len(load.acknowledged)} acknowledged, {load.repeated} of them submitted more than once,"
            f" the slowest after {load.longest_s:.1f} s; feature level {level}\n"
        )
        if newest_structure(nodes) <= published_s:
            wrong.append("nothing was published during or after the upgrade")
        if not all((each.code / "bridge").is_dir() and each.code == new for each in nodes):
            wrong.append("a node still runs the older build")
        return wrong
    finally:
        for node in nodes:
            node.stop()


def main() -> int:
    """Build both versions, run the story, print the figures."""
    parser = argparse.ArgumentParser(description="Upgrade a farm node by node under load.")
    parser.add_argument("--from", dest="commit", required=True, help="the older commit")
    options = parser.parse_args()
    old, new = build_commit(options.commit), build(ROOT, BUILDS / "new")
    for code in (old, new):
        check_build(code)
    with tempfile.TemporaryDirectory(prefix="garlicfarm-upgrade-") as scratch:
        wrong = story(Path(scratch) / "farm", old, new)
    for each in wrong:
        sys.stdout.write(f"WRONG: {each}\n")
    if not wrong:
        sys.stdout.write(f"from {options.commit} to this tree: nothing lost, nothing twice\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
