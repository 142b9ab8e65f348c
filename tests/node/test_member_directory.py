"""The member directory: names from signed metadata, and malformed metadata."""

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from bridge.core.formation.member import NodeMetadata, RoleHint
from bridge.node.membership.member_directory import MemberDirectory
from bridge.wire.membership import metadata as metadata_module
from bridge.wire.membership.metadata import encode_metadata
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status
from gossip.core.membership import Member, MemberRecord

OWN, B, C = (NodeId(bytes([0] * 7 + [number])) for number in (1, 2, 3))
FINGERPRINT = bytes(range(32))
METADATA = NodeMetadata(
    cluster="demo", name="b", role=RoleHint.VOTER, raft_id=2, endpoint="tcp://10.0.0.2:7669", fingerprint=FINGERPRINT
)


@dataclass
class Gossip:
    """An agent with these members."""

    listed: list[Member]
    node_id: NodeId = OWN

    def members(self) -> tuple[Member, ...]:
        return tuple(self.listed)


def member(node_id: NodeId, metadata: bytes, status: Status = Status.ALIVE) -> Member:
    info = NodeInfo(node_id, Address("10.0.0.2", 7668), Incarnation(1, 0), capacity=30, metadata=metadata)
    return MemberRecord(info, status, info.incarnation, since_ms=0, mentioned_ms=0, is_peer=True)


def directory_of(*members: Member) -> tuple[MemberDirectory, Gossip]:
    gossip = Gossip(list(members))
    member_directory = MemberDirectory(gossip.node_id, "own-name", gossip.members)
    member_directory.refresh()
    return member_directory, gossip


def test_member_is_described_by_its_metadata() -> None:
    member_directory, _ = directory_of(member(B, encode_metadata(METADATA)))
    assert (member_directory.metadata_of(B), member_directory.metadata_of(C)) == (METADATA, None)
    assert (member_directory.name_of(B), member_directory.name_of(OWN), member_directory.name_of(C)) == (
        "b",
        "own-name",
        C.hex(),
    )
    assert member_directory.endpoint_of(B) == "tcp://10.0.0.2:7669"
    assert member_directory.address_of(B) == PeerAddress("10.0.0.2", 7669, FINGERPRINT)


def test_ipv6_address_is_read_without_brackets() -> None:
    member_directory, _ = directory_of(member(B, encode_metadata(replace(METADATA, endpoint="tcp://[fd00::2]:7669"))))
    assert member_directory.address_of(B) == PeerAddress("fd00::2", 7669, FINGERPRINT)


def test_address_without_certificate_lacks_fingerprint() -> None:
    member_directory, _ = directory_of(member(B, encode_metadata(replace(METADATA, fingerprint=None))))
    assert member_directory.address_of(B) == PeerAddress("10.0.0.2", 7669, None)


def test_member_without_endpoint_is_not_dialed() -> None:
    member_directory, _ = directory_of(member(B, encode_metadata(replace(METADATA, endpoint=None))))
    assert member_directory.address_of(B) is None
    assert member_directory.address_of(C) is None


def test_member_with_retired_key_is_dialed_at_signed_address() -> None:
    """Gossip does not list such a member, or lists it as dead, perhaps at an earlier address."""
    former, latest = (encode_metadata(replace(METADATA, endpoint=f"tcp://10.0.0.{n}:7669")) for n in (8, 9))
    member_directory, gossip = directory_of(member(B, encode_metadata(METADATA), Status.DEAD))
    for node_id in (B, C):
        for number, metadata in ((7, latest), (6, former), (8, b"\xff")):
            info = member(node_id, metadata).info
            member_directory.learn_outdated(replace(info, incarnation=Incarnation(number, 0)))
        assert member_directory.address_of(node_id) == PeerAddress("10.0.0.9", 7669, FINGERPRINT)
    for status in (Status.ALIVE, Status.DEAD):
        gossip.listed = [member(B, encode_metadata(METADATA), status)]
        member_directory.refresh()
    assert member_directory.address_of(B) == PeerAddress("10.0.0.2", 7669, FINGERPRINT)


@pytest.mark.parametrize(
    ("status", "reachable"), [(Status.ALIVE, True), (Status.SUSPECT, True), (Status.DEAD, False), (Status.LEFT, False)]
)
def test_suspect_member_is_still_reachable(status: Status, reachable: bool) -> None:  # noqa: FBT001 - a column of the table
    member_directory, _ = directory_of(member(B, encode_metadata(METADATA), status))
    assert [each.reachable for each in member_directory.members()] == [reachable]


def test_suspect_stays_in_contact_for_limited_time() -> None:
    now_s = 100.0
    gossip = Gossip([member(B, encode_metadata(METADATA))])
    member_directory = MemberDirectory(OWN, "own-name", gossip.members, lambda: now_s)

    def contact_as(status: Status) -> bool:
        gossip.listed[0] = member(B, encode_metadata(METADATA), status)
        member_directory.refresh()
        return member_directory.is_in_contact(B, 9.0)

    assert not member_directory.is_in_contact(B, 9.0), "gossip has no contact yet"
    assert contact_as(Status.ALIVE)
    assert contact_as(Status.SUSPECT)
    now_s += 8.9
    assert contact_as(Status.SUSPECT)
    now_s += 0.2
    assert not contact_as(Status.SUSPECT)
    assert contact_as(Status.ALIVE)
    assert contact_as(Status.SUSPECT)
    assert not contact_as(Status.DEAD)


@pytest.mark.parametrize("data", [b"", b"\xff" * 512, encode_metadata(METADATA)[:-1]], ids=["none", "invalid", "cut"])
def test_unreadable_metadata_is_counted_once_per_member(data: bytes) -> None:
    member_directory, _ = directory_of(member(C, data), member(B, encode_metadata(METADATA)))
    for _ in range(3):
        member_directory.refresh()
    assert [each.node_id for each in member_directory.members()] == [B]
    assert member_directory.name_of(C) == C.hex()
    assert member_directory.unreadable == 1


def test_metadata_is_decoded_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    real = metadata_module.decode_metadata

    def decode(data: bytes) -> NodeMetadata:
        decoded.append(data)
        return real(data)

    monkeypatch.setattr("bridge.node.membership.member_directory.decode_metadata", decode)
    member_directory, gossip = directory_of(member(B, encode_metadata(METADATA)))
    member_directory.refresh()
    assert len(decoded) == 1
    gossip.listed = [member(B, encode_metadata(replace(METADATA, name="renamed")))]
    member_directory.refresh()
    assert (len(decoded), member_directory.name_of(B)) == (2, "renamed")
    gossip.listed = []
    member_directory.refresh()
    assert (member_directory.members(), member_directory.name_of(B)) == ((), B.hex())


def test_single_change_updates_directory() -> None:
    # Given two members, one of them with unreadable metadata
    member_directory, gossip = directory_of(member(B, encode_metadata(METADATA)), member(C, b"invalid"))
    gossip.listed.clear()
    # When B is declared dead, and C sends readable metadata
    member_directory.learn(member(B, encode_metadata(METADATA)).info, Status.DEAD)
    member_directory.learn(member(C, encode_metadata(replace(METADATA, name="c"))).info, Status.ALIVE)
    # Then the directory has both changes
    assert [(each.node_id, each.reachable, each.metadata.name) for each in member_directory.members()] == [
        (B, False, "b"),
        (C, True, "c"),
    ]
    assert (len(member_directory), member_directory.unreadable) == (2, 1)
    # And a member dropped by gossip is removed at the next refresh
    member_directory.refresh()
    assert (len(member_directory), member_directory.members()) == (0, ())
