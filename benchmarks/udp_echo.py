"""A simple trio UDP echo in a separate process: `python -m benchmarks.udp_echo`.

The difference to a gossip node is the node's work on a datagram, without receiving and sending it.
"""

import json
import sys

import trio

DATAGRAM_LIMIT_BYTES = 1400


async def echo() -> None:
    """Echo until the standard input ends."""
    with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as server:
        await server.bind(("127.0.0.1", 0))
        host, port = server.getsockname()
        print(json.dumps({"address": f"{host}:{port}", "node": "echo"}), flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, server)
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


async def _serve(server: trio.socket.SocketType) -> None:
    while True:
        datagram, source = await server.recvfrom(DATAGRAM_LIMIT_BYTES)
        await server.sendto(datagram, source)


if __name__ == "__main__":
    trio.run(echo)
