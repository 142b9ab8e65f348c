"""The file of admitted identities.

    admissions in the log, applied             ──▶ admissions.json: servers, out, chain, own
    a member announces this node's Raft id     ──▶ the same file: the announced id (`own_raft_id`)

The log stores admissions. But a node needs its Raft id before it has a log. After a restart it must also recognize the
other voters before it knows the commit index. Otherwise voters that were all admitted after the founding could not
connect to each other. So handshakes use the file before the log is replayed (`farm_peers`). A row is deleted only if
its admission lapses; retired and evicted identities stay in the file.

A member's notice of this node's Raft id is stored separately from the log's admissions. The announced id is
provisional: a later notice replaces it before there is a log, and the log replaces it later. The node uses the id in
the log only after its identity has become active under this id (`own`). During a replay, the node may apply an
admission that lapsed later, and must not use the lapsed id.

Members do not send Raft ids to founders. A founder without a record of the founding has lost its promise and its vote,
so it stays an observer. Members also announce only ids outside the present group, because the server of an id in the
group may have voted and lost its storage.
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


class AdmissionFile(msgspec.Struct):
    """The content of `admissions.json`: `servers` are identities by Raft id, `out` the retired or evicted identities.

    `chain` proves this node's admission. `announced` is the Raft id that a member announced for this node. `own` is
    the Raft id that this node has used.
    """

    cluster: str
    servers: dict[int, _NodeIdText]
    out: tuple[_NodeIdText, ...] = ()
    chain: tuple[bytes, ...] = ()
    announced: int | None = msgspec.field(default=None, name="told")
    own: int | None = None


class AdmissionStore:
    """The file and its content."""

    def __init__(self, state_dir: Path, founding: Founding, node_id: bytes, *, founded: bool) -> None:
        """Read the file; `founded` is True for a founder that has its record of the founding.

        Raise UnusableFormationError.
        """
        self._path = state_dir / FILE_NAME
        self._cluster_id = founding.cluster_id
        self._cluster = founding.cluster_id.hex()
        self.node_id = node_id
        self._waiting = trio.lowlevel.ParkingLot()
        self._one_writer = trio.Lock()
        """Held while a change is made from the present content and written."""
        self._servers = {server_id: each.node_id for server_id, each in of_founders(founding.founders).items()}
        found = self._read()
        self.out = frozenset(bytes.fromhex(node_id) for node_id in found.out)
        """Identities retired or evicted by the log; they are refused even before the log is replayed."""
        self.chain = found.chain
        """Proof of this node's admission for servers whose log lacks it (`admission_chain`); empty before admission."""
        self._servers.update({server_id: bytes.fromhex(node_id) for server_id, node_id in found.servers.items()})
        self._announced = found.announced
        self.may_be_server = founded or node_id not in founding.founders
        self._is_founder = node_id in founding.founders
        self._own = self.raft_id_of(node_id) if self._is_founder else found.own

    @property
    def own_id(self) -> int | None:
        """This node's Raft id; None before its admission, and for a founder without its record of the founding."""
        if not self.may_be_server:
            return None
        known = self._announced if self._own is None else self._own
        return self.raft_id_of(self.node_id) if known is None else known

    @property
    def was_server(self) -> bool:
        """True if the log has given this non-founder a Raft id: its server ran then, with a storage."""
        return not self._is_founder and (self._own is not None or self.raft_id_of(self.node_id) is not None)

    def node_id_of(self, server_id: int) -> bytes | None:
        """Return the identity with this Raft id."""
        return self._servers.get(server_id)

    def raft_id_of(self, node_id: bytes) -> int | None:
        """Return the highest Raft id of an identity: an identity admitted again has lapsed under lower ids."""
        return max((server_id for server_id, each in self._servers.items() if each == node_id), default=None)

    def identities(self) -> frozenset[bytes]:
        """Return the identities with a Raft id, except retired and evicted ones."""
        return frozenset(self._servers.values()) - self.out

    async def news(self) -> None:
        """Wait until something is stored after the call."""
        await self._waiting.park()

    async def store_announced(self, raft_id: int) -> None:
        """Store a member's notice that this node has the Raft id; it is on disk on return."""
        async with self._one_writer:
            chain = self.chain if raft_id == self.own_id else ()
            await self._note(self._servers, self.out, chain, raft_id, self._own)

    async def follow(self, applied_state: AppliedState) -> None:
        """Store the log's admissions, until canceled."""
        shown: tuple[int, bytes] | None = None
        while True:
            async with self._one_writer:
                seen, admitted = applied_state.state.applied_index, applied_state.state.admitted
                servers = _standing(self._servers, admitted)
                out = self.out.union(each.node_id for each in admitted.values() if each.is_out)
                own = _settled(self._own, admitted, self.node_id)
                own_id = self.own_id if own is None else own
                chain, row = self.chain, None if own_id is None else admitted.get(own_id)
                # A chain costs one verified signature for each of its links, so it is made only for a new row.
                if (
                    own_id is not None
                    and row is not None
                    and row.node_id == self.node_id
                    and shown != (own_id, row.entry)
                ):
                    chain, shown = chain_of(admitted, own_id, self._cluster_id), (own_id, row.entry)
                if (servers, out, chain, own) != (self._servers, self.out, self.chain, self._own):
                    await self._note(servers, out, chain, self._announced, own)
            if applied_state.state.applied_index == seen:  # Wait only if no entries were applied during the write.
                await applied_state.news()

    async def _note(
        self,
        servers: dict[int, bytes],
        out: frozenset[bytes],
        chain: tuple[bytes, ...],
        announced: int | None,
        own: int | None,
    ) -> None:
        content = AdmissionFile(
            self._cluster,
            {server_id: node_id.hex() for server_id, node_id in sorted(servers.items())},
            tuple(sorted(node_id.hex() for node_id in out)),
            chain,
            announced,
            own,
        )
        try:
            await trio.to_thread.run_sync(replace_file, self._path, msgspec.json.encode(content))
        except OSError as error:
            raise UnusableFormationError(
                f"{self._path} cannot be written ({error.strerror or error}): without it this node would lose its Raft"
                " id at a restart. Free some space or correct the permissions there, then start the node again",
            ) from error
        self._servers, self.out, self.chain, self._announced, self._own = servers, out, chain, announced, own
        self._waiting.unpark_all()

    def _read(self) -> AdmissionFile:
        try:
            with self._path.open("rb") as file:
                found = msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=AdmissionFile)
        except FileNotFoundError:
            return AdmissionFile(self._cluster, {})
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnusableFormationError(
                f"{self._path} cannot be used ({error}), so the Raft id of this node is unknown. Restore the file, or"
                " give the node a new state directory and another name: it then joins as a new node",
            ) from error
        if found.cluster != self._cluster:
            raise UnusableFormationError(
                f"{self._path} was written in another farm ({found.cluster}) than this node's ({self._cluster}):"
                " restore the state directory, or give the node a new one",
            )
        return found


