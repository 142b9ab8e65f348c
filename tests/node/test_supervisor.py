"""The processes of a local farm: ordered stop, SIGKILL after the grace period, and the text of their exit status."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from bridge.node.local import supervisor as supervisor_module
from bridge.node.local.supervisor import Child, Command, describe_exit, run_children

READY = "import signal, sys; signal.signal(signal.SIGTERM, signal.{}); open(sys.argv[1], 'w').close()\n"
STOPS = READY.format("SIG_DFL") + "print('some output', flush=True); sys.stdin.read()"
IGNORES = READY.format("SIG_IGN") + "while True: signal.pause()"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], Command]:
    """Replace `garlicfarm` with a line of Python in a command."""
    real = trio.lowlevel.open_process

    async def open_process(command: list[str], **options: object) -> trio.Process:
        assert command[:3] == [sys.executable, "-m", "bridge.cli.main"]
        process: trio.Process = await real([sys.executable, "-c", *command[3:]], **options)  # type: ignore[call-overload]  # passed on
        return process

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)

    def command(directory: Path, line: str) -> Command:
        pipe = directory / "pipe"
        if not pipe.exists():
            os.mkfifo(pipe)
        return Command("node", (line, str(pipe)), directory / "node.log")

    return command


def make(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def ready(directory: Path) -> None:
    """Wait until a child has opened the pipe and started its work."""
    with trio.fail_after(60):
        await trio.to_thread.run_sync((directory / "pipe").read_bytes, abandon_on_cancel=True)


async def test_children_stop_when_work_is_done(tmp_path: Path, program: Callable[[Path, str], Command]) -> None:
    seen: list[Child] = []

    async def use(children: tuple[Child, ...]) -> None:
        seen.extend(children)
        for child in children:
            await ready(child.command.log_file.parent)
        assert all(child.running for child in children)

    commands = tuple(program(make(tmp_path / name), STOPS) for name in ("first", "second"))
    await run_children(commands, use)
    assert [child.exit_text for child in seen] == ["ended by SIGTERM"] * 2
    assert not any(child.running for child in seen)


async def test_child_ignoring_sigterm_is_killed_after_grace(
    tmp_path: Path, program: Callable[[Path, str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "STOP_GRACE_SECONDS", 0.05)
    seen: list[Child] = []

    async def use(children: tuple[Child, ...]) -> None:
        seen.extend(children)
        await ready(tmp_path)

    await run_children((program(tmp_path, IGNORES),), use)
    assert [child.exit_text for child in seen] == ["ended by SIGKILL"]


async def test_children_stop_when_work_fails_or_is_canceled(
    tmp_path: Path, program: Callable[[Path, str], Command]
) -> None:
    seen: list[Child] = []

    async def fail(children: tuple[Child, ...]) -> None:
        seen.extend(children)
        raise LookupError("work")

    async def wait(children: tuple[Child, ...]) -> None:
        seen.extend(children)
        scope.cancel()
        await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as failed:
        await run_children((program(tmp_path, STOPS),), fail)
    assert failed.group_contains(LookupError, match="work")
    with trio.CancelScope() as scope:
        await run_children((program(tmp_path, STOPS),), wait)
    assert scope.cancelled_caught
    assert [child.running for child in seen] == [False, False]


async def test_exited_child_is_detected_and_not_restarted(
    tmp_path: Path, program: Callable[[Path, str], Command]
) -> None:
    async def use(children: tuple[Child, ...]) -> None:
        [child] = children
        with trio.fail_after(60):
            await child.exited.wait()
        assert (child.running, child.exit_text) == (False, "exit code 3")

    await run_children((program(tmp_path, "print('last words'); raise SystemExit(3)"),), use)
    assert (tmp_path / "node.log").read_bytes() == b"last words\n"


async def test_failed_start_stops_earlier_children(
    tmp_path: Path, program: Callable[[Path, str], Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Child] = []
    real = supervisor_module._start

    async def start(command: Command) -> Child:
        if started:
            raise OSError(11, "Resource temporarily unavailable")
        started.append(await real(command))
        return started[0]

    async def never_called(_children: tuple[Child, ...]) -> None:
        pytest.fail("one child failed to start")

    monkeypatch.setattr(supervisor_module, "_start", start)
    with pytest.raises(ExceptionGroup) as failed:
        await run_children((program(tmp_path, STOPS),) * 2, never_called)
    assert failed.group_contains(OSError)
    assert not started[0].running


@pytest.mark.parametrize(
    ("code", "text"), [(0, "exit code 0"), (1, "exit code 1"), (-9, "ended by SIGKILL"), (-99, "ended by signal 99")]
)
def test_exit_code_is_described(code: int, text: str) -> None:
    assert describe_exit(code) == text
