"""A node named after its host yields the name to another node that has it, and never changes a configured name."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.core.formation.member import FarmMember, MemberStatus, NodeMetadata, RoleHint
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.membership.own_name import (
    LIVES_ON_S,
    NAME_LIMIT,
    NameTakenError,
    note_name,
    own_end,
    remembered_name,
    watch_name,
)
from bridge.node.settings.configuration import NodeConfiguration, Overrides, load_configuration
from bridge.node.settings.machine import Machine
from gossip import NodeId

LOW, OWN, HIGH = b"\x01" * 8, b"\x55" * 8, b"\x99" * 8


def configuration(directory: Path, name: str | None = None, hostname: str = "vm") -> NodeConfiguration:
    """Return the configuration of a node on this host."""
    file = directory / "node.toml"
    file.write_text('farm_key = "farm.key"\nstate_dir = "."\n[gossip]\nbind = "127.0.0.1:7668"\n')
    return load_configuration(file, Overrides(name=name), Machine(hostname=hostname))


def test_host_without_permitted_characters_has_node_named_node(tmp_path: Path) -> None:
    assert configuration(tmp_path, hostname="__").name == "node"


class Others(MemberDirectory):
    """A member directory with the given members."""

    def __init__(self, *members: FarmMember) -> None:
        super().__init__(NodeId(OWN), "vm", tuple)
        self.now = members

    def of_cluster(self, cluster: str) -> tuple[FarmMember, ...]:
        return tuple(each for each in self.now if each.metadata.cluster == cluster)


def other(
    node_id: bytes, name: str = "vm", status: MemberStatus = MemberStatus.ALIVE, cluster: str = "farm"
) -> FarmMember:
    return FarmMember(node_id, status, NodeMetadata(cluster, name, RoleHint.ELIGIBLE, None, None, None))


async def name_after(
    directory: Path,
    others: Others,
    *,
    name: str | None = None,
    recorded: bool = False,
    farm: bool = False,
    seconds: float = 60,
) -> str | None:
    """Return the other name that the node takes within `seconds`, or None."""
    taken: list[str] = []
    with trio.move_on_after(seconds):
        try:
            await watch_name(configuration(directory, name), OWN, "farm", others, lambda: recorded, lambda: farm)
        except NameTakenError as error:
            taken.append(error.name)
    return taken[0] if taken else None


@pytest.mark.parametrize(
    ("others", "name"),
    [
        ((other(LOW),), "vm-5555"),
        ((other(HIGH),), None),
        ((other(LOW, "attic"),), None),
        ((other(LOW, status=MemberStatus.DEAD),), None),
        ((other(LOW, cluster="another"),), None),
        ((other(HIGH), other(LOW)), "vm-5555"),
    ],
    ids=["lower id", "higher id", "other name", "dead node", "other cluster", "several nodes"],
)
async def test_lowest_id_keeps_name_before_founding(
    autojump_clock: MockClock, tmp_path: Path, others: tuple[FarmMember, ...], name: str | None
) -> None:
    # After the wait, a node with a higher id would yield. This stage does not model that, so the test ends before the
    # wait ends.
    assert await name_after(tmp_path, Others(*others), seconds=LIVES_ON_S / 2) == name


async def test_new_node_yields_its_name_only_to_alive_node(autojump_clock: MockClock, tmp_path: Path) -> None:
    former = Others(other(HIGH))

    async def kill_later() -> None:
        await trio.sleep(LIVES_ON_S / 2)
        former.now = (other(HIGH, status=MemberStatus.DEAD),)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_later)
        assert await name_after(tmp_path, former, farm=True) is None
    assert await name_after(tmp_path, Others(other(HIGH)), farm=True) == "vm-5555"


async def test_configured_or_recorded_name_is_kept(autojump_clock: MockClock, tmp_path: Path) -> None:
    assert await name_after(tmp_path, Others(other(LOW)), name="vm") is None
    assert await name_after(tmp_path, Others(other(LOW)), recorded=True) is None


def test_changed_name_is_kept_after_restart_unless_configured(tmp_path: Path) -> None:
    assert remembered_name(configuration(tmp_path)).name == "vm"
    note_name(tmp_path, "vm-5555")
    assert remembered_name(configuration(tmp_path)).name == "vm-5555"
    assert remembered_name(configuration(tmp_path, "attic")).name == "attic"
    (tmp_path / "name").write_bytes(b"\xff" * 99)
    assert remembered_name(configuration(tmp_path)).name == "vm"


def test_long_name_is_shortened_for_its_suffix() -> None:
    made = own_end("x" * NAME_LIMIT, OWN)
    assert (len(made), made[-5:]) == (NAME_LIMIT, "-5555")
