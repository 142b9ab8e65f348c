"""Founding with real processes: any order of starts creates exactly one farm, without nodes of other farms."""

import re
import socket
import time
from functools import partial
from pathlib import Path

from bridge.api.view import Phase, VerdictKind
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, local_farm, seeded
from tests.end_to_end.settings import broadcast_farm, free_port


def clusters(farm: Farm) -> set[str | None]:
    return {node.view().farm.cluster_id for node in farm.nodes}


def founded(farm: Farm) -> bool:
    """Return True if all nodes are voters of a farm with a leader."""
    views = [node.view() for node in farm.nodes]
    return all(view.node.phase is Phase.FOUNDED and view.raft.leader_id is not None for view in views)


def no_alarm(node: Node) -> bool:
    """Return True if the node does not have an active alarm. Alarms of the start end automatically."""
    return not node.view().alarms


def received_from_other_farm(node: Node) -> bool:
    """Return True if the node counted datagrams sealed with another farm's key."""
    return node.counters().get("gossip_dropped_other_farm", 0) > 0


def test_founders_starting_late_or_again_create_one_farm(tmp_path: Path) -> None:
    """All nodes have the same name, because they use the name of their host."""
    random = seeded("late founders")
    with local_farm(tmp_path / "farm", 3) as farm:
        for node in farm.nodes:
            text = node.configuration.read_text()
            node.configuration.write_text(text.replace(f'name = "{node.name}"\n', ""))
        for node in random.sample(farm.nodes, 3):
            node.start()
            time.sleep(random.uniform(0, 1.5))
        unlucky = random.choice(farm.nodes)
        unlucky.kill()
        time.sleep(random.uniform(0, 0.5))
        unlucky.start()
        farm.wait_until(lambda: founded(farm), START_BOUND_S, "all nodes are voters of a farm")
        farm.wait_settled()
        assert len(clusters(farm)) == 1
        assert {node.view().node.raft_id for node in farm.nodes} == {1, 2, 3}

        def names() -> set[str]:
            views = [node.view() for node in farm.nodes]
            names_now = {view.node.name for view in views}
            agreed = all({member.name for member in view.members} == names_now for view in views)
            settled = all(view.verdict.kind is VerdictKind.HEALTHY for view in views)
            return names_now if agreed and settled and len(names_now) == 3 else set()

        first_names = farm.wait_until(names, START_BOUND_S, "three names, and a healthy farm")
        host = min(first_names, key=len)
        assert all(each == host or re.fullmatch(f"{re.escape(host[:27])}-[0-9a-f]{{4}}", each) for each in first_names)
        for node in farm.nodes:
            node.stop()
        farm.start_all()
        again = farm.wait_until(names, START_BOUND_S, "three names after a restart")
        assert again == first_names
        assert not [alarm for node in farm.nodes for alarm in node.view().alarms if alarm.kind == "admission"]


def test_farms_on_same_ports_stay_separate(tmp_path: Path) -> None:
    """Six processes without seeds start in random order and announce themselves at the same broadcast address."""
    random = seeded("two farms")
    gossip_port, consensus_port = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
    hosts = [f"127.0.{random.randrange(1, 250)}.{number}" for number in range(1, 7)]
    with (
        broadcast_farm(tmp_path / "red", hosts[:3], gossip_port, consensus_port) as red,
        broadcast_farm(tmp_path / "blue", hosts[3:], gossip_port, consensus_port) as blue,
    ):
        for node in random.sample(red.nodes + blue.nodes, 6):
            node.start()
            time.sleep(random.uniform(0, 0.5))
        for farm in (red, blue):
            farm.wait_until(partial(founded, farm), START_BOUND_S, f"{farm.directory.name} is created")
            farm.wait_settled()
        assert len(clusters(red)) == len(clusters(blue)) == 1
        assert clusters(red) != clusters(blue)
        for farm in (red, blue):
            names = {node.name for node in farm.nodes}
            for node in farm.nodes:
                assert {member.name for member in node.view().members} <= names
                farm.wait_until(partial(no_alarm, node), START_BOUND_S, f"the alarms of {node.name} have ended")
                farm.wait_until(
                    partial(received_from_other_farm, node),
                    START_BOUND_S,
                    f"{node.name} counts datagrams of the other farm: {node.counters()}",
                )
