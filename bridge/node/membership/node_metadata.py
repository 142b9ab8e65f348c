"""What this node says of itself in its signed metadata, put together from the parts that know a part of it.

    Forming (notice) ──┐
    Replica (Raft id) ─┼──▶ OwnMetadata ──▶ NodeMetadata, signed by gossip
    Reconciling ───────┘    (admissions, while this node leads)

Each change is announced as a whole, so no part can overwrite what another one said.
"""

from collections.abc import Callable
from dataclasses import replace

from bridge.core.formation.founding import FormationNotice
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.wire.membership.metadata import NodeMetadata, RoleHint, encode_metadata, fitting_admissions

Admissions = tuple[tuple[bytes, int], ...]


def first_metadata(cluster: str, name: str, endpoint: str, fingerprint: bytes | None) -> NodeMetadata:
    """What a node says when it starts."""
    return NodeMetadata(
        cluster=cluster,
        name=name,
        role=RoleHint.ELIGIBLE,
        endpoint=endpoint,
        fingerprint=fingerprint,
        feature_level=SUPPORTED_LEVEL,
    )


def metadata_bytes(metadata: NodeMetadata) -> bytes:
    """The same for gossip, with as many admissions as there is room for."""
    return encode_metadata(fitting_admissions(metadata))


class OwnMetadata:
    """What this node says of itself now."""

    def __init__(self, first: NodeMetadata, announce: Callable[[bytes], None]) -> None:
        """`announce` has been told `first`, and is told every change."""
        self._now = first
        self._announce = announce

    @property
    def notice(self) -> FormationNotice:
        """How far formation has got."""
        return self._now.notice

    @property
    def fingerprint(self) -> bytes | None:
        """Of the certificate that this node shows."""
        return self._now.fingerprint

    def notice_changed(self, notice: FormationNotice) -> None:
        """Formation has got further."""
        self._change(replace(self._now, notice=notice))

    def server_runs(self, raft_id: int) -> None:
        """This node's Raft server runs, under this id."""
        self._change(replace(self._now, raft_id=raft_id, role=RoleHint.VOTER))

    def tell(self, admissions: Admissions) -> None:
        """Routers that were admitted are told their Raft ids."""
        if admissions != self._now.admissions:
            self._change(replace(self._now, admissions=admissions))

    def _change(self, metadata: NodeMetadata) -> None:
        self._now = metadata
        self._announce(metadata_bytes(metadata))
