"""Limits of the nodes at each moment of a trial: numbers of the states, tasks, descriptors, objects.

    Limits.look ──▶ the state of each running node    within the declared bounds (`objection_to_state`)
                    its tasks                         at most `TASKS_MAX`
                    the commit index in its files     not above the entries that a node has applied
                    descriptors of the process        at most `DESCRIPTORS_MAX` for each machine
                    objects of the process            at most `OBJECTS_MAX` for each machine

Other servers refuse the snapshot of a state beyond its bounds. So the state must always be within them, and not only at
the end. Python has one heap, so the objects of one node are not known. A node with a fixed number of peers needs a
fixed number of tasks, connections and files. So a limit well above these numbers finds each leak within minutes.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from bridge.node.raft.commit_store import read_commit_index
from bridge.node.raft.farm_content import objection_to_state
from tests.simulation.farm.host import current_host
from tests.simulation.farm.observing import Observer
from tests.simulation.farm.world import World

OPEN_FILES: Final = Path("/proc/self/fd")
LOOK_EVERY_S: Final = 5.0
TASKS_MAX: Final = 200
"""For each node. A node of a farm of five has about 90 tasks; connections of clients and joining nodes add some."""
DESCRIPTORS_MAX: Final = 80
"""For each machine: sockets and files. A node of a farm of five has about 25."""
OBJECTS_MAX: Final = 25_000
"""For each machine of the trial. An idle node has about 10,000 objects that the garbage collector knows."""


class Limits:
    """The limits of one trial."""

    def __init__(self, world: World, observer: Observer) -> None:
        self._world = world
        self._observer = observer
        self._next_s = 0.0
        self._objects = _Objects()

    def look(self) -> Iterator[tuple[str, str, str]]:
        """Yield check, node and text of each limit that does not hold now.

        The number of objects is compared at each call, the others each `LOOK_EVERY_S`.
        """
        machines = len(self._world.hosts)
        if self._objects.number() > OBJECTS_MAX * machines:
            yield "bounded memory", "all nodes", f"more than {OBJECTS_MAX} objects for each machine"
        if self._world.time_s < self._next_s:
            return
        self._next_s = self._world.time_s + LOOK_EVERY_S
        yield from self._of_nodes()
        if len(list(OPEN_FILES.iterdir())) + len(self._world.sockets.descriptors.open) > DESCRIPTORS_MAX * machines:
            yield "bounded descriptors", "all nodes", f"more than {DESCRIPTORS_MAX} sockets and files for each machine"

    def _of_nodes(self) -> Iterator[tuple[str, str, str]]:
        tasks = _tasks()
        for name, host in self._world.hosts.items():
            stored = read_commit_index(host.directory)
            if stored is not None and stored > max(self._observer.committed, default=0):
                yield "stored commit index", name, f"{stored} is stored, and no node has applied this entry"
            applied = self._observer.states.get(name)
            if applied is not None and host.run is not None:
                objection = objection_to_state(applied.state, applied._farm.tuning.period_ms)
                if objection is not None:
                    yield "bounded numbers", name, objection
            if tasks[name] > TASKS_MAX:
                yield "bounded tasks", name, f"more than {TASKS_MAX} tasks"


class _Objects:
    """The number of objects that the garbage collector knows.

    They are counted after each collection. Until the next one, the collector's own counter has the difference: objects
    made, less objects freed.
    """

    def __init__(self) -> None:
        self._collections = -1
        self._before = 0

    def number(self) -> int:
        collections = sum(each["collections"] for each in gc.get_stats())
        if collections != self._collections:
            self._collections, self._before = collections, len(gc.get_objects()) - gc.get_count()[0]
        return self._before + gc.get_count()[0]


def _tasks() -> Counter[str]:
    found: Counter[str] = Counter()
    waiting = [trio.lowlevel.current_root_task()]
    while waiting:
        task = waiting.pop()
        if task is None:
            continue
        host = task.context.get(current_host)
        if host is not None:
            found[host.name] += 1
        for nursery in task.child_nurseries:
            waiting.extend(nursery.child_tasks)
    return found
