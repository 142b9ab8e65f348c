"""`keys new-destination` and `keys offline`: an operator's two commands lead to a structure that verifies."""

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.node.security.key_files import load_master_key, load_signing_key, save_master_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode, verify
from bridge.wire.keys.text import encode_key
from tests.destinations import new_demo_leaf

DAY_S = 86_400


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., Result]:
    """Return a caller of `garlicfarm keys`, which checks that the output does not contain a private key."""

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(cli, ["keys", *map(str, arguments)])
        for file in tmp_path.glob("*.key"):
            private = load_signing_key(file).private_key.private_bytes_raw()
            for form in (encode_key(private), private.hex()):
                assert form not in result.output, "no command prints a key"
        return result

    return call


@pytest.fixture
def master(tmp_path: Path, keys: Callable[..., Result]) -> Path:
    path = tmp_path / "master.key"
    assert keys("new-destination", path).exit_code == 0
    return path


def test_new_destination_is_private_file_with_address(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "master.key"
    result = keys("new-destination", path)
    assert result.exit_code == 0, result.output
    destination = load_master_key(path).destination
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert destination.address in result.stdout
    assert f"garlicfarm keys offline --master {path}" in result.stdout
    assert len(destination.encoded) == 391


def test_new_destination_as_json_has_public_values_only(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "master.key"
    found = json.loads(keys("new-destination", path, "--json").stdout)
    destination = load_master_key(path).destination
    assert found == {
        "schema": 1,
        "file": str(path),
        "address": destination.address,
        "hash": destination.hash.hex(),
        "destination": destination.base64,
    }


def test_import_destination_uses_key_file_of_router(tmp_path: Path, keys: Callable[..., Result]) -> None:
    own = new_master_key()
    source = tmp_path / "eepPriv.dat"
    source.write_bytes(own.destination.encoded + bytes(256) + own.private_key.private_bytes_raw())
    result = keys("import-destination", source, tmp_path / "master.key")
    assert result.exit_code == 0, result.output
    assert own.destination.address in result.stdout
    assert "no router may run a tunnel with this destination" in result.stdout
    assert load_master_key(tmp_path / "master.key").destination == own.destination
    assert stat.S_IMODE((tmp_path / "master.key").stat().st_mode) == 0o600
    found = json.loads(keys("import-destination", source, tmp_path / "other.key", "--json").stdout)
    assert found["address"] == own.destination.address


def test_import_destination_of_invalid_file_is_refused(tmp_path: Path, keys: Callable[..., Result]) -> None:
    source, out = tmp_path / "eepPriv.dat", tmp_path / "master.key"
    source.write_bytes(b"rubbish")
    for file, message in (
        (source, "eepPriv.dat: it is not a private key file"),
        (tmp_path / "absent", "cannot be read"),
    ):
        refused = keys("import-destination", file, out)
        assert refused.exit_code == 1
        assert message in refused.stderr
        assert not out.exists()


def test_master_key_is_not_overwritten(master: Path, keys: Callable[..., Result]) -> None:
    before = master.read_bytes()
    refused = keys("new-destination", master)
    assert refused.exit_code == 1
    assert "exists already and is not overwritten" in refused.stderr
    assert master.read_bytes() == before


def test_offline_makes_one_signing_key_per_node_for_thirty_days(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    files = [tmp_path / f"{name}.key" for name in ("a", "b", "c")]
    before_s = int(time.time())
    made = keys("offline", "--master", master, *(part for file in files for part in ("--out", file)), "--json")
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    loaded = [load_signing_key(file) for file in files]
    assert [each["file"] for each in found["keys"]] == [str(file) for file in files]
    assert found["address"] == load_master_key(master).destination.address
    assert len({each["transientKey"] for each in found["keys"]}) == 3
    for key, each, file in zip(loaded, found["keys"], files, strict=True):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert key.expires_s == each["expires"]
        assert before_s + 30 * DAY_S <= each["expires"] <= int(time.time()) + 30 * DAY_S
        structure = key.sign(before_s, (MetaLease(new_demo_leaf().hash, 0, before_s + 900),))
        assert verify(structure).holds
        assert not structure.is_demo


def test_offline_as_text_shows_end_and_setting(tmp_path: Path, master: Path, keys: Callable[..., Result]) -> None:
    result = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", 60)
    ends = time.strftime("%Y-%m-%d", time.gmtime(load_signing_key(tmp_path / "a.key").can_sign_until_s))
    assert f"a.key: signs for {load_master_key(master).destination.address} until {ends}" in result.stdout
    assert "signing_key = " in result.stdout
    assert result.stderr == ""


def test_key_within_alarm_period_is_warned_about(tmp_path: Path, master: Path, keys: Callable[..., Result]) -> None:
    result = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", 7)
    assert result.exit_code == 0
    assert "end within a week" in result.stderr


def test_several_keys_are_made_all_or_none(tmp_path: Path, master: Path, keys: Callable[..., Result]) -> None:
    assert keys("offline", "--master", master, "--out", tmp_path / "b.key").exit_code == 0
    before = (tmp_path / "b.key").read_bytes()
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--out", tmp_path / "b.key")
    assert refused.exit_code == 1
    assert "b.key exists already and is not overwritten" in refused.stderr
    assert "no key was made" in refused.stderr
    assert not (tmp_path / "a.key").exists()
    assert (tmp_path / "b.key").read_bytes() == before


def test_offline_without_usable_master_key_is_refused(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    out = tmp_path / "new.key"
    assert keys("offline", "--master", master, "--out", tmp_path / "a.key").exit_code == 0
    open_to_others = tmp_path / "open"
    open_to_others.write_bytes(master.read_bytes())
    open_to_others.chmod(0o644)
    for file, message in (
        (tmp_path / "a.key", "the master key file is needed here"),
        (tmp_path / "absent", "does not exist"),
        (open_to_others, f"chmod 600 {open_to_others}"),
    ):
        refused = keys("offline", "--master", file, "--out", out)
        assert refused.exit_code == 1
        assert message in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert not out.exists()


def test_offline_with_one_file_for_two_nodes_is_refused(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--out", tmp_path / "." / "a.key")
    assert refused.exit_code == 1
    assert "each node needs its own key" in refused.stderr
    assert not (tmp_path / "a.key").exists()


@pytest.mark.parametrize("days", ["0", "-1", "367", "x"])
def test_lifetime_outside_one_day_to_one_year_is_wrong_usage(
    tmp_path: Path, master: Path, keys: Callable[..., Result], days: str
) -> None:
    assert keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", days).exit_code == 2
    assert not (tmp_path / "a.key").exists()


def test_implausible_clock_prevents_signing_key(
    tmp_path: Path, master: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key")
    assert refused.exit_code == 1
    assert "this machine's clock is at 1970-01-01 00:16 UTC: set it" in refused.stderr
    assert not (tmp_path / "a.key").exists()


def test_keys_of_demo_master_stay_marked(tmp_path: Path, keys: Callable[..., Result]) -> None:
    save_master_key(tmp_path / "demo.key", new_master_key(demo=True))
    keys("offline", "--master", tmp_path / "demo.key", "--out", tmp_path / "a.key")
    key = load_signing_key(tmp_path / "a.key")
    ends_s = key.can_sign_until_s - 1
    structure = key.sign(ends_s - 900, (MetaLease(new_demo_leaf().hash, 0, ends_s),))
    assert encode(structure)
    assert structure.is_demo
