"""`POST /v1/debug?seconds=N`: data for the diagnosis of a faulty node. Only admins may request it.

    SIGPROF, each 4 ms of processor time ──▶ the main thread's stack ──▶ counted
    after N seconds:   stacks of threads and tasks, memory, settings, versions

The kernel's timer counts processor time. So it does not wake an idle node, and interrupts a busy node at most 250 times
per second of processor time. Only one profile runs at a time. With N = 0 the profile is empty. Frames are sent as names
and lines, without values of variables. Seconds, stacks, their depth, tasks and types are bounded.
"""

import gc
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final

import psutil
import trio

from bridge import VERSION
from bridge.api.control import Refused
from bridge.api.control_routes import DEBUG, DEBUG_SECONDS_MAX
from bridge.api.debug import DebugAnswer, MemorySnapshot, ProcessorProfile, RunningStack, SampledStack, TypeCount
from bridge.node.control.routes import Call, Handlers
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.declared import written

INTERVAL_S: Final = 0.004
DEPTH_MOST: Final = 48
STACKS_KEPT: Final = 10_000
STACKS_MOST: Final = 500
TASKS_MOST: Final = 500
TYPES_MOST: Final = 50
REMOVED: Final = "(removed)"
LIBRARIES: Final = (
    "cbor2",
    "click",
    "cryptography",
    "h11",
    "httpcore",
    "kio",
    "msgspec",
    "prometheus-client",
    "psutil",
    "pyspark",
    "pyzmq",
    "rich",
    "trio",
)
_USERS: Final = frozenset({"user", "i2cp_username"})


class Debugging:
    """The handler of `POST /v1/debug`."""

    def __init__(self, configuration: NodeConfiguration) -> None:
        self._configuration = configuration
        self._is_profiling = False

    @property
    def handlers(self) -> Handlers:
        """The handler, by its route."""
        return {DEBUG: self._debug}

    async def _debug(self, call: Call[None]) -> DebugAnswer:
        seconds = call.numbers["seconds"]
        if not 0 <= seconds <= DEBUG_SECONDS_MAX:
            raise Refused(
                400, "bad-query", f"seconds is {seconds}: at most {DEBUG_SECONDS_MAX}, or 0 to omit the profile"
            )
        profile = await self._profile(seconds) if seconds else ProcessorProfile(0.0, 0.0, INTERVAL_S, (), 0)
        return DebugAnswer(
            node=self._configuration.name,
            versions=await trio.to_thread.run_sync(versions),
            settings=without_users(written(self._configuration)),
            profile=profile,
            threads=thread_stacks(),
            tasks=task_stacks(),
            memory=await trio.to_thread.run_sync(memory_snapshot),
        )

    async def _profile(self, seconds: int) -> ProcessorProfile:
        if self._is_profiling:
            raise Refused(409, "profiling", f"another profile runs; try again in {DEBUG_SECONDS_MAX} s at most")
        self._is_profiling = True
        try:
            return await processor_profile(seconds)
        finally:
            self._is_profiling = False


# -- the processor -----------------------------------------------------------------------------------------------------


async def processor_profile(seconds: float) -> ProcessorProfile:
    """Profile the main thread for the given number of seconds; raise `Refused` if called in another thread."""
    found: Counter[tuple[str, ...]] = Counter()
    others = 0

    def sample(_signal: int, frame: FrameType | None) -> None:
        nonlocal others
        stack = _frames(frame)
        if stack in found or len(found) < STACKS_KEPT:
            found[stack] += 1
        else:
            others += 1

    began_s, used_s = time.monotonic(), time.process_time()
    with _sampling(sample):
        await trio.sleep(seconds)
    ranked = found.most_common()
    return ProcessorProfile(
        seconds=time.monotonic() - began_s,
        processor_s=time.process_time() - used_s,
        interval_s=INTERVAL_S,
        stacks=tuple(SampledStack(stack, samples) for stack, samples in ranked[:STACKS_MOST]),
        others=others + sum(samples for _, samples in ranked[STACKS_MOST:]),
    )


@contextmanager
def _sampling(sample: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        raise Refused(
            409,
            "no-profile",
            "this node does not run in the main thread of its process: request 0 seconds, to omit the profile",
        )
    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        # A pending SIGPROF would end the process if the previous handler is the default action, so it is discarded.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.signal(signal.SIGPROF, before)


# -- stacks ------------------------------------------------------------------------------------------------------------


def thread_stacks() -> tuple[RunningStack, ...]:
    """Return the present stack of each thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - the documented way to see them
    return tuple(RunningStack(names.get(ident) or "?", 0, _frames(frame)) for ident, frame in sorted(frames.items()))


def task_stacks() -> tuple[RunningStack, ...]:
    """Return the stack of each task, with the depth of its nursery."""
    root, found = trio.lowlevel.current_root_task(), list[RunningStack]()
    waiting = [] if root is None else [(root, 0)]
    while waiting and len(found) < TASKS_MOST:
        task, depth = waiting.pop()
        found.append(RunningStack(task.name, depth, _waiting_frames(task.coro)))
        below = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        waiting += [(child, depth + 1) for child in below]
    return tuple(found)


def _waiting_frames(coroutine: object) -> tuple[str, ...]:
    """Return the frames of a coroutine and of the coroutines that it awaits, the outermost first."""
    frames = list[str]()
    while isinstance(coroutine, CoroutineType) and len(frames) < DEPTH_MOST:
        frame: FrameType | None = coroutine.cr_frame
        if frame is not None:
            frames.append(_place(frame.f_code, frame.f_lineno))
        coroutine = coroutine.cr_await
    return tuple(frames)


def _frames(frame: FrameType | None) -> tuple[str, ...]:
    """Return a limited number of the innermost frames, the outermost of these first."""
    found = list[str]()
    while frame is not None and len(found) < DEPTH_MOST:
        found.append(_place(frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


def _place(code: CodeType, line: int) -> str:
    """Return the module with its package, the function and the line; a full path would show the user's directories."""
    path = Path(code.co_filename)
    module = f"{path.parent.name}/{path.stem}".lstrip("/")
    return f"{module}:{code.co_qualname}:{line}"


# -- other data --------------------------------------------------------------------------------------------------------


def memory_snapshot() -> MemorySnapshot:
    """Return the memory and the object counts of this process."""
    memory = psutil.Process().memory_info()
    counted = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return MemorySnapshot(
        resident_bytes=memory.rss,
        shared_bytes=getattr(memory, "shared", 0),
        allocated_blocks=sys.getallocatedblocks(),
        modules=len(sys.modules),
        types=tuple(TypeCount(name, count) for name, count in counted.most_common(TYPES_MOST)),
    )


def versions() -> dict[str, str]:
    """Return the versions of this project, its platform and the installed libraries."""
    # Imported here, because these modules need two megabytes of memory and only these requests use them.
    import importlib.metadata  # noqa: PLC0415
    import platform  # noqa: PLC0415

    found = {
        "garlicfarm": VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "machine": platform.machine(),
    }
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def without_users(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without user names. The settings contain no passwords, only the paths of password files."""
    return {
        key: without_users(value) if isinstance(value, Mapping) else REMOVED if key in _USERS else value
        for key, value in settings.items()
    }
