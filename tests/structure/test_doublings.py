"""Delays that double: one class has them, and each other number that grows by itself is named here with its bound.

`consensus.net.Backoff` doubles, clamps and spreads. `gossip` imports nothing of `consensus` (import contract), so its
few are written out. A number that grows by a factor wherever it is assigned to itself is found, whatever it counts:
without a bound it would end as a delay of years.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.structure.test_powers import PACKAGES

GROWING = {
    ("bridge/wire/keys/curve_key.py", "from_z85", "value"): "the five digits of a group; no delay",
    ("consensus/core/replication/fetch_follower.py", "adapt", "self._limit_bytes"): "the setting of bytes; no delay",
    ("consensus/protocols/kraft/wire/control_records.py", "voters_value", "features"): "bytes for each voter; no delay",
    ("consensus/protocols/kraft/wire/record_batches.py", "write_varint", "number"): "64 bits; no delay",
    (
        "consensus/protocols/zmq_raft/client/log_reader.py",
        "_next",
        "self._slowness",
    ): "256; lengthens a wait, no retry",
    ("consensus/protocols/kraft/node/replica/quorum_service.py", "answer", "max_bytes"): "one request's; no delay",
    ("gossip/node/discovery.py", "follow_name", "pause_s"): "60 s; no consensus.net in gossip",
    ("gossip/node/state_files.py", "_follow", "pause_s"): "60 s; no consensus.net in gossip",
    ("gossip/node/state_files.py", "adopt", "pause_s"): "60 s; no consensus.net in gossip",
    ("pipeline/feedback/replay.py", "observe", "index"): "a place in the log; no delay",
    ("pipeline/load_model.py", "_report", "lag_ms"): "once for each report; no delay",
}
"""By file, function and name."""


def growing(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """The function and the name of each number that is assigned a multiple of itself."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        match node:
            case ast.AugAssign(target=target, op=ast.Mult() | ast.LShift()):
                yield inner, ast.unparse(target)
            case ast.Assign(targets=targets, value=value):
                yield from ((inner, name) for name in map(ast.unparse, targets) if _grows(name, value))
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _grows(ast.unparse(target), value):
                yield inner, ast.unparse(target)
            case ast.keyword(arg=str(name), value=value) if _grows(f".{name}", value):
                yield inner, name
            case _:
                pass
        yield from growing(node, inner)


def _grows(name: str, value: ast.expr) -> bool:
    def is_it(node: ast.expr) -> bool:
        text = ast.unparse(node)
        return text == name or (name.startswith(".") and text.endswith(name))

    for node in ast.walk(value):
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if is_it(left) or is_it(right):
                return True
            case ast.BinOp(left=left, op=ast.Add(), right=right) if is_it(left) and is_it(right):
                return True
            case ast.BinOp(left=left, op=ast.LShift()) if is_it(left):
                return True
            case _:
                pass
    return False


def found() -> set[tuple[str, str, str]]:
    return {
        (str(path), function, name)
        for package in PACKAGES
        for path in sorted(Path(package).rglob("*.py"))
        for function, name in growing(ast.parse(path.read_text(encoding="utf-8")))
    }


@pytest.mark.parametrize(
    "source",
    [
        "pause_s = min(2 * pause_s, RETRY_LAST_S)",
        "self._pause_s = min(self._pause_s * 2, 60)",
        "pause_s = FIRST if found else pause_s * FACTOR",
        "delay *= 2",
        "delay <<= 1",
        "delay = delay + delay",
        "pause: float = 1.5 * pause",
        "state = replace(state, pause_s=2 * state.pause_s)",
    ],
)
def test_planted_delay_that_doubles_itself_is_found(source: str) -> None:
    assert [name for _, name in growing(ast.parse(f"async def wait():\n    {source}"))]


@pytest.mark.parametrize("source", ["pause_s = 2 * first_s", "total = total + 2 * step", "pause_s = backoff.next_s()"])
def test_delay_of_another_number_is_not_found(source: str) -> None:
    assert not list(growing(ast.parse(source)))


def test_each_number_that_grows_by_itself_has_a_bound() -> None:
    assert found() == set(GROWING)
