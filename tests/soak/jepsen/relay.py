"""A cable with delay and loss: passes frames between two network devices, delays each by a random time, and loses some.

    python relay.py DEVICE DEVICE DELAY_MS LOSS SEED

A frame travels with its virtio header, so checksums and segments that the kernel has not computed yet stay valid. The
delay of each frame is 0.5 to 1.5 times DELAY_MS: frames overtake each other, as on a real network with several paths.
It is for kernels without `netem`. Frames beyond QUEUE_MAX are lost, as in a full router.
"""

import heapq
import select
import socket
import sys
import time
from contextlib import suppress
from random import Random

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING, ETH_P_ALL = 263, 15, 4, 3
FRAME_MAX = 70_000
QUEUE_MAX = 10_000


def opened(device: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    found.bind((device, ETH_P_ALL))
    return found


def relay(first: socket.socket, second: socket.socket, delay_s: float, loss: float, random: Random) -> None:
    """Pass frames until the process is killed."""
    queue: list[tuple[float, int, socket.socket, bytes]] = []
    others = {first: second, second: first}
    number = 0
    while True:
        wait_s = None if not queue else max(0.0, queue[0][0] - time.monotonic())
        for source in select.select([first, second], [], [], wait_s)[0]:
            frame, where = source.recvfrom(FRAME_MAX)
            if where[2] == PACKET_OUTGOING or random.random() < loss or len(queue) >= QUEUE_MAX:
                continue
            number += 1
            due_s = time.monotonic() + delay_s * random.uniform(0.5, 1.5)
            heapq.heappush(queue, (due_s, number, others[source], frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, target, frame = heapq.heappop(queue)
            with suppress(OSError):
                target.send(frame)


if __name__ == "__main__":
    devices = [opened(device) for device in sys.argv[1:3]]
    relay(devices[0], devices[1], float(sys.argv[3]) / 1000, float(sys.argv[4]), Random(int(sys.argv[5])))
