"""Receipt of a snapshot from chunks in any order: only a complete image of the leader is installed.

The model is a file: each stored chunk is written at its offset, and an installed snapshot must equal one image.
"""

from hypothesis import given
from hypothesis import strategies as st

from consensus.core.effects import CheckSnapshot, Install, Persist, StoreChunk
from consensus.core.events import SnapshotChecked
from consensus.core.messages import SnapshotReply
from consensus.core.model import LogId, ServerId, SnapshotDescription
from tests.spec.raft_bench import THREE, TWO, Bench, group

Name = tuple[int, ServerId, LogId]
IMAGES: dict[Name, bytes] = {
    (9, TWO, LogId(5, 2)): b"0123456789",
    (9, TWO, LogId(7, 3)): b"abcdefg",
    (10, THREE, LogId(5, 2)): b"9876543210",
}
"""Images by term, leader and position. Another leader may have other bytes for the same position."""
CHUNKS = st.tuples(st.sampled_from(list(IMAGES)), st.integers(0, 9), st.integers(1, 10))


@given(st.lists(CHUNKS, max_size=30), st.booleans())
def test_complete_image_of_one_leader_installed(
    chunks: list[tuple[Name, int, int]],
    sound: bool,  # noqa: FBT001 - True if the disk returns the written bytes
) -> None:
    bench = Bench(1, 1)
    file = b""
    installed: list[SnapshotDescription] = []

    def send_chunk(name: Name, offset: int, length: int, *, damaged: bool = False) -> SnapshotReply:
        nonlocal file
        term, leader, last = name
        image = IMAGES[name]
        data, done = image[offset : offset + length], offset + length >= len(image)
        bench.chunk(last, offset, data, done=done, term=term, sender=leader)
        while True:
            for persist in bench.all(Persist):
                match persist.snapshot:
                    case StoreChunk(_, at, stored):
                        assert at in (0, len(file)), "a gap"
                        file = file[:at] + stored
                    case Install(snapshot):
                        assert file == image, "other bytes than the leader's image"
                        installed.append(snapshot)
                    case _:
                        pass
            if replies := bench.snapshot_replies():
                assert len(replies) == 1, "one reply per chunk"
                return replies[0]
            (check,) = bench.all(CheckSnapshot)
            assert file == image, "read back before it is complete"
            found = None if damaged else SnapshotDescription(last, group(3), len(image), 0)
            bench.step(SnapshotChecked(check.request_id, found))

    for name, offset, length in chunks:
        send_chunk(name, offset, length, damaged=not sound)
    assert sound or installed == []
    newest = list(IMAGES)[-1]
    offset_to_send = 0
    for _ in range(len(IMAGES[newest])):
        reply = send_chunk(newest, offset_to_send, 3)
        offset_to_send = reply.next_offset
        if reply.installed:
            break
    assert reply.installed
    assert bench.about.last.index >= newest[2].index
