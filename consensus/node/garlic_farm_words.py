"""What a leader or a candidate sends, as bytes: the core's requests in the words that the peer knows.

    newcomer, append with entries ──▶ SyncLogRequest, one log pack
    anything else                 ──▶ its own word (`mapping`)

Followers mostly get the same entries, and their bytes are most of the work: those of the last append are kept. Equal
entries from the same index on have equal logs before them (Raft section 5.3), so nothing else need be equal.
"""

from consensus.core import messages as core
from consensus.core.position import Entry, Index, ServerId
from consensus.wire.garlic_farm.codec import encode_log, encode_request
from consensus.wire.garlic_farm.joining_mapping import sync_to_wire
from consensus.wire.garlic_farm.limits import Limits
from consensus.wire.garlic_farm.mapping import (
    ConfigurationBefore,
    append_to_wire,
    check_agreed,
    entries_to_wire,
    request_to_wire,
)
from consensus.wire.garlic_farm.upgrade import Extension
from consensus.wire.garlic_farm.values import LogEntry


class SameLog:
    """The entries of the last append in the wire's form and as bytes."""

    def __init__(self, configuration_before: ConfigurationBefore, limits: Limits) -> None:
        self._configuration_before = configuration_before
        self._limits = limits
        self._first: Index = 0
        self._entries: tuple[Entry, ...] = ()
        self._known: tuple[tuple[LogEntry, ...], bytes] = ((), b"")

    def of(self, append: core.AppendEntries) -> tuple[tuple[LogEntry, ...], bytes]:
        """The entries of `append`; raises `GarlicFarmError` for what the protocol cannot carry."""
        first = append.previous.index + 1
        if not append.entries:
            return (), b""
        if (first, append.entries) != (self._first, self._entries):
            entries = entries_to_wire(first, append.entries, self._configuration_before)
            log = encode_log(append_to_wire(append, append.leader, entries), self._limits)
            self._first, self._entries, self._known = first, append.entries, (entries, log)
        return self._known


class Words:
    """Encodes requests to all peers of one server."""

    def __init__(self, configuration_before: ConfigurationBefore, limits: Limits) -> None:
        self._configuration_before = configuration_before
        self._limits = limits
        self._same_log = SameLog(configuration_before, limits)

    def of(
        self, request: core.Request, peer: ServerId, extensions: frozenset[Extension], *, packed: bool = False
    ) -> bytes:
        """The bytes for `peer`; raises `GarlicFarmError` for what it or the protocol has no word for.

        `packed`: it is a newcomer, to which entries go as log packs.
        """
        log = None
        if not isinstance(request, core.AppendEntries):
            asked = request_to_wire(request, peer, self._configuration_before)
        elif packed and request.entries:
            asked = sync_to_wire(request, peer, self._configuration_before)
        else:
            entries, log = self._same_log.of(request)
            asked = append_to_wire(request, peer, entries)
        check_agreed(asked, extensions)
        return encode_request(asked, self._limits, log)
