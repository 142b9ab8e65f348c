"""`garlicfarm config`: one bundle for many nodes; each node adds its own settings."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.cli.main import cli
from bridge.core.log.records import PublishConfig
from bridge.node.security.key_files import load_farm_key, save_farm_key, save_signing_key
from bridge.node.settings.bundle import BundleError, bundle_text, parse_bundle, shared_settings, toml_text
from bridge.node.settings.configuration import load_configuration
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from gossip.node.state_files import keep_keys
from tests.destinations import new_demo_leaf
from tests.effort import each_case

BLOG, SHOP = new_master_key(), new_master_key()
LEAF = new_demo_leaf()
NOW_S = 1_800_000_000


def garlicfarm(*arguments: object) -> Result:
    if arguments[1] == "import":
        # A test machine may have several private addresses or none.
        arguments = (*arguments, "--bind", "127.0.0.1:7668")
    return CliRunner().invoke(cli, [str(each) for each in arguments])


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """Write and return the configuration of a running node, with its own settings."""
    home = tmp_path / "first"
    home.mkdir()
    save_farm_key(home / "farm.key", new_farm_key(3))
    for name, master in (("blog.key", BLOG), ("shop.key", SHOP)):
        save_signing_key(home / name, master.sign_transient(NOW_S))
    (home / "node.toml").write_text(f"""
