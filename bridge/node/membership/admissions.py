"""What this node has on disk of who was admitted.

    admissions in the log, applied ──▶ admissions.json: servers, out, chain, own
    a member's word about this node ──▶ the same file: told (`own_raft_id`)

The log is where admissions live. But a node has to know its Raft id before it has a log, and after a restart it has to
find the other voters before it knows what is committed: if all of them were admitted later, no voter could reach
another. An entry of the file stays valid permanently, unless the admission has lapsed; then its row is deleted. The
same holds for retired and evicted identities. So handshakes use the file before the log is replayed (`farm_peers`).

A member's word about this node's own Raft id is kept apart from what the log says. It is not binding: the log's word
takes its place, and so does a later one of a member while there is no log. The log's word on this node's own id counts
once the identity came alive under it (`own`): a node whose first admission lapsed and that was admitted again passes
the first one as it replays the log, and must not take up the lapsed id.

No member sends a founder its Raft id. A node among the founders without a record of the founding has lost its promise
and its vote; it stays an observer. For the same reason no node receives a Raft id that is in the group at that moment:
an election may depend on its storage.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import trio

from bridge.core.formation.founding import Founding
from bridge.core.membership.admission import Admitted, Standing, of_founders
from bridge.node.membership.forming import UnusableFormationError
from bridge.node.raft.applied_state import AppliedState
from bridge.wire.log.admission_chain import chain_of
from consensus.storage import replace_file

FILE_NAME = "admissions.json"
FILE_LIMIT_BYTES = 1024 * 1024

_NodeIdText = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}\\Z")]


class _AdmissionFile(msgspec.Struct):
    cluster: str
    servers: dict[int, _NodeIdText]
    out: tuple[_NodeIdText, ...] = ()
    chain: tuple[bytes, ...] = ()
    told: int | None = None
    own: int | None = None


class AdmissionStore:
    """The file, and what it says."""

    def __init__(self, state_dir: Path, founding: Founding, node_id: bytes, *, founded: bool) -> None:
        """`founded`: this node is one of the founders. Raises UnusableFormationError."""
        self._path = state_dir / FILE_NAME
        self._cluster_id = founding.cluster_id
        self._cluster = founding.cluster_id.hex()
        self.node_id = node_id
        self._servers = {server_id: each.node_id for server_id, each in of_founders(founding.founders).items()}
        found = self._read()
        self.out = frozenset(bytes.fromhex(node_id) for node_id in found.out)
        """Identities retired or evicted by the log; they are refused before the log is replayed, too."""
        self.chain = found.chain
        """What shows this node to servers that have not heard of it (`admission_chain`), once the log has told it."""
        self._servers.update({server_id: bytes.fromhex(node_id) for server_id, node_id in found.servers.items()})
        self._told = found.told
        self.may_be_server = founded or node_id not in founding.founders
        self._is_founder = node_id in founding.founders
        self._own = self.raft_id_of(node_id) if self._is_founder else found.own

    @property
    def own_id(self) -> int | None:
        """This node's Raft id, None before it is admitted."""
        if not self.may_be_server:
            return None
        known = self._told if self._own is None else self._own
        return self.raft_id_of(self.node_id) if known is None else known

    @property
    def was_server(self) -> bool:
        """Whether the log has told this node, which is no founder, its Raft id: its server ran then, with a storage."""
        return not self._is_founder and (self._own is not None or self.raft_id_of(self.node_id) is not None)

    def node_id_of(self, server_id: int) -> bytes | None:
        """Whose Raft id it is."""
        return self._servers.get(server_id)

    def raft_id_of(self, node_id: bytes) -> int | None:
        """The Raft id of an identity: the highest, since who is admitted again has lapsed under the ones below."""
        return max((server_id for server_id, each in self._servers.items() if each == node_id), default=None)

    async def told_by_member(self, raft_id: int) -> None:
        """A member says that this node has that Raft id; on disk when this returns."""
        chain = self.chain if raft_id == self.own_id else ()
        await self._note(self._servers, self.out, chain, raft_id, self._own)

    async def follow(self, applied_state: AppliedState) -> None:
        """Notes what the log says, until cancelled."""
        shown: tuple[int, bytes] | None = None
        while True:
            admitted = applied_state.state.admitted
            servers = _standing(self._servers, admitted)
            out = self.out.union(each.node_id for each in admitted.values() if each.is_out)
            own = _settled(self._own, admitted, self.node_id)
            own_id = self.own_id if own is None else own
            chain, row = self.chain, None if own_id is None else admitted.get(own_id)
            # To make a chain costs a verification for each of its links, so it is made when the row is another one.
            if own_id is not None and row is not None and row.node_id == self.node_id and shown != (own_id, row.entry):
                chain, shown = chain_of(admitted, own_id, self._cluster_id), (own_id, row.entry)
            if (servers, out, chain, own) != (self._servers, self.out, self.chain, self._own):
                await self._note(servers, out, chain, self._told, own)
            await applied_state.news()

    async def _note(
        self,
        servers: dict[int, bytes],
        out: frozenset[bytes],
        chain: tuple[bytes, ...],
        told: int | None,
        own: int | None,
    ) -> None:
        content = _AdmissionFile(
            self._cluster,
            {server_id: node_id.hex() for server_id, node_id in sorted(servers.items())},
            tuple(sorted(node_id.hex() for node_id in out)),
            chain,
            told,
            own,
        )
        try:
            await trio.to_thread.run_sync(replace_file, self._path, msgspec.json.encode(content))
        except OSError as error:
            raise UnusableFormationError(
                f"{self._path} cannot be written ({error.strerror or error}): without it this node would lose its Raft"
                " id at a restart. Free some space or correct the permissions there, then start the node again",
            ) from error
        self._servers, self.out, self.chain, self._told, self._own = servers, out, chain, told, own

    def _read(self) -> _AdmissionFile:
        try:
            with self._path.open("rb") as file:
                found = msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=_AdmissionFile)
        except FileNotFoundError:
            return _AdmissionFile(self._cluster, {})
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnusableFormationError(
                f"{self._path} cannot be used ({error}): which Raft id this node has is unknown. Restore the file, or"
                " give the node a new state directory and another name: it then joins as a new node",
            ) from error
        if found.cluster != self._cluster:
            raise UnusableFormationError(
                f"{self._path} was written in another farm ({found.cluster}) than this node's ({self._cluster}): put"
                " the state directory back as it was, or give the node a new one",
            )
        return found


