"""`garlicfarm debug` of a farm with a killed node: the bundle is complete and does not contain a secret."""

import base64
import json
import socket
import stat
from pathlib import Path

from bridge.node.control.access import ADMIN_TOKEN_FILE, READ_TOKEN_FILE
from bridge.node.control.control_certificate import CERTIFICATE_FILE
from tests.end_to_end.farm import Node, call, local_farm
from tests.end_to_end.settings import LOOPBACK, free_port
from tests.end_to_end.test_secrets import secrets_of
from tests.node.test_cli_debug import contents

PRIVATE = ("*.key", "*.token", "*.pem", "keys")


def secret_texts(directory: Path) -> set[bytes]:
    """Return the long words of all key and token files."""
    files = [path for pattern in PRIVATE for path in directory.rglob(pattern)]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    values = set[bytes]()
    for path in files:
        for line in path.read_bytes().splitlines():
            values |= {word.strip(b'",') for word in line.split() if len(word) >= 32 and b"-----" not in word}
    return values


def test_bundle_describes_each_node_without_secrets(tmp_path: Path) -> None:
    with local_farm(tmp_path, 3) as farm:
        # Given a farm whose first node accepts remote connections, and whose last node was killed.
        first, second, last = farm.nodes
        port = free_port(socket.SOCK_STREAM)
        with first.configuration.open("a") as file:
            file.write(f'\n[control]\nlisten = "{LOOPBACK}:{port}"\n')
        farm.start_all()
        farm.wait_settled()
        last.kill()
        # When one bundle is created with the admin token of the first node, and one with its read token.
        bundles = {
            token: bundle(first, second, port, token, tmp_path / f"{token}.tar.gz")
            for token in (ADMIN_TOKEN_FILE, READ_TOKEN_FILE)
        }
        secrets = [secret for _, secret in secrets_of(farm)]
        texts = secret_texts(tmp_path)
    # Then the first bundle lists the killed node. It has the other nodes' views, and the first node's data for admins.
    found = bundles[ADMIN_TOKEN_FILE]
    summary = json.loads(found["summary.json"])
    assert [each["name"] for each in summary["answered"]] == [first.name, second.name]
    assert [each["missing"] for each in summary["answered"]] == [[], []]
    assert last.name in {each["name"] for each in summary["silent"]}
    debug = json.loads(found[f"{first.name}/debug.json"])
    assert debug["settings"]["farm_key"].endswith("farm.key")
    assert debug["profile"]["processorS"] > 0
    assert any("ConsensusServer" in each["name"] for each in debug["tasks"])
    # Functions of modules are excluded from garbage collection, so the document does not count them.
    assert {each["type"]: each["count"] for each in debug["memory"]["types"]}.get("builtins.function", 0) < 3_000
    # And it has the history of each running node, and the views that this node collected.
    for node in (first, second):
        recorded = json.loads(found[f"{node.name}/history.json"])
        assert (recorded["node"], recorded["rows"][0]["kind"]) == (node.name, "verdict")
        assert {each["name"] for each in json.loads(found[f"{node.name}/views.json"])["nodes"]} >= {node.name}
    # The bundle of a read token lacks only the data for admins.
    shown = json.loads(bundles[READ_TOKEN_FILE]["summary.json"])["answered"][0]
    assert shown["missing"][0].startswith(f"{first.name}/debug.json: the node refused: this token only reads")
    # The bundles do not contain a secret in any encoding.
    content_of_all = b"\n".join(content for files in bundles.values() for content in files.values())
    assert len(texts) > 10
    for secret in secrets:
        forms = (secret, secret.hex().encode(), base64.b64encode(secret), base64.urlsafe_b64encode(secret))
        assert not any(form.rstrip(b"=") in content_of_all for form in forms)
    # The public destination of the master is also in its key file, and the farm publishes it.
    leaked = {text for text in texts if text in content_of_all}
    assert {text[:16] for text in leaked} <= {text[:16] for text in destinations(found)}


def destinations(found: dict[str, bytes]) -> set[bytes]:
    """Return the destinations of masters and leaves in the views, which are public."""
    views = [json.loads(content) for name, content in found.items() if name.endswith("view.json")]
    settings = [json.loads(content)["settings"] for name, content in found.items() if name.endswith("debug.json")]
    keys = [each for each_settings in settings for each in (*each_settings["leaf"], *each_settings["master"])]
    shown = {str(each["destination"]).encode() for each in keys if "destination" in each}
    return shown | {str(each["master"]).encode() for view in views for each in view["publishing"]}


def bundle(first: Node, second: Node, port: int, token: str, output: Path) -> dict[str, bytes]:
    """Create a bundle, of the first node by URL and of the second by directory; return its files."""
    place = first.directory
    credentials = ("--token-file", place / token, "--certificate", place / CERTIFICATE_FILE)
    nodes = ("--node", f"https://{LOOPBACK}:{port}", "--node", second.directory)
    done = call("debug", *nodes, *credentials, "--seconds", "1", "--output", output)
    assert done.returncode == 0, done.stderr
    return contents(output)
