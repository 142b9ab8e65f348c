"""`recover` is interrupted at any step, by a disk error or by the end of the process, and run again."""

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from bridge.core.membership.admission import Admitted
from bridge.node.membership.admissions import FILE_NAME as ADMISSIONS_FILE
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.membership.forming import UnusableFormationError, load_formation
from bridge.node.offline import recovering
from bridge.node.offline.recovering import RecoveryError, carry_out, plan_recovery
from bridge.node.offline.state_reading import FarmOnDisk, read_directory
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from consensus.core.model import LogId
from tests.node.test_state_reading import BASE_MS, FOUNDING, A, check, node_directory

P = ParamSpec("P")
R = TypeVar("R")
STEPS_MAX = 40


class PowerCutError(BaseException):
    """The end of the process; no code handles it."""


class Interrupted:
    """A count of the steps of `recover` in the state directory, with a failure before step `at`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, error: Callable[[], BaseException]) -> None:
        self.steps: list[str] = []
        self._at = at
        self._error = error
        for name in ("replace_file", "sync_directory", "_make_storage", "rmtree"):
            monkeypatch.setattr(recovering, name, self._counted(name, getattr(recovering, name)))
        for name in ("rename", "unlink"):
            monkeypatch.setattr(Path, name, self._counted(name, getattr(Path, name)))

    def _counted(self, name: str, act: Callable[P, R]) -> Callable[P, R]:
        def step(*arguments: P.args, **options: P.kwargs) -> R:
            self.steps.append(name)
            if len(self.steps) == self._at:
                raise self._error()
            return act(*arguments, **options)

        return step


async def recover_interrupted(directory: Path, at: int, error: Callable[[], BaseException]) -> list[str]:
    """Run `recover`, with a failure before step `at`; return the steps, including `at` if it was reached."""
    plan = await plan_recovery(directory)
    with pytest.MonkeyPatch.context() as patched:
        interrupted = Interrupted(patched, at, error)
        try:
            await carry_out(plan)
        except (RecoveryError, PowerCutError):
            assert len(interrupted.steps) >= at
    return interrupted.steps


def prepared(path: Path) -> Path:
    """Return the directory of a survivor, with the other files of a running node."""
    directory = node_directory(path)
    (directory / ADMISSIONS_FILE).write_text("the old cluster's")
    return directory


def check_new(made: FarmOnDisk) -> None:
    """Check that the farm has only the survivor, and the state of the old farm."""
    assert made.founding is not None
    assert made.founding.founders == (A,)
    assert made.cluster_id != FOUNDING.cluster_id
    assert made.configuration.voter_ids == {1}
    assert (made.last, made.farm.log_time_ms) == (LogId(5, 2), BASE_MS + 6_000)
    assert made.farm.admitted == {1: Admitted(A, "a")}


ERRORS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: OSError(28, "No space left on device"),
    "crash": PowerCutError,
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS.keys())
async def test_recovery_after_interruption_reads_old_log(tmp_path: Path, error: Callable[[], BaseException]) -> None:
    complete = len(await recover_interrupted(prepared(tmp_path / "whole"), 0, error))
    assert 10 <= complete <= STEPS_MAX
    # The last step only makes complete files durable, so it is left out.
    for at in range(1, complete):
        directory = prepared(tmp_path / f"{at}")
        context = f"interrupted before step {at} of {complete}"
        await recover_interrupted(directory, at, error)
        check(await read_directory(directory))
        check((await plan_recovery(directory)).survivor)
        await carry_out(await plan_recovery(directory))
        made = await read_directory(directory)
        check_new(made)
        assert load_formation(directory, A).founding == made.founding, context
        left = {path.name for path in directory.iterdir()} - {"raft-made"}
        assert left == {FORMATION_FILE, RAFT_DIRECTORY, f"raft.of-{FOUNDING.cluster_id.hex()[:8]}"}, context


async def test_recovery_may_be_interrupted_repeatedly(tmp_path: Path) -> None:
    directory = prepared(tmp_path / "node")
    for at in (*range(1, 10), *range(9, 0, -1)):
        await recover_interrupted(directory, at, PowerCutError)
        check(await read_directory(directory))
    await carry_out(await plan_recovery(directory))
    check_new(await read_directory(directory))


def stored(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / RAFT_DIRECTORY).iterdir()}


async def test_interrupted_node_starts_unchanged_or_not_at_all(tmp_path: Path) -> None:
    before = stored(prepared(tmp_path / "before"))
    for at in range(1, len(await recover_interrupted(prepared(tmp_path / "whole"), 0, PowerCutError))):
        directory = prepared(tmp_path / f"{at}")
        await recover_interrupted(directory, at, PowerCutError)
        if at <= 3:  # until the storage of the new cluster is complete, the other files are unchanged
            assert load_formation(directory, A).founding == FOUNDING
            assert (stored(directory).keys(), (directory / ADMISSIONS_FILE).exists()) == (before.keys(), True)
        else:
            with pytest.raises(UnusableFormationError, match=f"recover --from {directory}` again"):
                load_formation(directory, A)


async def test_disk_error_advises_repair_and_retry(tmp_path: Path) -> None:
    directory = prepared(tmp_path / "node")
    plan = await plan_recovery(directory)
    with pytest.MonkeyPatch.context() as patched:
        Interrupted(patched, 6, ERRORS["error"])
        with pytest.raises(RecoveryError, match="Free or repair the disk, then run the command again"):
            await carry_out(plan)
