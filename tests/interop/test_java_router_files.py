"""The router's own classes and our decoders agree on its files: properties, and the key file of a tunnel."""

import re
import subprocess
from pathlib import Path

import pytest

from bridge.node.detecting.found import find_tunnel
from bridge.node.detecting.machine import MachineFiles
from bridge.wire.routers.java_files import read_java_properties
from bridge.wire.routers.text_file import ServerTunnel
from tests.interop import java_i2p

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(java_i2p.missing() is not None, reason=java_i2p.missing() or "all is there"),
]
PROPERTIES = """\
# NOTE: This I2P config file must use UTF-8 encoding
tunnel.0.name=My site
tunnel.0.type=httpserver # a comment
;tunnel.0.targetPort=1
 tunnel.0.targetHost = 127.0.0.1\x20
tunnel.0.option.a=b=c
tunnel.0.empty=
without a value
tunnel.0.description=\u00e9t\u00e9;\\n
tunnel.0.name=Later
"""


def lines_of(directory: Path, *command: str) -> list[str]:
    """Return the output of a program of the Java classes."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=java_i2p.TIMEOUT_S, check=True, cwd=directory
    )
    return done.stdout.splitlines()


def test_properties_are_read_like_the_router(tmp_path: Path) -> None:
    file = tmp_path / "i2ptunnel.config"
    file.write_text(PROPERTIES)
    printed = lines_of(tmp_path, *java_i2p.command("ReadProperties", str(file)))
    assert read_java_properties(file.read_bytes()) == dict(line.split("\t") for line in printed)


@pytest.mark.parametrize("signature", ["EdDSA_SHA512_Ed25519", "ECDSA_SHA256_P256", "DSA_SHA1", "RSA_SHA512_4096"])
def test_address_of_java_key_file_is_found(tmp_path: Path, signature: str) -> None:
    command = java_i2p.class_command("net.i2p.data.PrivateKeyFile", "-t", signature, "web.dat")
    printed = "\n".join(lines_of(tmp_path, *command))
    tunnel = ServerTunnel("web", "httpserver", "127.0.0.1", 80, "web.dat")
    found = find_tunnel(MachineFiles(), tmp_path, tunnel)
    assert found.destination is not None, found.problem
    assert found.destination.address in re.findall(r"\w{52}\.b32\.i2p", printed)
