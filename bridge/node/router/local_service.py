"""Whether the service behind a leaf answers: a real TCP connection, made and closed at once."""

import trio


async def answers(host: str, port: int, timeout_s: float) -> bool:
    """Whether a service accepts connections there."""
    with trio.move_on_after(timeout_s):
        try:
            stream = await trio.open_tcp_stream(host, port)
        except (OSError, ValueError):
            return False
        # A connection to a closed port out of the ephemeral range can meet itself; no service answered then.
        answered: bool = stream.socket.getsockname() != stream.socket.getpeername()
        await trio.aclose_forcefully(stream)
        return answered
    return False
