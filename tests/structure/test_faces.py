"""The faces of consensus and gossip: what they name is there, and types alone load no event loop."""

import subprocess
import sys
from importlib import import_module

import pytest

FACES = (
    "consensus",
    "consensus.net",
    "consensus.protocols.garlic_farm",
    "consensus.protocols.kafka",
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


@pytest.mark.parametrize("face", FACES)
def test_each_name_of_a_stub_resolves_at_run_time(face: str) -> None:
    module = import_module(face)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert dir(module) == module.__all__


def test_an_undeclared_name_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Paxos"):
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
