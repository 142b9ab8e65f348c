"""Ctrl-C waits for a moment between two calls; a second one does not wait."""

import os
import signal

import pytest

from pipeline.interrupt import deferred


def press_ctrl_c(times: int = 1) -> None:
    """The signal that the terminal sends."""
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_takes_effect_where_the_run_loop_looks_for_it() -> None:
    with deferred() as interrupt:
        interrupt.check()
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_a_second_ctrl_c_does_not_wait() -> None:
    with deferred(), pytest.raises(KeyboardInterrupt):
        press_ctrl_c(times=2)


def test_behind_the_run_loop_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with deferred():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
