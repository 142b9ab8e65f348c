"""A running farm changes its passwords: open connections stay, and servers with an older password can connect."""

import pytest
import trio

from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.messages import RequestVoteRequest
from tests.node.garlic_farm_stage import ALICE, BOB, Host, Stage

OLD, NEW, NEXT = Credentials("farm-1", "old"), Credentials("farm-2", "new"), Credentials("farm-3", "next")


@pytest.fixture
def stage(nursery: trio.Nursery) -> Stage:
    return Stage(nursery)


def let_accept(host: Host, *credentials: Credentials) -> None:
    host.passwords = {each.user: each.password for each in credentials}


async def test_caller_uses_its_current_best_credentials(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    let_accept(host, OLD, NEW)
    shown: list[tuple[Credentials, ...]] = [(OLD,)]
    dialer = stage.dialer_with(ALICE, lambda: shown[-1])
    await dialer.dial(stage.resolve(BOB), BOB)
    shown.append((NEW, OLD))
    let_accept(host, NEW)
    await dialer.dial(stage.resolve(BOB), BOB)
    assert host.incidents == [], "the new credentials answered the cached challenge"
    assert stage.connections == 3


@pytest.mark.parametrize(
    ("ours", "theirs"), [((NEW, OLD), (OLD,)), ((OLD, NEW), (NEW,))], ids=["older server", "older caller"]
)
async def test_refused_credentials_are_followed_by_second_best(
    stage: Stage, ours: tuple[Credentials, ...], theirs: tuple[Credentials, ...]
) -> None:
    host = stage.add(Host(BOB))
    let_accept(host, *theirs)
    dialer = stage.dialer_with(ALICE, lambda: ours)
    assert (await dialer.dial(stage.resolve(BOB), BOB)).peer.server_id == BOB


async def test_second_best_credentials_are_last_attempt(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    let_accept(host, NEXT)
    dialer = stage.dialer_with(ALICE, lambda: (NEW, OLD, NEXT))
    with pytest.raises(GarlicFarmError, match="does not accept user 'farm-1'") as refused:
        await dialer.dial(stage.resolve(BOB), BOB)
    assert refused.value.fault is Fault.WRONG_CREDENTIALS
    assert len(host.incidents) == 1
    assert host.metrics.counts[Fault.WRONG_CREDENTIALS] == 2


async def test_other_credentials_are_tried_only_after_refusal(stage: Stage) -> None:
    calls = []

    def credentials() -> tuple[Credentials, ...]:
        calls.append(1)
        return (NEW, OLD)

    with pytest.raises(GarlicFarmError) as refused:
        await stage.dialer_with(ALICE, credentials).dial(stage.resolve(BOB), BOB)
    assert refused.value.fault is Fault.UNREACHABLE
    assert len(calls) == 1


async def test_open_connection_survives_removal_of_its_credentials(stage: Stage) -> None:
    host = stage.add(Host(BOB))
    let_accept(host, OLD)
    dialed = await stage.dialer_with(ALICE, lambda: (OLD,)).dial(stage.resolve(BOB), BOB)
    let_accept(host, NEW)
    await dialed.stream.send_all(encode_request(RequestVoteRequest(source=ALICE, destination=BOB, term=2)))
    with trio.fail_after(60):
        assert await dialed.stream.receive_some(64)
    assert host.incidents == []