def _standing(noted: Mapping[int, bytes], admitted: Mapping[int, Admitted]) -> dict[int, bytes]:
    """Whose Raft id each is, without what has lapsed. What was noted of ids that the log has not reached yet stays."""
    highest = max(admitted, default=0)
    ahead = {server_id: node_id for server_id, node_id in noted.items() if server_id > highest}
    by_log = {number: each.node_id for number, each in admitted.items() if each.standing is not Standing.LAPSED}
    return {**ahead, **by_log}


def _settled(noted: int | None, admitted: Mapping[int, Admitted], node_id: bytes) -> int | None:
    """The highest Raft id under which an identity came alive, by the log or as noted: under a lapsed one it did not."""
    alive = {
        server_id
        for server_id, each in admitted.items()
        if each.node_id == node_id and each.unseen_since_ms is None and each.standing is not Standing.LAPSED
    }
    return max(alive if noted is None else alive | {noted}, default=None)


def not_started(
    admitted: Mapping[int, Admitted], members: Collection[int], alive: Mapping[bytes, int | None], limit: int
) -> tuple[tuple[bytes, int], ...]:
    """Who is alive and admitted, no member of the group, and does not say that its Raft server runs."""
    waiting = [
        (each.node_id, server_id)
        for server_id, each in sorted(admitted.items())
        if server_id not in members and each.node_id in alive and alive[each.node_id] != server_id
    ]
    return tuple(waiting[:limit])
