"""The entries of an append are encoded once for all followers, and the bytes are never used for other entries."""

import gc
import tracemalloc

from msgspec.structs import replace

from consensus.core.entry_data import configuration_entry, encode_group
from consensus.core.messages import AppendEntries
from consensus.core.model import Configuration, Entry, LogId, Server
from consensus.protocols.garlic_farm.node.request_encoder import RequestEncoder
from consensus.protocols.garlic_farm.wire.codec import RequestReader, decode_request, encode_request
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS
from consensus.protocols.garlic_farm.wire.mapping import append_to_wire, request_from_wire, request_to_wire

LEADER, FOLLOWER, OTHER = 1, 2, 3
MEMBERS = Configuration((Server(LEADER, "tcp://a:1"), Server(FOLLOWER, "tcp://b:1"), Server(OTHER, "tcp://c:1")))


def append(previous: int, *entries: Entry, commit: int = 0) -> AppendEntries:
    return AppendEntries(
        term=7, leader=LEADER, previous=LogId(previous, 6), entries=entries, commit=commit, correlation=1
    )


def command(term: int, data: bytes) -> Entry:
    return Entry.command(term, data)


def sent(same_log: RequestEncoder, request: AppendEntries, recipient: int) -> bytes:
    entries, log = same_log.entries_of(request)
    return encode_request(append_to_wire(request, recipient, entries), DEFAULT_LIMITS, log)


def test_shared_bytes_equal_separately_encoded_bytes() -> None:
    # Given consecutive appends with equal entries, or with only an equal first index
    one, two = (command(7, b"one"), command(7, b"two")), (command(7, b"one"), command(7, b"TWO"))
    appends = [
        append(9, *one),
        append(9, *one, commit=9),
        append(9, *two),
        append(10, *two),
        append(9),
        append(9, *one[:1]),
        append(9, configuration_entry(7, MEMBERS), one[0]),
        append(10, configuration_entry(7, MEMBERS), one[0]),
        append(9, command(6, b"one"), one[1]),
    ]
    same_log = RequestEncoder(lambda index: index - 3)
    for request in [*appends, *reversed(appends)]:
        for recipient in (FOLLOWER, OTHER):
            # Then each follower gets the bytes of a separate encoding
            alone = encode_request(request_to_wire(request, recipient, lambda index: index - 3), DEFAULT_LIMITS)
            assert sent(same_log, request, recipient) == alone


def test_second_follower_gets_same_bytes_object() -> None:
    same_log = RequestEncoder(lambda _: 0)
    _, first = same_log.entries_of(append(9, command(7, b"x" * 1000)))
    # equal, not identical: the core makes an append for each follower
    _, second = same_log.entries_of(append(9, command(7, b"x" * 1000), commit=9))
    assert second is first


def test_follower_stores_bytes_made_by_leader() -> None:
    # Given a group of commands with the bytes that the leader's core made
    entries = tuple(command(7, b"%d" % number * number) for number in range(100))
    made = encode_group(entries)
    request = replace(append(9, *entries), encoded=made)
    # When they are sent
    data = RequestEncoder(lambda _: 0).encode(request, FOLLOWER, frozenset())
    reader = RequestReader()
    reader.feed(data + data)
    received = reader.next()
    assert received is not None
    taken = request_from_wire(received, 1)
    # Then the wire carries these bytes, and the follower's core receives them with the entries
    assert data.endswith(made)
    assert isinstance(taken, AppendEntries)
    assert taken == request
    assert taken.encoded == made


def test_append_with_configuration_lacks_bytes_for_disk() -> None:
    """A configuration has different forms on the wire and in the log, so the follower encodes the entries again."""
    request = append(9, command(7, b"one"), configuration_entry(7, MEMBERS))
    data = RequestEncoder(lambda _: 4).encode(request, FOLLOWER, frozenset())
    taken = request_from_wire(decode_request(data), 1)
    assert isinstance(taken, AppendEntries)
    assert taken == request
    assert taken.encoded == b""


def test_memory_of_received_append_is_at_most_twice_payload() -> None:
    """The append keeps its bytes for the disk and its entries, but not the shared receive buffer."""
    size = 4_096
    stream = b"".join(
        encode_request(append_to_wire(append(9, *entries), FOLLOWER, entries))
        for entries in ((command(7, bytes([number]) * size),) for number in range(15))
    )
    # Garbage of other tests must not be collected, with warnings, during the measurement.
    gc.collect()
    tracemalloc.start()
    try:
        reader = RequestReader()
        before = tracemalloc.get_traced_memory()[0]
        reader.feed(bytes(bytearray(stream)))
        kept = reader.next()
        while (latest := reader.next()) is not None:
            kept = latest
        reader.discard()
        del latest
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * size + 2_000
    finally:
        tracemalloc.stop()
    assert kept is not None
    assert kept.entries == (command(7, bytes([14]) * size),)
