"""The newest valid structure (Meta LeaseSet2) of each master that this node knows, for its directory.

    this node's hand-overs ────────────────────┐
    `lastPublishedLS` in the servers' reports ─┴─▶ offer ─▶ one per master and server ─▶ newest: verified, latest second

A structure is verified when a client requests it, not when it arrives. A node that replays its log receives thousands
of structures, and each server's next structure replaces its last one. After verification only the newest valid
structure is kept.
"""

from collections.abc import Mapping

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Report
from bridge.core.state.farm_state import SERVERS_MAX, MasterState
from bridge.wire.i2p.structure_exchange import ExchangeError, ReplyStatus, StructureReply, verified_structure
from bridge.wire.i2p.structures import ADDRESS_SUFFIX, I2pError, address_of, base64_decode


class KnownStructures:
    """The structures offered so far. Masters are named by their destinations in I2P's base64."""

    def __init__(self) -> None:
        self._newest: dict[str, bytes] = {}
        self._offered: dict[str, dict[int, str]] = {}
        """By master and server, since the last request."""

    def offer(self, master: str, server_id: int, structure: str) -> None:
        """Take a structure in base64. The caller limits the masters to the farm's state."""
        offered = self._offered.setdefault(master, {})
        offered.pop(server_id, None)
        offered[server_id] = structure
        if len(offered) > SERVERS_MAX:
            del offered[next(iter(offered))]

    def reported(self, report: Report, masters: Mapping[str, MasterState]) -> None:
        """Take the structures in a report that the farm's state contains."""
        for removed in self._offered.keys() - masters.keys():
            del self._offered[removed]
        for part in report.masters:
            if part.last_published_lease_set is not None and part.destination in masters:
                self.offer(part.destination, report.server_id, part.last_published_lease_set)

    def reply_for(self, address_hash: bytes, masters: Mapping[str, MasterState], now_s: int) -> StructureReply:
        """Return the reply to a request for an address."""
        name = address_of(address_hash).removesuffix(ADDRESS_SUFFIX)
        master = next((each for each in masters if hash_of(each) == name), None)
        if master is None:
            return StructureReply(ReplyStatus.UNKNOWN_ADDRESS)
        newest = self._valid(master, address_hash, now_s)
        self._newest = {each: kept for each, kept in self._newest.items() if each in masters}
        if newest is None:
            return StructureReply(ReplyStatus.NOTHING_PUBLISHED)
        return StructureReply(ReplyStatus.STRUCTURE, newest)

    def _valid(self, master: str, address_hash: bytes, now_s: int) -> bytes | None:
        found: dict[int, bytes] = {}
        for data in (self._newest.pop(master, b""), *map(_decoded, self._offered.pop(master, {}).values())):
            try:
                found.setdefault(verified_structure(address_hash, data, now_s).published_s, data)
            except ExchangeError:
                continue  # expired, or a faulty server reports it
        if not found:
            return None
        self._newest[master] = found[max(found)]
        return found[max(found)]


def _decoded(structure: str) -> bytes:
    try:
        return base64_decode(structure)
    except I2pError:
        return b""
