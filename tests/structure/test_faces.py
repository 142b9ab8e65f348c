"""The faces of consensus and gossip: what they name is there, and types alone load no event loop."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

FACES = (
    "consensus",
    "consensus.net",
    "consensus.protocols.garlic_farm",
    "consensus.protocols.kraft",
    "consensus.protocols.zmq_raft",
    "consensus.sessions",
    "consensus.storage",
    "gossip",
    "gossip.core",
    "gossip.node",
    "gossip.simulation",
    "gossip.wire",
)


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_found_at_its_home(face: str) -> None:
    module = import_module(face)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert sorted(name for names in module._HOMES.values() for name in names) == sorted(module.__all__)


def test_a_name_that_a_face_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'consensus' has no attribute 'Paxos'"):
        _ = import_module("consensus").Paxos


def test_the_pure_core_comes_without_trio_and_cryptography() -> None:
    program = (
        "import sys; from consensus import Configuration, Options, Raft, Server; "
        "print(sorted({'trio', 'cryptography', 'msgspec'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_node_loads_nothing_that_only_others_or_later_moments_need() -> None:
    """Each of these is a megabyte or more, and a node is to fit beside a router on a small machine."""
    unused = (
        "argparse",
        "bridge.node.router.i2cp_router",
        "httpcore",
        "importlib.metadata",
        "kio",
        "prometheus_client",
        "rich",
        "statistics",
        "zmq",
    )
    program = f"import sys, bridge.cli.run; print(sorted({set(unused)!r} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_every_name_that_is_imported_from_a_face_is_there() -> None:
    """A face fetches names when they are used, so mypy does not know which it has."""
    missing = []
    for path in (each for top in ("bridge", "benchmarks", "pipeline") for each in sorted((ROOT / top).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in FACES:
                names = import_module(node.module).__all__
                missing += [(path.name, node.module, alias.name) for alias in node.names if alias.name not in names]
    assert missing == []
