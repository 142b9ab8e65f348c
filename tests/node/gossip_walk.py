"""Record the function calls of one node from a decoded ping with updates to the encoding of its ack.

The interpreter's profile hook reports every call of a Python function. Recording begins when the codec of one node
returns a ping with updates, and ends when the same codec receives the ack. Only functions of `gossip` outside the codec
count.

A call is *written* if its function has a name in the source. Comprehensions and generated constructors of dataclasses
are counted as calls only.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gossip.core.messages import PingRequest, PingResponse
from gossip.node.group import Group
from gossip.wire.secure_codec import SecureCodec

Call = tuple[str, str]
"""Module and function."""
_NAMELESS = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


class CodecWalk:
    """The calls of one node for one ping with updates, outside the codec."""

    def __init__(self, group: Group) -> None:
        self._codec = group._transport._codec
        self.calls: list[Call] = []
        self.written: list[Call] = []
        self._is_recording = False
        self.is_done = False

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record all calls until the walk is complete."""
        before = sys.getprofile()
        sys.setprofile(self._record_call)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _record_call(self, frame: FrameType, event: str, result: object) -> None:
        if self.is_done:
            return
        code = frame.f_code
        if event == "return" and code is SecureCodec.incoming.__code__ and frame.f_locals["self"] is self._codec:
            message = getattr(getattr(result, "received", None), "message", None)
            if isinstance(message, PingRequest) and message.payload.updates:
                self.calls.clear()
                self.written.clear()
                self._is_recording = True
        elif event == "call" and self._is_recording:
            if code is SecureCodec.outgoing.__code__:
                self.is_done = isinstance(frame.f_locals["message"], PingResponse)
                self._is_recording = False
            elif frame.f_globals.get("__name__", "").startswith("gossip."):
                call = (frame.f_globals["__name__"], code.co_qualname.partition(".<locals>")[0])
                self.calls.append(call)
                if code.co_filename != "<string>" and code.co_name not in _NAMELESS:
                    self.written.append(call)
