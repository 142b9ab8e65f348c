"""Requests of a leader or a candidate as bytes: the core's requests as messages that the peer supports.

    encode_pack   an append with entries for a joining peer ──▶ SyncLogRequest, one log pack
    encode        any other request                         ──▶ its own message (`mapping`)

For a group of commands, the encoder sends the core's bytes; it encodes other entries itself. The bytes of the last
append are kept, since followers mostly get the same entries. Equal entries from the same index on have equal logs
before them (Raft section 5.3), so no other comparison is necessary.
"""

from consensus.core import messages as core
from consensus.core.model import COMMAND, Entry, Index, integer_id
from consensus.protocols.garlic_farm.wire.codec import encode_log, encode_request
from consensus.protocols.garlic_farm.wire.joining_mapping import sync_to_wire
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS
from consensus.protocols.garlic_farm.wire.log_pack import records_bytes
from consensus.protocols.garlic_farm.wire.mapping import (
    ConfigurationBefore,
    append_to_wire,
    check_agreed,
    entries_to_wire,
    request_to_wire,
)
from consensus.protocols.garlic_farm.wire.upgrade import Extension
from consensus.protocols.garlic_farm.wire.values import LogEntry, LogPack, WireEntry


class RequestEncoder:
    """Encodes requests to all peers of one server, and keeps the entries of the last append in the wire's form."""

    def __init__(self, configuration_before: ConfigurationBefore) -> None:
        self._configuration_before = configuration_before
        self._first: Index = 0
        self._entries: tuple[Entry, ...] = ()
        self._known: tuple[tuple[WireEntry, ...], bytes] = ((), b"")

    def encode(self, request: core.Request, peer: int, extensions: frozenset[Extension]) -> bytes:
        """Return the bytes for `peer`; raises `GarlicFarmError` if the peer or the protocol cannot take the request."""
        log = None
        if not isinstance(request, core.AppendEntries):
            message = request_to_wire(request, peer, self._configuration_before)
        else:
            entries, log = self.entries_of(request)
            message = append_to_wire(request, peer, entries, log if entries is request.entries else b"")
        check_agreed(message, extensions)
        return encode_request(message, log=log)

    def encode_pack(
        self, append: core.AppendEntries, peer: int, extensions: frozenset[Extension], offset: int
    ) -> tuple[bytes, int]:
        """Return an append as a log pack for a newcomer, and the size of its records in a data file.

        `offset` is the size in bytes of the newcomer's data file; raises as `encode` does.
        """
        message = sync_to_wire(append, peer, self._configuration_before, offset)
        check_agreed(message, extensions)
        packs = (each.value for each in message.entries if isinstance(each, LogEntry))
        added = sum(records_bytes(pack.entries) for pack in packs if isinstance(pack, LogPack))
        return encode_request(message), added

    def entries_of(self, append: core.AppendEntries) -> tuple[tuple[WireEntry, ...], bytes]:
        """Return the entries and their bytes; raises `GarlicFarmError` for entries that the protocol cannot carry."""
        first = append.previous.index + 1
        if not append.entries:
            return (), b""
        if (first, append.entries) != (self._first, self._entries):
            self._known = self._encode_entries(first, append)
            self._first, self._entries = first, append.entries
        return self._known

    def _encode_entries(self, first: Index, append: core.AppendEntries) -> tuple[tuple[WireEntry, ...], bytes]:
        entries, log, limits = append.entries, append.encoded, DEFAULT_LIMITS
        applications = {entry.kind for entry in entries} == {COMMAND}
        if log and applications and len(entries) <= limits.entries and len(log) <= limits.entry_bytes:
            return entries, log
        converted = entries_to_wire(first, entries, self._configuration_before)
        return converted, encode_log(append_to_wire(append, integer_id(append.leader), converted))
