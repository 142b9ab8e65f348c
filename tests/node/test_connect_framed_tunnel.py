"""The frames of a tunnel through the client's own socket, for any bytes and any splits of them."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from bridge.connect.framed_tunnel import FrameReceiver, FrameSender, TunnelFailedError

BOUND_S = 60.0


@given(parts=st.lists(st.binary(min_size=1, max_size=40), max_size=5), first_bytes=st.integers(0, 60))
async def test_bytes_and_end_pass_in_any_splits(parts: list[bytes], first_bytes: int) -> None:
    with trio.fail_after(BOUND_S):
        ours, wire = memory_stream_pair()
        sender = FrameSender(ours)
        for part in parts:
            await sender.send_all(part)
        await sender.send_eof()
        first = bytes(await wire.receive_some(first_bytes)) if first_bytes else b""
        receiver = FrameReceiver(wire, first)
        received = b""
        while part := await receiver.receive_some(7):
            assert len(part) <= 7
            received += part
        assert received == b"".join(parts)
        assert await receiver.receive_some() == b""


async def test_failure_and_missing_end_are_errors() -> None:
    with trio.fail_after(BOUND_S):
        for is_reported, reason in ((True, "the leaf is silent"), (False, "the running client has stopped")):
            ours, wire = memory_stream_pair()
            receiver, sender = FrameReceiver(wire), FrameSender(ours)
            await sender.send_all(b"part")
            if is_reported:
                await sender.fail(reason)
            await ours.aclose()
            assert await receiver.receive_some() == b"part"
            with pytest.raises(TunnelFailedError, match=reason):
                await receiver.receive_some()


@pytest.mark.parametrize("data", [b"\x07\0\0\0\x01x", b"\x02\xff\xff\xff\xff" + b"x" * 5_000, b"\0\0"])
async def test_malformed_frames_are_bounded_errors(data: bytes) -> None:
    with trio.fail_after(BOUND_S):
        ours, wire = memory_stream_pair()
        await ours.send_all(data)
        await ours.aclose()
        with pytest.raises(TunnelFailedError) as raised:
            await FrameReceiver(wire).receive_some()
        assert len(str(raised.value)) <= 4_096
