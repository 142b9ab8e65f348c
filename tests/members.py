"""Members of a farm, for stories that use only some of a member's fields."""

from bridge.core.formation.founding import FormationNotice
from bridge.core.formation.member import FarmMember, MemberStatus, NodeMetadata, RoleHint

NOTHING = FormationNotice()


def farm_member(
    node_id: bytes,
    *,
    notice: FormationNotice = NOTHING,
    name: str = "",
    raft_id: int | None = None,
    endpoint: str | None = None,
    reachable: bool = True,
    eligible: bool = True,
    status: MemberStatus | None = None,
) -> FarmMember:
    role = RoleHint.ELIGIBLE if eligible else RoleHint.OBSERVER
    metadata = NodeMetadata("farm", name or node_id.hex(), role, raft_id, endpoint, notice=notice)
    return FarmMember(node_id, status or (MemberStatus.ALIVE if reachable else MemberStatus.DEAD), metadata)
