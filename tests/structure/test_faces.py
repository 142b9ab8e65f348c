"""The public modules of the packages: their names exist. The pure core and a starting node load few others."""

import subprocess
import sys
from importlib import import_module

import pytest

from tests.effort import each_case

FACES = (
    "bridge.connect",
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


@each_case("face", FACES)
def test_stub_names_resolve_at_run_time(face: str) -> None:
    module = import_module(face)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert dir(module) == module.__all__


def test_undeclared_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Paxos"):
        _ = import_module("consensus").Paxos


def test_pure_core_loads_without_trio_and_cryptography() -> None:
    program = (
        "import sys; from consensus import Configuration, Options, Raft, Server; "
        "print(sorted({'trio', 'cryptography'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_node_start_does_not_load_unused_modules() -> None:
    """Modules use memory, and a node must fit on a small machine together with a router."""
    unused = (
        "argparse",
        "bridge.node.router.i2cp_router",
        "cramjam",
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
