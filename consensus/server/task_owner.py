"""The base of classes whose methods start tasks.

    nursery.start(owner.run) ─▶ methods start tasks in `_nursery` ─▶ a cancellation ends `run` and its tasks

The nursery exists only during `run`. Methods check it, and refuse or return early.
"""

import trio


class TaskOwner:
    """An object that starts tasks."""

    _nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks of this object until canceled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
