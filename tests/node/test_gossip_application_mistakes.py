"""An application's mistakes do not end its member, and calls at a bad time return and do not hang."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import gossip
from gossip.core.keyring import Keyring
from gossip.core.swim import Swim
from gossip.node.group import GroupEvent
from gossip.node.limits import Loss
from gossip.node.requests import GRACE_S
from tests.node.gossip_farm import RING, in_simulated_time
from tests.node.gossip_network import MemoryNetwork
from tests.node.test_gossip_group import HOME, seed_of, until_member

TIMEOUT_S = 0.5


async def until_alarm(group: gossip.Group, *, over: bool = False) -> gossip.Alarm:
    """Wait for the group's first event that begins an alarm (with `over`: ends one), and return the alarm."""
    with trio.fail_after(120):
        async for event in group.events():
            if isinstance(event.event, gossip.Alarm) and event.event.over is over:
                return event.event
    raise AssertionError("the group ended")


@asynccontextmanager
async def stopped_core(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[gossip.Group]:
    """Yield one of two members that have joined each other, after the cores of both have stopped making decisions."""
    network = MemoryNetwork()
    async with (
        gossip.open_group(HOME, key=RING, network=network) as alice,
        gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris,
    ):
        await until_member(alice, boris)
        with monkeypatch.context() as patched:
            patched.setattr(Swim, "step", lambda *_: [])
            patched.setattr(Swim, "deadline", None)
            yield alice


@in_simulated_time
async def test_query_ends_in_time_with_stopped_core(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stopped_core(monkeypatch) as group:
        began = trio.current_time()
        with trio.fail_after(60):
            async with group.query("ping", timeout_s=TIMEOUT_S) as answers:
                assert [each async for each in answers] == []
        assert trio.current_time() - began == pytest.approx(TIMEOUT_S + GRACE_S)


@in_simulated_time
async def test_key_list_returns_with_stopped_core(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stopped_core(monkeypatch) as group:
        with trio.fail_after(60):
            listing = await gossip.KeyManager(group).list()
        assert listing.keys, "this member's own answer is present"


@in_simulated_time
async def test_seeds_can_be_added_in_every_accepted_form() -> None:
    network = MemoryNetwork()
    network.names["seed.farm.example"] = [HOME]
    async with gossip.open_group(gossip.Address(HOME, 7946), key=RING, network=network) as alice:
        for seed in (
            f"{HOME}:7946",
            "seed.farm.example:7946",
            alice.info.address,
            gossip.Address("seed.farm.example", 7946),
        ):
            async with gossip.open_group(HOME, key=RING, network=network) as joiner:
                joiner.add_seeds(seed)
                await until_member(joiner, alice)


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        ("10.0.0.2", "HOST:PORT"),
        (5, "or an Address"),
        (("10.0.0.2", 7946), "or an Address"),
        ("8.8.8.8:7946", "not a private address"),
        (gossip.Address("10.0.0.2", 0), "port must be a number"),
        (gossip.Address("10.0.0.2", "7946"), "or an Address"),  # type: ignore[arg-type]
    ],
)
@in_simulated_time
async def test_invalid_seed_is_refused_at_call(seed: Any, message: str) -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        with pytest.raises(gossip.ConfigError, match=message):
            group.add_seeds(f"{HOME}:1", seed)
        await trio.sleep(5)


@in_simulated_time
async def test_number_of_seeds_by_name_is_limited() -> None:
    async with gossip.open_group(HOME, key=RING, network=MemoryNetwork()) as group:
        group.add_seeds(*[f"seed-{number}.example:1" for number in range(256)])
        group.add_seeds("seed-0.example:1")
        with pytest.raises(gossip.ConfigError, match="more than 256 seeds by name"):
            group.add_seeds("one.more.example:1")


def _raises(joiner: gossip.NodeInfo) -> None:
    joiner.metadata.decode("ascii")


def _returns_other_type(joiner: gossip.NodeInfo) -> Any:
    return True if joiner.metadata == b"\xff" else None


def _returns_unsendable_nak(joiner: gossip.NodeInfo) -> Any:
    return gossip.JoinNak("a domain of more characters than there is room for" * 99, 1) if joiner.metadata else None


@pytest.mark.parametrize("admit", [_raises, _returns_other_type, _returns_unsendable_nak])
@in_simulated_time
async def test_failing_admit_refuses_joiner_with_alarm(admit: Callable[[gossip.NodeInfo], Any]) -> None:
    network = MemoryNetwork()
    async with gossip.open_group(HOME, key=RING, admit=admit, network=network) as alice:
        async with gossip.open_group(HOME, key=RING, seeds=seed_of(alice), metadata=b"\xff", network=network):
            alarm = await until_alarm(alice)
            await trio.sleep(30)
            assert (alarm.kind, alice.members()) == (gossip.AlarmKind.ADMIT_FAILED, ())
            assert "`admit` did not decide" in alarm.text
            assert alice.describe().wire.dropped[Loss.ADMIT_FAILED] > 1
        async with gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as carol:
            await until_member(alice, carol)
            assert (await until_alarm(alice, over=True)).kind is gossip.AlarmKind.ADMIT_FAILED
        events: list[GroupEvent] = []
        with trio.move_on_after(1):
            async for event in alice.events():
                events.append(event.event)  # noqa: PERF401 - a canceled comprehension keeps nothing
        alarms = [each for each in events if isinstance(each, gossip.Alarm)]
        assert [each.over for each in alarms if each.kind is gossip.AlarmKind.ADMIT_FAILED] == [False, True], "once"


@in_simulated_time
async def test_joiner_stays_outside_if_admit_returns_nak() -> None:
    network = MemoryNetwork()
    nak = gossip.JoinNak("ourrules", 7, b"not blue")
    async with (
        gossip.open_group(HOME, key=RING, admit=lambda _joiner: nak, network=network) as alice,
        gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network),
    ):
        await trio.sleep(30)
        assert alice.members() == ()
        assert "admit-failed" not in alice.describe().wire.dropped


@in_simulated_time
async def test_error_in_keyring_changed_callback_raises_alarm() -> None:
    def keyring_changed(_ring: Keyring) -> None:
        raise ZeroDivisionError("division by zero")

    network = MemoryNetwork()
    async with (
        gossip.open_group(HOME, key=RING, keyring_changed=keyring_changed, network=network) as alice,
        gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris,
    ):
        await until_member(alice, boris)
        name = await gossip.KeyManager(boris).install()
        alarm = await until_alarm(alice)
        assert alarm.kind is gossip.AlarmKind.KEYRING_NOT_STORED
        assert "ZeroDivisionError: division by zero" in alarm.text
        assert name in [each.name for each in (await gossip.KeyManager(alice).list()).keys]
