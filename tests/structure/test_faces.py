"""The public modules of the packages: their names exist. The pure core and a starting node load few others."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from consensus.net import load_or_create_certificate
from gossip.node.state_files import load_identity
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


RESTART = """
import sys
from pathlib import Path
import bridge.cli.run
from consensus.net import load_or_create_certificate
from gossip.node.state_files import load_identity
load_or_create_certificate(Path(sys.argv[1])).server_context()
load_identity(Path(sys.argv[1]))
print(*sys.modules)
"""


def test_restart_of_node_does_not_load_unused_modules(tmp_path: Path) -> None:
    """Modules use memory, and a node must fit on a small machine together with a router."""
    load_or_create_certificate(tmp_path)
    load_identity(tmp_path)
    unused = {
        "argparse",
        "bridge.node.router.i2cp_router",
        "cramjam",
        "cryptography.hazmat.primitives.serialization",
        "cryptography.x509",
        "httpcore",
        "importlib.metadata",
        "kio",
        "prometheus_client",
        "rich",
        "statistics",
        "zmq",
    }
    run = subprocess.run([sys.executable, "-c", RESTART, str(tmp_path)], capture_output=True, text=True, check=True)
    assert unused.intersection(run.stdout.split()) == set()
