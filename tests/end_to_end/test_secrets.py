"""Private keys of a farm after founding, gossip, commits, publications and replies: they are only in key files."""

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bridge.node.security.key_files import load_farm_key, load_master_key, load_signing_key
from bridge.wire.keys.text import encode_key
from tests.end_to_end.farm import PUBLISHER_BOUND_S, Farm, call

KEY_FILES = {"farm.key", "master.key", "signing.key", "identity.pem", "tls.pem", "keys"}
"""Names of the files of this farm with a private key. A node with other settings has further files with secrets."""
PEM_HEAD = b"-----BEGIN PRIVATE KEY-----\n"
COMMANDS = (
    ("status",),
    ("status", "--json"),
    ("farm", "--json"),
    ("node", "list", "--json"),
    ("log", "--json"),
    ("keys", "list", "--json"),
)


def secrets_of(farm: Farm) -> Iterator[tuple[str, bytes]]:
    """Yield each private key of the farm and of its nodes, with a name for the failure message."""
    yield "master", load_master_key(farm.directory / "master.key").private_key.private_bytes_raw()
    for number, key in enumerate(load_farm_key(farm.directory / "farm.key").gossip_keys):
        yield f"gossip {number}", key
    for node in farm.nodes:
        signing = load_signing_key(node.directory / "signing.key")
        yield f"transient of {node.name}", signing.private_key.private_bytes_raw()
        identity_pem, tls_pem = ((node.directory / name).read_bytes() for name in ("identity.pem", "tls.pem"))
        identity, tls = load_pem_private_key(identity_pem, None), load_pem_private_key(tls_pem, None)
        assert isinstance(identity, Ed25519PrivateKey)
        assert isinstance(tls, EllipticCurvePrivateKey)
        yield f"identity of {node.name}", identity.private_bytes_raw()
        yield f"TLS of {node.name}", tls.private_numbers().private_value.to_bytes(tls.key_size // 8)
        for name, pem in (("identity", identity_pem), ("TLS", tls_pem)):
            # A copy of the PEM text has other base64 than the key alone. For both kinds of key, the first line has
            # bytes of the key.
            yield f"{name} PEM of {node.name}", pem.partition(PEM_HEAD)[2].splitlines()[0]


def files_of(farm: Farm) -> list[Path]:
    return [path for path in sorted(farm.directory.rglob("*")) if path.is_file() and not path.is_symlink()]


def test_private_keys_are_only_in_key_files(farm: Farm) -> None:
    farm.wait_until(
        lambda: [file for node in farm.nodes for file in node.structures()], PUBLISHER_BOUND_S, "a structure"
    )
    farm.wait_until(
        lambda: call("status", "--node", farm.nodes[0].directory).returncode == 0,
        PUBLISHER_BOUND_S,
        "the farm is healthy",
    )
    made = call("backup", farm.directory / "farm.backup", "--node", farm.nodes[0].directory)
    assert made.returncode == 0, made.stderr
    shown = {}
    for path in files_of(farm):
        with suppress(FileNotFoundError):  # replaced since the listing
            shown.update({} if path.name in KEY_FILES else {str(path): path.read_bytes()})
    for command in COMMANDS:
        done = call(*command, "--node", farm.nodes[0].directory)
        assert done.returncode == 0, done.stderr
        shown[" ".join(command)] = (done.stdout + done.stderr).encode()
    assert any(name.endswith(".segment") for name in shown)
    assert any(name.endswith(".meta-ls2") for name in shown)
    assert any(name.endswith(".backup") for name in shown)
    for secret_name, secret in secrets_of(farm):
        forms = (secret, secret.hex().encode(), encode_key(secret).rstrip("=").encode())
        for place, content in shown.items():
            assert not any(form in content for form in forms), f"the {secret_name} key is in {place}"


def test_key_files_are_readable_only_by_owner(farm: Farm) -> None:
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in files_of(farm) if path.name in KEY_FILES}
    assert {path.name for path in found} >= KEY_FILES - {"keys"}
    assert {path: mode for path, mode in found.items() if mode != 0o600} == {}
