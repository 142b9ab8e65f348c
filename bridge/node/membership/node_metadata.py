"""What this node says of itself in its gossip metadata, put together from those who know a part of it.

    Forming (notice) ─┐
    Replica (Raft id) ─┼──▶ Presence ──▶ NodeMetadata, signed by gossip
    Reconciling       ─┘    (admissions, while this node leads)

Each change is announced as a whole, so no part can overwrite what another one said.
"""

from collections.abc import Callable

from bridge.core.formation.founding import FormationNotice
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.wire.membership.metadata import NodeMetadata, RoleHint, encode_metadata, fitting_admissions

Admissions = tuple[tuple[bytes, int], ...]


class OwnMetadata:
    """The parts, and the bytes that they make."""

    def __init__(self, cluster: str, name: str, endpoint: str, fingerprint: bytes | None) -> None:
        self._cluster = cluster
        self._name = name
        self._endpoint = endpoint
        self.fingerprint = fingerprint
        self._say: Callable[[bytes], None] = lambda _: None
        self._admissions: Admissions = ()
        self.notice = FormationNotice()
        self.raft_id: int | None = None

    def metadata(self) -> bytes:
        """What is to be said now."""
        whole = NodeMetadata(
            cluster=self._cluster,
            name=self._name,
            role=RoleHint.ELIGIBLE if self.raft_id is None else RoleHint.VOTER,
            raft_id=self.raft_id,
            endpoint=self._endpoint,
            fingerprint=self.fingerprint,
            feature_level=SUPPORTED_LEVEL,
            notice=self.notice,
            admissions=self._admissions,
        )
        return encode_metadata(fitting_admissions(whole))

    def speak_through(self, say: Callable[[bytes], None]) -> None:
        """Gossip is there."""
        self._say = say

    def notice_changed(self, notice: FormationNotice) -> None:
        """Formation has got further."""
        self.notice = notice
        self._announce()

    def server_runs(self, raft_id: int) -> None:
        """This node's Raft server runs, under this id."""
        self.raft_id = raft_id
        self._announce()

    def tell(self, admissions: Admissions) -> None:
        """Routers that were admitted are told their Raft ids."""
        if admissions != self._admissions:
            self._admissions = admissions
            self._announce()

    def _announce(self) -> None:
        self._say(self.metadata())
