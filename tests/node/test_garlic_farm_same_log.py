"""The entries of an append are turned into bytes once for all followers, and never stand for other entries."""

from consensus.core.entry_data import configuration_entry
from consensus.core.messages import AppendEntries
from consensus.core.model import Configuration, Entry, LogId, Server
from consensus.protocols.garlic_farm.node.request_encoder import EncodedEntries
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.limits import DEFAULT_LIMITS
from consensus.protocols.garlic_farm.wire.mapping import append_to_wire, request_to_wire

LEADER, FOLLOWER, OTHER = 1, 2, 3
MEMBERS = Configuration((Server(LEADER, "tcp://a:1"), Server(FOLLOWER, "tcp://b:1"), Server(OTHER, "tcp://c:1")))


def append(previous: int, *entries: Entry, commit: int = 0) -> AppendEntries:
    return AppendEntries(7, LEADER, LogId(previous, 6), entries, commit, 1)


def command(term: int, data: bytes) -> Entry:
    return Entry.command(term, data)


def sent(same_log: EncodedEntries, request: AppendEntries, recipient: int) -> bytes:
    entries, log = same_log.of(request)
    return encode_request(append_to_wire(request, recipient, entries), DEFAULT_LIMITS, log)


def test_whatever_goes_out_is_what_would_go_out_by_itself() -> None:
    # given appends that share their entries, or only their first index, or only their entries, in turns
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
    same_log = EncodedEntries(lambda index: index - 3, DEFAULT_LIMITS)
    for request in [*appends, *reversed(appends)]:
        for recipient in (FOLLOWER, OTHER):
            # then each follower gets the bytes that it would get if there were no other
            alone = encode_request(request_to_wire(request, recipient, lambda index: index - 3), DEFAULT_LIMITS)
            assert sent(same_log, request, recipient) == alone


def test_the_second_follower_gets_the_very_same_bytes() -> None:
    same_log = EncodedEntries(lambda _: 0, DEFAULT_LIMITS)
    _, first = same_log.of(append(9, command(7, b"x" * 1000)))
    # equal, not the same: the core makes an append for each follower
    _, second = same_log.of(append(9, command(7, b"x" * 1000), commit=9))
    assert second is first
