"""The name of a node without a configured one: the host's, with a suffix if another node already has it.

Machines are cloned, and then three nodes have the name `vm`. Every view identifies members by name, and a name belongs
to one identity (`bridge.core.membership.admission`). An operator who approves a second `vm` while the first one is down
would retire the identity of the first. So a node with the name of its host changes its name:

    another member of the cluster has this name, is alive, and
        the log has recorded this node's name               ─▶ keep it
        no farm is known, and the other member's id is lower ─▶ change now
        otherwise                                           ─▶ change if the other member stays alive for a while

The new name is `HOST-ABCD`, where ABCD is the beginning of the node's id. The node stores the name in its state
directory and restarts with it. In a farm the node waits, because it may have lost its state directory. Then it returns
with the name of its previous identity, which gossip still marks alive for a while. An operator must then decide about
the name.

A name that an operator has given is never changed.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio

from bridge.core.formation.member import MemberStatus
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.settings.configuration import NodeConfiguration
from consensus.storage import replace_file

FILE: Final = "name"
NAME_LIMIT: Final = 32
END_LETTERS: Final = 4
LIVES_ON_S: Final = 15.0
"""Seconds; longer than gossip takes to mark an unreachable node dead."""
LOOK_S: Final = 0.5


class NameTakenError(Exception):
    """Another node has this name; `name` is the name to take."""

    def __init__(self, taken: str, name: str) -> None:
        super().__init__(f"another node of this farm is called {taken}: this one is {name} from now on")
        self.name = name


def remembered_name(configuration: NodeConfiguration) -> NodeConfiguration:
    """Return the configuration with the name from an earlier run, unless an operator has set one."""
    if not configuration.is_named_by_host:
        return configuration
    try:
        name = (configuration.state_dir / FILE).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return configuration
    return replace(configuration, name=name) if 0 < len(name) <= NAME_LIMIT and name.isprintable() else configuration


def own_end(name: str, node_id: bytes) -> str:
    """Return the name with this node's own suffix."""
    end = f"-{node_id.hex()[:END_LETTERS]}"
    return name[: NAME_LIMIT - len(end)] + end


def note_name(state_dir: Path, name: str) -> None:
    """Store the name for the next runs."""
    replace_file(state_dir / FILE, f"{name}\n".encode())


async def watch_name(
    configuration: NodeConfiguration,
    node_id: bytes,
    cluster: str,
    directory: MemberDirectory,
    is_recorded: Callable[[], bool],
    knows_farm: Callable[[], bool],
) -> None:
    """Return when the name belongs permanently to this node; raise `NameTakenError` if it must change.

    `is_recorded`: the log has this node's name. `knows_farm`: this node belongs, or will belong, to a farm.
    """
    if not configuration.is_named_by_host:
        return
    own, since = configuration.name, trio.current_time()
    while not is_recorded():
        others = [
            each.node_id
            for each in directory.of_cluster(cluster)
            if each.metadata.name == own and each.status is MemberStatus.ALIVE
        ]
        if not others:
            since = trio.current_time()
        elif (not knows_farm() and min(others) < node_id) or trio.current_time() - since >= LIVES_ON_S:
            raise NameTakenError(own, own_end(own, node_id))
        await trio.sleep(LOOK_S)