name = "node-1"
farm_key = "farm.key"
state_dir = "secret-state"
[gossip]
bind = "127.0.0.1:17668"
seeds = ["10.0.0.1:7668"]
timing = "local"
[consensus]
voters_max = 7
[publishing]
reporting_period_ms = 2000
[[master]]
signing_key = "blog.key"
publish = "on"
[[master]]
signing_key = "shop.key"
[[leaf]]
destination = "{LEAF.base64}"
probe = "127.0.0.1:8080"
""")
    return home / "node.toml"


def exported(first: Path) -> Path:
    bundle = first.parent / "farm.bundle"
    assert garlicfarm("config", "export", "--config", first, bundle).exit_code == 0
    return bundle


def test_bundle_contains_shared_settings_only(first: Path) -> None:
    bundle = exported(first)
    assert bundle.stat().st_mode & 0o777 == 0o600
    key, settings = parse_bundle(bundle.read_text())
    assert key.label == load_farm_key(first.parent / "farm.key").label
    assert settings == {
        "gossip": {"seeds": ["10.0.0.1:7668"], "timing": "local"},
        "consensus": {"voters_max": 7},
        "publishing": {"reporting_period_ms": 2000},
        "master": [
            {"destination": BLOG.destination.base64, "publish": "on"},
            {"destination": SHOP.destination.base64, "publish": "auto"},
        ],
    }
    for own in ("node-1", "secret-state", "17668", "8080", "blog.key", LEAF.base64[:40]):
        assert own not in bundle.read_text()


def test_bundle_contains_present_keys_of_node(first: Path) -> None:
    """After a rotation the key file is outdated until an operator replaces it."""
    filed = load_farm_key(first.parent / "farm.key")
    rotated = replace(filed, epoch=filed.epoch + 5, gossip_keys=(b"2" * 32, *filed.gossip_keys))
    (first.parent / "secret-state").mkdir()
    keep_keys(first.parent / "secret-state", rotated.key_ring)
    key, _ = parse_bundle(exported(first).read_text())
    assert (key.epoch, key.gossip_keys) == (rotated.epoch, rotated.gossip_keys)


def test_bundle_of_node_without_gossip_contains_keys_of_file(first: Path) -> None:
    """A node without gossip does not read the keys in its state directory."""
    filed = load_farm_key(first.parent / "farm.key")
    (first.parent / "secret-state").mkdir()
    keep_keys(first.parent / "secret-state", replace(filed, epoch=filed.epoch + 5).key_ring)
    first.write_text(
        'farm_key = "farm.key"\nstate_dir = "secret-state"\ntransport = "i2p"\n'
        '[consensus]\nbind = "127.0.0.1:7669"\nadvertise = "farm.i2p:7669"\n'
    )
    key, _ = parse_bundle(exported(first).read_text())
    assert (key.epoch, key.gossip_keys) == (filed.epoch, filed.gossip_keys)


def test_import_writes_settings_with_own_name_key_and_leaf(first: Path, tmp_path: Path) -> None:
    signing_key = tmp_path / "own.key"
    save_signing_key(signing_key, BLOG.sign_transient(NOW_S))
    home = tmp_path / "second"
    result = garlicfarm(
        "config", "import", exported(first), home, "--name", "node-2", "--signing-key", signing_key,
        "--leaf", f"{LEAF.base64}=127.0.0.1:80", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    configuration = load_configuration(home / "node.toml")
    assert json.loads(result.stdout)["file"] == str(home / "node.toml")
    assert configuration.name == "node-2"
    assert configuration.consensus.voters_max == 7
    assert [(each.signing_key, each.publish) for each in configuration.masters] == [
        (signing_key, PublishConfig.ON),
        (None, PublishConfig.AUTO),
    ]
    assert [(each.destination, each.probe) for each in configuration.leaves] == [(LEAF, ("127.0.0.1", 80))]
    assert (home / "farm.key").stat().st_mode & 0o777 == 0o600
    assert load_farm_key(home / "farm.key").label == load_farm_key(first.parent / "farm.key").label


def test_import_without_signing_key_does_not_publish(first: Path, tmp_path: Path) -> None:
    assert garlicfarm("config", "import", exported(first), tmp_path / "third").exit_code == 0
    masters = load_configuration(tmp_path / "third" / "node.toml").masters
    assert {(each.signing_key, each.publish) for each in masters} == {(None, PublishConfig.AUTO)}


def test_existing_configuration_is_kept_without_replace(first: Path, tmp_path: Path) -> None:
    bundle, home = exported(first), tmp_path / "fourth"
    assert garlicfarm("config", "import", bundle, home).exit_code == 0
    before = (home / "node.toml").read_bytes()
    refused = garlicfarm("config", "import", bundle, home, "--name", "other")
    assert (refused.exit_code, (home / "node.toml").read_bytes()) == (1, before)
    assert "--replace" in refused.stderr
    assert garlicfarm("config", "import", bundle, home, "--name", "other", "--replace").exit_code == 0
    assert load_configuration(home / "node.toml").name == "other"


def test_invalid_configuration_is_not_written(first: Path, tmp_path: Path) -> None:
    home = tmp_path / "fifth"
    result = garlicfarm("config", "import", exported(first), home, "--leaf", "nonsense")
    assert result.exit_code == 1
    assert f"{home / 'node.toml'}: leaf[0].destination" in result.stderr
    assert list(home.iterdir()) == [], "no key remains without a configuration"


def test_key_of_other_master_or_farm_is_refused(first: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    save_signing_key(other, new_master_key().sign_transient(NOW_S))
    result = garlicfarm("config", "import", exported(first), tmp_path / "sixth", "--signing-key", other)
    assert (result.exit_code, "not a master of this bundle" in result.stderr) == (1, True)
    home = tmp_path / "seventh"
    home.mkdir()
    save_farm_key(home / "farm.key", new_farm_key(3))
    result = garlicfarm("config", "import", first.parent / "farm.bundle", home)
    assert (result.exit_code, "another farm's key" in result.stderr) == (1, True)


def test_shown_configuration_is_complete_without_secrets(first: Path) -> None:
    found = json.loads(garlicfarm("config", "show", "--config", first, "--json").stdout)["configuration"]
    assert found["name"] == "node-1"
    assert found["consensus"]["grace_ms"] == 600_000
    assert found["master"][0]["signing_key"] == str(first.parent / "blog.key")
    text = garlicfarm("config", "show", "--config", first).stdout
    assert "voters_max = " in text
    assert f"# leaf {LEAF.address}\n" in text, "the same name as in other commands"
    assert '"10.0.0.1:7668"' in text
    # The text is a file with the same settings.
    (first.parent / "shown.toml").write_text(text)
    assert load_configuration(first.parent / "shown.toml") == load_configuration(first)
    key = tomllib.loads((first.parent / "blog.key").read_text())
    assert any("private" in name.lower() for name in key)
    for secret in (value for name, value in key.items() if "private" in name.lower()):
        assert secret not in text


@each_case("text", ["", "{}", "[" * 100_000, '{"kind":"x","version":1,"farmKey":"","settings":{}}', "\ud800"])
def test_malformed_bundle_is_refused(text: str) -> None:
    with pytest.raises(BundleError):
        parse_bundle(text)


@each_case(
    "settings",
    [
        {"state_dir": "/elsewhere"},
        {"control": {"listen": "0.0.0.0:1"}},
        {"router": {"kind": "file", "directory": "/etc"}},
        {"master": [{"destination": "d", "signing_key": "/k"}]},
        {"master": [7]},
        {"": {"demo": True}},
    ],
)
def test_bundle_with_settings_of_one_node_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(BundleError):
        parse_bundle(bundle_text(new_farm_key(3), settings))


def test_settings_written_as_toml_are_read_back_equal() -> None:

    settings = {
        "a": 'quote " backslash \\ \x7f ü 🧄',
        "b": [1, 2],
        "t": {"x": True, "y": 1.5},
        "m": [{"k": "v"}, {"k": "w"}],
    }
    assert tomllib.loads(toml_text(settings)) == settings
    assert shared_settings({"name": "own", "gossip": {"bind": "own"}}, ()) == {}
