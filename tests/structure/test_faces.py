"""The faces of consensus and gossip: what they name is there, and types alone load no event loop."""

import subprocess
import sys
from importlib import import_module

import pytest

FACES = (
    "consensus",
    "consensus.net",
    "consensus.protocols.garlic_farm",
    "consensus.sessions",
    "consensus.storage",
    "gossip",
    "gossip.core",
    "gossip.node",
    "gossip.simulation",
    "gossip.wire",
)


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