def _standing(noted: Mapping[int, bytes], admitted: Mapping[int, Admitted]) -> dict[int, bytes]:
    """Return the identity of each Raft id, except lapsed ids. Stored ids above the last id in the log are included."""
    highest = max(admitted, default=0)
    ahead = {server_id: node_id for server_id, node_id in noted.items() if server_id > highest}
    by_log = {number: each.node_id for number, each in admitted.items() if each.standing is not Standing.LAPSED}
    return {**ahead, **by_log}


def _settled(noted: int | None, admitted: Mapping[int, Admitted], node_id: bytes) -> int | None:
    """Return the highest Raft id that an identity has used as an active member, by the log or the file."""
    alive = {
        server_id
        for server_id, each in admitted.items()
        if each.node_id == node_id and each.unseen_since_ms is None and each.standing is not Standing.LAPSED
    }
    return max(alive if noted is None else alive | {noted}, default=None)


def not_started(
    admitted: Mapping[int, Admitted], members: Collection[int], alive: Mapping[bytes, int | None], limit: int
) -> tuple[tuple[bytes, int], ...]:
    """Return admitted, live identities outside the group that do not announce a Raft server under their id."""
    waiting = [
        (each.node_id, server_id)
        for server_id, each in sorted(admitted.items())
        if server_id not in members and each.node_id in alive and alive[each.node_id] != server_id
    ]
    return tuple(waiting[:limit])
