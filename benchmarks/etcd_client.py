"""One client process of etcd for its status and for failovers: gRPC over TLS.

    python -m benchmarks.etcd_client SPECIFICATION     (JSON: endpoints, certificate, status)

With `status`, each line of input is a request for the leader. Otherwise the process writes continuously to any member,
and prints the time of the first write begun and acknowledged after a given moment (`steady`). The load of the
throughput is in Go (`etcd_client_go`).
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import grpc

from benchmarks import etcd_messages
from benchmarks.steady import ATTEMPT_S, PERIOD_S, UNDER_WAY_MAX, Acknowledged

# A dead member is retried immediately: gRPC's default wait of up to two minutes is not a property of etcd.
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def main() -> None:
    """Run as `python -m benchmarks.etcd_client`."""
    document = json.loads(sys.argv[1])
    endpoints = list(document["endpoints"])
    credentials = grpc.ssl_channel_credentials(Path(document["certificate"]).read_bytes())
    if document.get("status"):
        asyncio.run(_answer_status(endpoints, credentials))
    else:
        asyncio.run(_write_steadily(endpoints, credentials))


async def _answer_status(endpoints: list[str], credentials: grpc.ChannelCredentials) -> None:
    """Print, for each line, the number of the leading endpoint (or -1) and of the endpoints that reply."""
    calls = [
        grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS).unary_unary(etcd_messages.STATUS)
        for endpoint in endpoints
    ]
    while await asyncio.to_thread(sys.stdin.readline):
        leader, answering = -1, 0
        for number, call in enumerate(calls):
            try:
                answer = await call(b"", timeout=1.0)
            except grpc.aio.AioRpcError:
                continue
            answering += 1
            leader = number if etcd_messages.leads(answer) else leader
        print(json.dumps({"leader": leader, "answering": answering}), flush=True)


async def _write_steadily(endpoints: list[str], credentials: grpc.ChannelCredentials) -> None:
    request = etcd_messages.put_request(b"benchmark/steady", 256)
    puts = [
        grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL_OPTIONS).unary_unary(etcd_messages.PUT)
        for endpoint in endpoints
    ]
    acknowledged = Acknowledged()
    under_way: set[asyncio.Task[None]] = set()

    async def attempt(number: int) -> None:
        began_s = time.monotonic()
        try:
            await puts[number % len(puts)](request, timeout=ATTEMPT_S)
        except grpc.aio.AioRpcError:
            return
        acknowledged.add(began_s, time.monotonic())

    async def write() -> None:
        number = 0
        while True:
            if len(under_way) < UNDER_WAY_MAX:
                number += 1
                task = asyncio.create_task(attempt(number))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(PERIOD_S)

    writing = asyncio.create_task(write())
    while line := await asyncio.to_thread(sys.stdin.readline):
        since_s = float(line)
        while (found := acknowledged.first(since_s)) is None:  # noqa: ASYNC110 - as often as writes begin
            await asyncio.sleep(PERIOD_S)
        print(json.dumps({"seconds": found - since_s}), flush=True)
    writing.cancel()


if __name__ == "__main__":
    main()
