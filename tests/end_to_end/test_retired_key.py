"""A new node with a key file from before an eviction, without seeds."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.api.control_routes import NODES
from tests.end_to_end.farm import START_BOUND_S, Farm, Node, exported_key
from tests.end_to_end.settings import LOOPBACK, broadcast_farm, free_port, node_toml
from tests.end_to_end.test_keys import alarms

BROADCASTS_BOUND_S = 2 * START_BOUND_S
"""Four times the time of three broadcasts of one member, which are about 10 s apart."""


class Lan:
    """Nodes with one broadcast address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = free_port(socket.SOCK_DGRAM), free_port(socket.SOCK_STREAM)
        hosts = [f"127.88.0.{number}" for number in (1, 2, 3)]
        self.farm = broadcast_farm(directory / "farm", hosts, *self._ports)

    def new_node(self, number: int, farm_key: Path) -> Node:
        """Configure a node with this key, without seeds."""
        gossip_port, consensus_port = self._ports
        return node_toml(
            self._directory / f"node-{number}",
            farm_key=farm_key,
            gossip=f"127.88.0.{number}:{gossip_port}",
            consensus=f"127.88.0.{number}:{consensus_port}",
            seeds=[],
            broadcast=f"127.255.255.255:{gossip_port}",
        )


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    """Start a farm of three on this LAN."""
    made = Lan(tmp_path)
    with made.farm as farm:
        farm.start_all()
        farm.wait_settled()
        yield made


def names_recorded(farm: Farm, count: int) -> bool:
    nodes = farm.nodes[0].ask(lambda client: client.call(NODES)).nodes
    return len([each for each in nodes if each.name]) == count


@pytest.mark.soak
def test_new_node_with_retired_key_raises_alarm(lan: Lan, tmp_path: Path) -> None:
    """The node receives only broadcasts. Its key is wrong, so its alarms must not advise to change `cluster_id`."""
    farm = lan.farm
    key_file = exported_key(farm.nodes[0], tmp_path / "node-5.key")
    stolen = lan.new_node(4, exported_key(farm.nodes[0], tmp_path / "node-4.key"))
    with Farm(tmp_path, [stolen, late := lan.new_node(5, key_file)]):
        stolen.start()
        farm.wait_until(lambda: names_recorded(farm, 4), START_BOUND_S, "the fourth node is admitted")
        stolen_id = stolen.view().node.node_id
        farm.wait_done("node", "evict", stolen_id, "--yes", at=lambda: farm.led_by_another(stolen))
        stolen.kill()
        late.start()
        farm.wait_until(lambda: "key-retired" in alarms(late), BROADCASTS_BOUND_S, "the new node has the alarm")
        assert "garlicfarm keys export" in alarms(late)["key-retired"]
        assert not any("cluster_id" in text for text in alarms(late).values()), alarms(late)
        assert LOOPBACK not in late.configuration.read_text(), "the configuration does not contain a seed"
        late.kill()
        key_file.unlink()
        exported_key(farm.nodes[0], key_file)
        late.start()
        farm.wait_until(
            lambda: len(late.view().members) >= 4, START_BOUND_S, "with the current key the node discovers the farm"
        )
        farm.wait_until(lambda: "key-retired" not in alarms(late), START_BOUND_S, "the alarm has ended")
