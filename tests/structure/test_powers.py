"""Powers and shifts by a variable are bounded where they stand.

A delay of `first * 2**failures` overflows after 1,024 failures, and `1 << n` with a number from the network allocates
n bits. Delays use `consensus.net.Backoff`; each other place is named here with the bound that it obeys.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("gossip", "consensus", "bridge", "pipeline", "pyspark_garlicfarm", "pyspark_garlicfarm_events")
BOUNDED = {
    ("bridge/core/membership/authors.py", "after"): "the window: a rise or fall beyond it is set apart before",
    ("bridge/wire/keys/curve_key.py", "to_z85"): "four: the digits of a group",
    ("consensus/core/replication/fetch_follower.py", "succession_backoff_ms"): "clamped in the expression",
    ("consensus/protocols/garlic_farm/wire/proof.py", ""): "a constant",
    ("consensus/protocols/kraft/wire/control_records.py", "_length"): "the shifts of a loop of at most ten bytes",
    ("consensus/protocols/kraft/wire/record_batches.py", "read_varint"): "the shifts of a loop of at most ten bytes",
    ("consensus/protocols/kraft/wire/serialization.py", "varint"): "the shifts of a loop of five bytes",
    ("consensus/protocols/zmq_raft/peer/peer_link.py", "ask_members"): "a constant",
    ("consensus/protocols/zmq_raft/wire/frames.py", ""): "a constant",
    ("gossip/core/join.py", "_seek_pause_ms"): "clamped in the expression",
    ("gossip/core/join.py", "_backoff_ms"): "clamped in the expression",
    ("gossip/simulation/charts.py", "round_end"): "a chart's scale",
    ("gossip/wire/box.py", "x25519_public"): "modular: the inverse of a number below the prime",
    ("gossip/wire/seal.py", "take"): "the window: what is further ahead is set apart before",
    ("gossip/wire/seal.py", ""): "a constant",
    ("pipeline/alerts/delivery.py", "_tried"): "fewer than ATTEMPTS",
    ("pipeline/floodfills.py", "_shared_prefix"): "the bits of a word",
    ("pipeline/load_model.py", "__post_init__"): "a Gaussian of a simulated load",
    ("pipeline/planned_failures.py", "__init__"): "a Gaussian of a simulated load",
    ("pipeline/planned_failures.py", "effect"): "the part of a failure that is over, at most one",
    ("pipeline/planned_failures.py", "factor"): "a Gaussian of a simulated load",
}


def powers(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Each power or shift by something that is no constant, with the name of the function around it."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
            if not isinstance(node.right, ast.Constant):
                yield inner, node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"pow", "math.pow", "math.exp", "math.ldexp"}:
            yield inner, node
        yield from powers(node, inner)


def found() -> Counter[tuple[str, str]]:
    return Counter(
        (str(path), function)
        for package in PACKAGES
        for path in sorted(Path(package).rglob("*.py"))
        for function, _ in powers(ast.parse(path.read_text(encoding="utf-8")))
    )


@pytest.mark.parametrize("source", ["delay = first * 2**failures", "mask = 1 << number", "delay = math.pow(2, n)"])
def test_power_by_a_variable_is_found(source: str) -> None:
    assert list(powers(ast.parse(source)))


def test_each_power_by_a_variable_has_a_bound() -> None:
    assert set(found()) == set(BOUNDED)
