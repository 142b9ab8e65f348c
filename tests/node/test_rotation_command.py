"""`keys rotate`: every step reaches all members before the next one, and the farm works after any interruption."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET

from bridge.api.control import KeysAnswer, Refused
from bridge.api.control_routes import Route
from bridge.api.json import RequestBody
from bridge.api.outputs import RotationOutput
from bridge.cli.keys.rotation import RotationError, rotate
from bridge.node.control.client import NO_QUERY, ControlClient, ControlError
from bridge.node.control.routes import Call, Request
from gossip.core.keyring import key_id
from tests.node.fake_keys import FakeKeys
from tests.node.gossip_farm import in_simulated_time


class Client(ControlClient):
    """A control client of the fake farm."""

    def __init__(self, farm: FakeKeys) -> None:
        self.farm = farm
        self.progress: list[str] = []

    async def call(
        self, route: Route[Any], body: RequestBody | None = None, query: Mapping[str, int] = NO_QUERY
    ) -> Any:
        del query
        try:
            return await self.farm.handlers[route](Call(Request(route.method, route.path), body))
        except Refused as error:
            raise ControlError(f"the node refused: {error}") from error

    async def rotate(self, *, force: bool = False) -> RotationOutput:
        return await rotate(self, self.progress.append, 10.0, force=force)


def old_id(farm: FakeKeys) -> str:
    return key_id(farm.farm_key.gossip_keys[0]).hex()


@in_simulated_time
async def test_rotation_installs_uses_and_removes_with_progress() -> None:
    farm = FakeKeys()
    client = Client(farm)
    done = await client.rotate()
    assert farm.steps == ["install", "use", "remove"]
    assert {key_id(chain.primary).hex() for chain in farm.chains.values()} == {done.key}
    assert (done.epoch, done.members, done.removed, done.left_out) == (3, 3, (old_id(farm),), ())
    assert client.progress == [
        f"Key {done.key} is created and installed.",
        f"  key {done.key} is installed at 3 of 3 members",
        f"  key {done.key} is in use at 3 of 3 members",
        f"Key {old_id(farm)} is removed.",
        "  the old key is refused at 3 of 3 members",
    ]


@in_simulated_time
async def test_member_that_cannot_store_key_stops_rotation() -> None:
    farm = FakeKeys()
    farm.unwritable = ("node-3",)
    client = Client(farm)
    with pytest.raises(RotationError, match="node-3 could not store the keys") as end:
        await client.rotate()
    for advice in (
        "Do not restart node-3",
        "Repair the disk there",
        "`garlicfarm keys rotate` again",
        "keys export FILE",
    ):
        assert advice in str(end.value)
    assert farm.steps == ["install"], "the old key is not removed"
    farm.unwritable = ()
    assert (await client.rotate()).unstored is UNSET
    assert farm.steps == ["install", "use", "remove"]


@in_simulated_time
async def test_forced_rotation_lists_members_without_stored_key() -> None:
    farm = FakeKeys()
    farm.unwritable = ("node-3",)
    done = await Client(farm).rotate(force=True)
    assert (done.left_out, done.unstored) == ((), ("node-3",))


@in_simulated_time
async def test_member_without_new_key_stops_rotation_before_use() -> None:
    farm = FakeKeys()
    farm.deaf = {"node-3"}
    client = Client(farm)
    with pytest.raises(RotationError, match=r"after 10 s node-3 did not confirm that key .* is installed") as end:
        await client.rotate()
    assert "The old key is still in use" in str(end.value)
    assert "run `garlicfarm keys rotate` again" in str(end.value)
    assert farm.steps == ["install"]
    assert client.progress[1].endswith("is installed at 2 of 3 members; missing: node-3")
    assert len(client.progress) == 2, "the missing member is reported once, not at every poll"
    farm.deaf = set()
    done = await client.rotate()
    assert farm.steps == ["install", "use", "remove"], "it continues with the installed key"
    assert key_id(farm.chains["node-3"].primary).hex() == done.key


@in_simulated_time
async def test_member_down_prevents_rotation_unless_forced() -> None:
    farm = FakeKeys()
    farm.absent = ("node-4",)
    with pytest.raises(RotationError, match="nothing was changed: node-4 is down"):
        await Client(farm).rotate()
    assert farm.steps == []
    done = await Client(farm).rotate(force=True)
    assert farm.steps == ["install", "use by force", "remove by force"]
    assert done.left_out == ("node-4",)


@in_simulated_time
async def test_interrupted_rotation_is_finished_by_next_run() -> None:
    farm = FakeKeys()

    def stop_member(step: str) -> None:
        if step == "use":
            farm.absent = ("node-3",)

    farm.before_step = stop_member
    with pytest.raises(
        RotationError, match=r"node-3 is down.*The completed steps stay.*`garlicfarm keys rotate` again"
    ):
        await Client(farm).rotate()
    assert farm.steps == ["install", "use"]
    assert old_id(farm) in {key_id(key).hex() for key in farm.chain.others}
    farm.absent = ()
    client = Client(farm)
    done = await client.rotate()
    assert farm.steps == ["install", "use", "remove"]
    assert done.removed == (old_id(farm),)
    assert "interrupted rotation" in client.progress[0]


@in_simulated_time
async def test_concurrent_rotations_end_with_one_key() -> None:
    farm = FakeKeys()

    def another(step: str) -> None:
        if step == "use":
            chain = farm.chain.install(b"o" * 32)
            farm.chains["node-1"] = chain.use(b"o" * 32).install(b"p" * 32).use(b"p" * 32)

    client = Client(farm)
    farm.before_step = lambda step: None if step != "remove" else another("use")
    done = await client.rotate()
    assert done.removed == (old_id(farm),), "keys of later rotations are not ours to remove"

    farm = FakeKeys()
    client = Client(farm)
    real = farm.listing

    async def listing() -> KeysAnswer:
        if "use" in farm.steps:
            another("use")
        return await real()

    farm.listing = listing  # type: ignore[method-assign] # another operator changes the keys between our requests
    with pytest.raises(RotationError, match="another rotation at the same time chose key"):
        await client.rotate()
    assert "remove" not in farm.steps


@in_simulated_time
async def test_rotation_after_finished_one_creates_new_key() -> None:
    farm = FakeKeys()
    keys = {(await Client(farm).rotate()).key for _ in range(20)}
    assert len(keys) == 20
    assert farm.chain.others == ()
