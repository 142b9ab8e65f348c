"""Process state that a test must restore, because later tests of the same worker depend on it.

A test that disabled the garbage collector made another test, which measures memory, fail in some orders. The order
differs between runs, so the test that changed the state must fail.
"""

import gc
import os
import resource
import signal
import sys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def process_state() -> dict[str, object]:
    return {
        "garbage collector is enabled": gc.isenabled(),
        "thresholds of the garbage collector": gc.get_threshold(),
        "working directory": os.getcwd(),  # noqa: PTH109 - cheaper than a Path, and only compared
        "recursion limit": sys.getrecursionlimit(),
        "limit of core files": resource.getrlimit(resource.RLIMIT_CORE),
        **{each.name: signal.getsignal(each) for each in SIGNALS},
    }


def restore_garbage_collector(before: dict[str, object]) -> None:
    """Enable the garbage collector again, so that only the test that disabled it fails."""
    if before["garbage collector is enabled"]:
        gc.enable()


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    return [f"{name}: {before[name]} before, {value} after" for name, value in after.items() if value != before[name]]
