"""Bounds of powers, shifts by a variable, and numbers that grow by multiplication: each is listed here.

A delay of `first * 2**failures` overflows after 1,024 failures, `1 << n` with a number from the network allocates n
bits, and a delay that doubles without a bound becomes years. `consensus.net.Backoff` doubles, clamps and spreads.
`gossip` may not import `consensus` (import contract), so it computes its few delays itself.
"""

import ast
from collections.abc import Callable, Iterator, Mapping

from tests.structure.sources import ROOT, modules_in, problem, tree_of

PACKAGES = ("gossip", "consensus", "bridge", "pipeline", "pyspark_garlicfarm", "pyspark_garlicfarm_events")
BOUNDED: dict[tuple[str, ...], str] = {
    ("bridge/core/connecting/leaves.py", "failed"): "six doublings, clamped in the expression",
    ("bridge/core/membership/authors.py", "after"): "the window: larger changes are handled separately",
    ("bridge/tui/charts.py", "round_above"): "a chart's scale",
    ("bridge/wire/keys/curve_key.py", "to_z85"): "four: the digits of a group",
    ("consensus/core/replication/fetch_receiver.py", "succession_backoff_ms"): "clamped in the expression",
    ("consensus/protocols/garlic_farm/wire/proof.py", ""): "a constant",
    ("consensus/protocols/kafka/wire/record_batches.py", "read_varint"): "the shifts of a loop of at most ten bytes",
    ("consensus/protocols/kafka/wire/serialization.py", "varint"): "the shifts of a loop of five bytes",
    ("consensus/protocols/zmq_raft/peer/peer_link.py", "query_members"): "a constant",
    ("consensus/protocols/zmq_raft/wire/frames.py", ""): "a constant",
    ("gossip/core/join.py", "_seek_pause_ms"): "clamped in the expression",
    ("gossip/core/join.py", "_backoff_ms"): "clamped in the expression",
    ("gossip/simulation/charts.py", "round_end"): "a chart's scale",
    ("gossip/wire/box.py", "x25519_public"): "modular: the inverse of a number below the prime",
    ("gossip/wire/seal.py", "take"): "the window: larger distances are handled separately",
    ("gossip/wire/seal.py", ""): "a constant",
    ("pipeline/alerts/delivery.py", "_tried"): "fewer than ATTEMPTS",
    ("pipeline/floodfills.py", "_shared_prefix"): "the bits of a word",
    ("pipeline/load_model.py", "__post_init__"): "a Gaussian of a simulated load",
    ("pipeline/planned_failures.py", "__init__"): "a Gaussian of a simulated load",
    ("pipeline/planned_failures.py", "effect"): "the elapsed share of a failure, at most one",
    ("pipeline/planned_failures.py", "factor"): "a Gaussian of a simulated load",
}
"""The bound of each power by a variable, by file and function."""
GROWING: dict[tuple[str, ...], str] = {
    ("bridge/core/connecting/reply_times.py", "_double", "self.factor"): "64; lengthens a timeout of at most 60 s",
    ("bridge/wire/keys/curve_key.py", "from_z85", "value"): "the five digits of a group; no delay",
    ("consensus/core/replication/fetch_schedule.py", "adapt", "self._limit_bytes"): "the setting of bytes; no delay",
    ("consensus/protocols/kraft/wire/control_records.py", "voters_value", "features"): "bytes for each voter; no delay",
    ("consensus/protocols/kafka/wire/record_batches.py", "write_varint", "number"): "64 bits; no delay",
    (
        "consensus/protocols/zmq_raft/client/log_reader.py",
        "_next",
        "self._slowness",
    ): "256; lengthens a wait, not a retry",
    ("consensus/protocols/kraft/replica/quorum_service.py", "answer", "max_bytes"): "the size of one request; no delay",
    ("gossip/node/discovery.py", "follow_name", "pause_s"): "60 s; gossip does not import consensus.net",
    ("gossip/node/state_files.py", "_follow", "pause_s"): "60 s; gossip does not import consensus.net",
    ("gossip/node/state_files.py", "adopt", "pause_s"): "60 s; gossip does not import consensus.net",
    ("pipeline/feedback/replay.py", "observe", "index"): "a place in the log; no delay",
    ("pipeline/load_model.py", "_report", "lag_ms"): "once for each report; no delay",
}
"""The bound of each growing number, by file, function and name."""


def powers(tree: ast.AST, function: str = "") -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line and the function of each power or shift by a variable."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            if not isinstance(node.right, ast.Constant):
                yield node.lineno, (inner,)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"pow", "math.pow", "math.exp", "math.ldexp"}:
            yield node.lineno, (inner,)
        yield from powers(node, inner)


def growing(tree: ast.AST, function: str = "") -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line, the function and the name of each variable that is assigned its own multiple."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        match node:
            case ast.AugAssign(target=target, op=ast.Mult() | ast.LShift()):
                yield node.lineno, (inner, ast.unparse(target))
            case ast.Assign(targets=targets, value=value) if _computes(value):
                for name in map(ast.unparse, targets):
                    if _grows(name, value):
                        yield node.lineno, (inner, name)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if _computes(value) and _grows(
                ast.unparse(target), value
            ):
                yield node.lineno, (inner, ast.unparse(target))
            case ast.keyword(arg=str(name), value=value) if _computes(value) and _grows(f".{name}", value):
                yield value.lineno, (inner, name)
            case _:
                pass
        yield from growing(node, inner)


def _computes(value: ast.expr) -> bool:
    return any(isinstance(node, ast.BinOp) for node in ast.walk(value))


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


def check() -> Iterator[str]:
    """Yield places without a bound, and bounds without a place."""
    yield from _unbounded(powers, BOUNDED, "a power or shift by a variable")
    yield from _unbounded(growing, GROWING, "a number that grows by multiplication")


def _unbounded(
    find: Callable[[ast.AST], Iterator[tuple[int, tuple[str, ...]]]], bounds: Mapping[tuple[str, ...], str], what: str
) -> Iterator[str]:
    found = set()
    for path in modules_in(*PACKAGES):
        for line, place in find(tree_of(path)):
            key = (str(path.relative_to(ROOT)), *place)
            found.add(key)
            if key not in bounds:
                yield problem(path, line, f"{what} needs a bound in tests/structure/growth.py: {key}")
    for key in sorted(bounds.keys() - found):
        yield f"tests/structure/growth.py:1: this place does not exist: {key}"
