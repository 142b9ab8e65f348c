"""Wrong advertised addresses of KRaft voters: the log does not record them; recorded ones do not stop elections."""

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from consensus.protocols.kraft.operators.settings import Endpoint, VoterSettings
from consensus.protocols.kraft.replica import announcing
from consensus.protocols.kraft.replica.announcing import AddressRefused
from consensus.protocols.kraft.replica.open_voter import KraftVoter, VoterOptions
from consensus.protocols.kraft.replica.quorum_names import host_port, server_of
from consensus.protocols.kraft.wire.entries import leader_head
from consensus.protocols.kraft.wire.replica_names import replica
from tests.effort import few_of
from tests.node.memory_server import until
from tests.node.test_kraft_voter import LOOPBACK, Quorum, batch, formatted, opened, values_of
from tests.processes import free_ports

pytestmark = pytest.mark.usefixtures("small_segments")

ANNOUNCE_S = 0.1
Place = tuple[str, int]


@contextmanager
def unresponsive_port() -> Iterator[int]:
    """Yield a port that accepts connections and never replies, like a firewall without resets."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        yield int(listening.getsockname()[1])


@dataclass
class WrongPlaces:
    """The places that a wrong setting can name."""

    closed: int
    unresponsive: int
    ports: list[int]

    def place(self, kind: str, other: int) -> Place:
        """Return the wrong place of one kind; `other` is another voter."""
        match kind:
            case "closed":
                return LOOPBACK, self.closed
            case "no-name":
                return "no-such-host.invalid", 9093
            case "other-voter":
                return LOOPBACK, self.ports[other - 1]
            case _:
                return LOOPBACK, self.unresponsive


KINDS = ("closed", "no-name", "other-voter", "unresponsive")


@asynccontextmanager
async def announcing_quorum(
    settings: list[VoterSettings], monkeypatch: pytest.MonkeyPatch, refused: list[AddressRefused] | None = None
) -> AsyncIterator[Quorum]:
    """Run these servers; they announce themselves more often than in production."""
    monkeypatch.setattr(announcing, "JOIN_S", ANNOUNCE_S)
    options = VoterOptions(address_refused=(refused if refused is not None else []).append)
    async with opened(settings, options) as quorum:
        yield quorum


@contextmanager
def wrong_places(settings: list[VoterSettings]) -> Iterator[WrongPlaces]:
    with unresponsive_port() as unresponsive:
        yield WrongPlaces(free_ports(1)[0], unresponsive, [each.listeners[0].port for each in settings])


def recorded(voter: KraftVoter, node_id: int) -> Place | None:
    """Return a voter's address in the log."""
    voters = voter.server.describe().raft.configuration.voters
    return next((host_port(each.endpoint) for each in voters if replica(each.server_id).id == node_id), None)


def advertising(settings: VoterSettings, place: Place) -> VoterSettings:
    return replace(settings, advertised_listeners=(Endpoint("CONTROLLER", *place),))


async def test_wrong_address_of_follower_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server with the wrong setting reports the refusal."""
    settings, refused = formatted(tmp_path, 3, dynamic=True), list[AddressRefused]()
    with wrong_places(settings) as wrong:
        async with announcing_quorum(settings, monkeypatch, refused) as quorum:
            leader = await quorum.leader()
            bad = next(number for number in (1, 2, 3) if number != leader.key.id)
            right = recorded(leader, bad)
            for kind in KINDS:
                place = wrong.place(kind, 6 - bad - leader.key.id)
                await quorum.end(bad)
                refused.clear()
                await quorum.start(advertising(settings[bad - 1], place))
                await until(lambda: bool(refused))
                assert host_port(refused[0].address) == place
                assert host_port(refused[0].recorded) == right == recorded(leader, bad)


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_address_of_leader_is_not_recorded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, refused = formatted(tmp_path, 1, dynamic=True, initial=1), list[AddressRefused]()
    other = formatted(tmp_path / "other", 1, dynamic=True, initial=1)
    with wrong_places([*settings, *other]) as wrong:
        async with announcing_quorum([advertising(settings[0], wrong.place(kind, 2))], monkeypatch, refused) as quorum:
            leader = await quorum.leader()
            await until(lambda: bool(refused))
            assert recorded(leader, 1) == (LOOPBACK, settings[0].listeners[0].port)


@pytest.mark.parametrize(
    ("kind", "is_corrected"),
    few_of(
        {f"{kind}-{text}": (kind, text == "corrected") for kind in KINDS for text in ("uncorrected", "corrected")},
        *("unresponsive-uncorrected", "closed-corrected"),
    ),
)
async def test_majority_elects_despite_wrong_record(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_corrected: bool
) -> None:
    """Given a wrong record (of an older version or Kafka's controller), when the leader stops, then others elect."""
    settings = formatted(tmp_path, 3, dynamic=True)
    with wrong_places(settings) as wrong:
        async with announcing_quorum(settings, monkeypatch) as quorum:
            leader = await quorum.leader()
            bad = next(number for number in (1, 2, 3) if number != leader.key.id)
            place = wrong.place(kind, 6 - bad - leader.key.id)
            mistaken = advertising(settings[bad - 1], place)
            await quorum.end(bad)
            voters = leader.server.describe().raft.configuration.voters
            key = next(each for each in map(replica, (e.server_id for e in voters)) if each.id == bad)
            moved = server_of(key, mistaken.advertised)
            await leader.server.change_configuration(
                tuple(moved if each.server_id == moved.server_id else each for each in voters), head=leader_head(1)
            )
            await quorum.start(mistaken)
            last = leader.server.commit_index
            for voter in quorum.running.values():
                await voter.server.wait_commit(last)
            await quorum.end(leader.key.id)
            if is_corrected:
                await quorum.end(bad)
                await quorum.start(settings[bad - 1])
            while (await quorum.leader()).key.id != bad:
                await (await quorum.leader()).resign()
            _, produced = await quorum.append(batch(b"after"))
            for voter in quorum.running.values():
                assert b"after" in await values_of(voter, produced.base_offset + 1)
            if is_corrected:
                right = LOOPBACK, settings[bad - 1].listeners[0].port
                await until(lambda: all(recorded(each, bad) == right for each in quorum.running.values()))
