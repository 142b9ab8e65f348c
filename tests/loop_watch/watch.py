"""Reports blocking operations and long steps in the thread of a trio run.

    trio instrument      the running task and the duration of its step: processor time and blocked time
    audit hook           files, directories, name look-ups, processes, sleeps, databases
    replaced functions   operations without an audit event: syncs, stat, reads and writes of blocking descriptors, joins
    sampler              a thread that records the stack of a step that takes too long

A documented rule does not find an `fsync` three calls below a task. Tools of the operating system (strace) see the
operation, but neither the task nor whether the loop waits for it. So the watch runs within the process, only in tests.
`tests.end_to_end.forking` calls `install`. Processes started by a command line call it in `injected/sitecustomize.py`,
if the environment names a directory for the findings.

Time during which the machine ran other processes does not count. The watch subtracts the kernel's figure: the time
during which the loop's thread waited for a processor. A step may also wait for Python's lock while the holder waits for
a processor, or while the hypervisor runs another machine. Unless a sample shows that the loop's thread sleeps for
something else, the watch subtracts these figures too.
"""

import io
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import trio

ENVIRONMENT: Final = "GARLICFARM_LOOP_WATCH"
"""The variable with the directory of the findings; without it, nothing is watched."""
LONG_STEP_S: Final = 0.05
_SAMPLE_S: Final = 0.01
_FINDINGS_MAX: Final = 200
"""Maximum per process; a repeated place is not a new finding."""
_ROOT: Final = f"{Path(__file__).parents[2]}/"
_NOT_THE_PROGRAM: Final = (f"{_ROOT}tests/loop_watch/", f"{_ROOT}.venv/")
_AUDITED: Final = frozenset(
    {
        "fcntl.flock",
        "fcntl.lockf",
        "open",
        "os.chmod",
        "os.chown",
        "os.fork",
        "os.forkpty",
        "os.link",
        "os.listdir",
        "os.mkdir",
        "os.posix_spawn",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.symlink",
        "os.system",
        "os.truncate",
        "os.utime",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "sqlite3.connect",
        "subprocess.Popen",
    }
)
_REPLACED: Final = ("access", "fdatasync", "fsync", "lstat", "readlink", "stat", "statvfs", "sync")
"""Functions of `os` without an audit event."""
_OF_DESCRIPTORS: Final = ("pread", "pwrite", "read", "write", "writev")
"""Functions of `os` that block only if their descriptor does."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One blocking operation or long step."""

    kind: str
    """Name of the operation, `import`, or `step`."""
    what: str
    """Object of the operation: a path or a host; for a step, its duration."""
    where: str
    """The innermost function of the program, as module and qualified name."""
    task: str
    stack: tuple[str, ...]
    """Functions with lines, the innermost first."""
    command: str
    """The command line of the process."""


class _Sample(NamedTuple):
    where: str
    stack: tuple[str, ...]
    is_in_kernel: bool
    """The thread sleeps in the kernel, but not for a lock. Python's lock is one of the locks."""


