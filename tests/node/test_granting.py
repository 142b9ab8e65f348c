"""The grant of an invitation: after the creation of a farm, a node gives out only keys that a leader has confirmed."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bridge.api.control import Refused
from bridge.node.founded_farm import CurrentFarm
from bridge.node.inviting.granting import Granting
from bridge.node.inviting.invitations import Joiner
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.settings.bundle import parse_bundle
from bridge.node.settings.configuration import Overrides, load_configuration
from bridge.wire.i2p.destination_keys import new_master_key, parse_signing_key
from bridge.wire.keys.farm_key import FarmKey, new_farm_key
from bridge.wire.keys.invitation import Granted
from consensus import NotLeaderError
from tests.node.partial_farm import partial_farm

DAY_S = 86_400
JOINER = Joiner(bytes(32), "site-2")


class Node:
    """A fake node, also used as its own replica and identities.

    At first it has the old farm key, which another node has already replaced.
    """

    def __init__(self, directory: Path, *, cluster_id: bytes | None = bytes(16)) -> None:
        file = directory / "node.toml"
        file.write_text('farm_key = "farm.key"\nstate_dir = "."\n[gossip]\nbind = "127.0.0.1:7668"\n')
        self.local = SimpleNamespace(
            configuration=load_configuration(file, Overrides(name="site-1")),
            masters=SimpleNamespace(keys=(), keyless=()),
        )
        self.forming = SimpleNamespace(cluster_id=cluster_id)
        self.provider = SimpleNamespace(members=tuple)
        self.old, self.new = new_farm_key(3), new_farm_key(3)
        self.farm_keys = SimpleNamespace(exported=self.old)
        self.current = CurrentFarm()
        self.failure: Exception | None = None
        self._has_entry = False

    async def read_barrier(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self._has_entry = True

    async def wait_era(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._has_entry:
            self.farm_keys.exported = self.new

    async def grant(self) -> Granted:
        node: Any = self
        return await Granting(node, SpareKeys(self.local.configuration.state_dir), self.current).grant(JOINER)

    async def granted(self) -> FarmKey:
        """Return the farm key of a grant."""
        return parse_bundle((await self.grant()).bundle)[0]


async def test_replaced_keys_are_granted_after_confirmation(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.current.of(partial_farm(node, replica=node, identities=node)):
        assert await node.granted() == node.new


async def test_node_without_leader_grants_no_key(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.failure = NotLeaderError(2)
    with (
        node.current.of(partial_farm(node, replica=node, identities=node)),
        pytest.raises(Refused, match="no leader has confirmed"),
    ):
        await node.granted()


async def test_restarting_node_grants_no_key(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a server of a farm yet") as refused:
        await Node(tmp_path).granted()
    assert "--node" not in str(refused.value), "`garlicfarm join` does not have this option"


async def test_node_without_new_key_grants_no_key(tmp_path: Path, autojump_clock: MockClock) -> None:
    del autojump_clock
    node = Node(tmp_path)
    stalled = SimpleNamespace(wait_era=trio.sleep_forever)
    replaced = SimpleNamespace(state=SimpleNamespace(rekeying=SimpleNamespace(era=1)))
    with node.current.of(partial_farm(replaced, replica=node, identities=stalled)), pytest.raises(Refused) as refused:
        await node.granted()
    assert "has not stored the new key within 5 s: try again, or use another node" in str(refused.value)
    assert "--node" not in str(refused.value)


async def test_key_is_granted_before_creation(tmp_path: Path) -> None:
    node = Node(tmp_path, cluster_id=None)
    assert await node.granted() == node.old


async def test_spare_keys_are_granted_before_inviter_restarts(tmp_path: Path) -> None:
    node, key = Node(tmp_path, cluster_id=None), new_master_key()
    SpareKeys(node.local.configuration.state_dir).add([key.sign_transient(int(time.time()), DAY_S)])
    for _ in range(2):
        granted = await node.grant()
        assert parse_bundle(granted.bundle)[1]["master"] == [{"destination": key.destination.base64, "publish": "auto"}]
        assert [parse_signing_key(each).destination for each in granted.signing_keys] == [key.destination]