class LoopWatch(trio.abc.Instrument):
    """Watches one trio run in its thread."""

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self._thread = 0
        self._schedule = self._machine = -1
        self._directory = ""
        self._task: trio.lowlevel.Task | None = None
        self._began_s = self._began_cpu_s = 0.0
        self._began_waiting_ns = 0
        self._delays: dict[str, float] = {}
        self._recorded_s = 0.0
        self._sample: _Sample | None = None

    def before_run(self) -> None:
        """Start watching; the run begins in this thread."""
        self._thread = threading.get_ident()
        self._directory = f"/proc/self/task/{threading.get_native_id()}"
        self._schedule = os.open(f"{self._directory}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._machine = os.open("/proc/stat", os.O_RDONLY | os.O_CLOEXEC)
        _WATCHES[self._thread] = self

    def after_run(self) -> None:
        del _WATCHES[self._thread]
        os.close(self._schedule)
        os.close(self._machine)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Record the start of a step."""
        self._sample = None
        if time.monotonic() - self._recorded_s >= _SAMPLE_S:
            self._delays, self._recorded_s = self._delays_of_others_s(), time.monotonic()
        self._began_waiting_ns = self._waiting_ns()
        self._began_s, self._began_cpu_s = time.monotonic(), time.thread_time()
        self._task = task

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Report the step if it took too long."""
        self._task = None
        took_s, cpu_s = time.monotonic() - self._began_s, time.thread_time() - self._began_cpu_s
        if took_s < LONG_STEP_S:
            return
        waiting_s = (self._waiting_ns() - self._began_waiting_ns) / 1e9
        blocked_s = max(0.0, took_s - cpu_s - waiting_s)
        where, stack, is_in_kernel = self._sample or _Sample(f"{task.coro}", (), is_in_kernel=False)
        if blocked_s >= LONG_STEP_S and not is_in_kernel:
            delays = self._delays_of_others_s()
            blocked_s = max(0.0, blocked_s - sum(delays[each] - self._delays.get(each, 0.0) for each in delays))
        if max(cpu_s, blocked_s) >= LONG_STEP_S:
            what = f"{cpu_s * 1000:.0f} ms of processor time, {blocked_s * 1000:.0f} ms blocked"
            self._report(Finding("step", what, where, task.name, stack, _command()))

    def operation(self, kind: str, what: object) -> None:
        """Report a call of an operation that may block."""
        task = self._task
        if task is None:
            return
        self._task = None  # operations of the report itself are not findings
        try:
            where, stack, is_import = _called_from(sys._getframe(1))
            self._report(Finding("import" if is_import else kind, _text(what), where, task.name, stack, _command()))
        finally:
            self._task = task

    def sample(self, frame: FrameType) -> None:
        """Record the stack of the loop's thread if its step takes long; called by the sampler's thread."""
        task, began_s, sample = self._task, self._began_s, self._sample
        if task is None or time.monotonic() - began_s < LONG_STEP_S / 2 or (sample and sample.is_in_kernel):
            return
        where, stack, _ = _called_from(frame)
        with suppress(FileNotFoundError):
            function = Path(f"{self._directory}/wchan").read_text()
            if self._task is task and self._began_s == began_s:  # Reading releases Python's lock.
                self._sample = _Sample(where, stack, is_in_kernel=function != "0" and "futex" not in function)

    def _waiting_ns(self) -> int:
        return int(_PREAD(self._schedule, 64, 0).split()[1])

    def _delays_of_others_s(self) -> dict[str, float]:
        """Return the delay of each other thread of this process, and the time that the hypervisor has taken."""
        delays = {"hypervisor": int(_PREAD(self._machine, 128, 0).split()[8]) / os.sysconf("SC_CLK_TCK")}
        for place in map(str, Path("/proc/self/task").iterdir()):
            if place != self._directory:
                with suppress(FileNotFoundError, ProcessLookupError):
                    delays[place] = int(Path(f"{place}/schedstat").read_text().split()[1]) / 1e9
        return delays


_WATCHES: Final[dict[int, LoopWatch]] = {}
"""Watches by thread id."""
_PREAD: Final = os.pread
_GET_BLOCKING: Final = os.get_blocking


class FindingsFile:
    """Writes findings of this process, one per place, as lines of JSON into a separate file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: set[tuple[str, str, tuple[str, ...]]] = set()

    def report(self, finding: Finding) -> None:
        key = finding.kind, finding.where, finding.stack[:4]
        if key in self._seen or len(self._seen) >= _FINDINGS_MAX:
            return
        self._seen.add(key)
        line = json.dumps(asdict(finding)).encode() + b"\n"
        file = os.open(self._directory / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line)
        os.close(file)


class _WatchedText(io.TextIOWrapper):
    """A standard stream that reports its writes, which may block."""

    def write(self, text: str) -> int:
        _operation("write", self.name)
        return super().write(text)


def install(directory: Path) -> None:
    """Watch each later trio run of this process, and write the findings into `directory`."""
    file = FindingsFile(directory)
    run = trio.run

    def watched_run(*arguments: Any, instruments: Any = (), **named: Any) -> Any:
        return run(*arguments, instruments=(*instruments, LoopWatch(file.report)), **named)

    trio.run = watched_run  # type: ignore[assignment] # the watch wraps it
    hook_operations()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            # The buffer of a forked process has the seekable state of an earlier descriptor.
            buffer = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115 - open until the end of the process
            setattr(
                sys, name, _WatchedText(buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering)
            )
    threading.Thread(target=_sample_for_ever, name="loop-watch", daemon=True).start()


def install_if_wanted() -> None:
    """Call `install` if the environment names a directory."""
    directory = os.environ.get(ENVIRONMENT)
    if directory:
        install(Path(directory))


def hook_operations() -> None:
    """Report operations to the watch of their thread, if there is one."""
    sys.addaudithook(_audit)
    for name in _REPLACED:
        setattr(os, name, _reporting(name, getattr(os, name)))
    for name in _OF_DESCRIPTORS:
        setattr(os, name, _reporting_blocking(name, getattr(os, name)))
    for name in ("load_cert_chain", "load_verify_locations"):
        setattr(ssl.SSLContext, name, _reporting_method(name, getattr(ssl.SSLContext, name)))
    setattr(time, "sleep", _reporting("sleep", time.sleep))  # noqa: B010 - mypy refuses the assignment
    join = threading.Thread.join

    def watched_join(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.is_alive():
            _operation("join", thread.name)
        join(thread, timeout)

    threading.Thread.join = watched_join  # type: ignore[method-assign, assignment] # the watch wraps it


def has_sample(*, in_kernel: bool = False) -> bool:
    """Return True if the sampler has recorded the present step: on a busy machine this may take seconds."""
    sample = _WATCHES[threading.get_ident()]._sample
    return sample is not None and (sample.is_in_kernel or not in_kernel)


def _operation(kind: str, what: object) -> None:
    watch = _WATCHES.get(threading.get_ident())
    if watch is not None:
        watch.operation(kind, what)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _AUDITED:
        return
    what = arguments[0] if arguments else ""
    if event == "open" and isinstance(what, int):
        return  # an open descriptor
    if isinstance(what, socket.socket):
        if what.gettimeout() == 0:
            return
        what = arguments[1]
    if event == "socket.getaddrinfo" and _is_of_trio(sys._getframe(1)):
        return  # trio checks whether the name is an address; it resolves names in a thread
    _operation(event, what)


def _is_of_trio(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_globals.get("__name__") in ("socket", __name__):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "trio._socket"


def _reporting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def reporting(*arguments: Any, **named: Any) -> Any:
        _operation(f"{call.__module__.replace('posix', 'os')}.{name}", arguments[0] if arguments else "")
        return call(*arguments, **named)

    return reporting


def _reporting_method(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def reporting(owner: object, *arguments: Any, **named: Any) -> Any:
        _operation(name, [*arguments, *named.values()])
        return call(owner, *arguments, **named)

    return reporting


def _reporting_blocking(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def reporting(descriptor: int, *arguments: Any, **named: Any) -> Any:
        if threading.get_ident() in _WATCHES and _GET_BLOCKING(descriptor):
            _operation(f"os.{name}", descriptor)
        return call(descriptor, *arguments, **named)

    return reporting


def _sample_for_ever() -> None:
    while True:
        time.sleep(_SAMPLE_S)
        if _WATCHES:
            frames = sys._current_frames()
            for thread, watch in list(_WATCHES.items()):
                if thread in frames:
                    watch.sample(frames[thread])


def _called_from(frame: FrameType | None) -> tuple[str, tuple[str, ...], bool]:
    """Return the innermost function of the program, the stack, and True if a module is being imported."""
    where, stack, is_import = "", [], False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            is_import |= not where
        elif not code.co_filename.startswith(_NOT_THE_PROGRAM[0]):
            place = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}"
            stack.append(f"{place}:{frame.f_lineno}")
            if not where and code.co_filename.startswith(_ROOT) and not code.co_filename.startswith(_NOT_THE_PROGRAM):
                where = place
        frame = frame.f_back
    return where or (stack[0] if stack else "?"), tuple(stack[:25]), is_import


def _text(what: object) -> str:
    if isinstance(what, int):
        try:
            return str(Path(f"/proc/self/fd/{what}").readlink())
        except OSError:
            return f"descriptor {what}"
    return os.fsdecode(what) if isinstance(what, str | bytes | os.PathLike) else repr(what)


def _command() -> str:
    return " ".join(sys.argv[1:4])
