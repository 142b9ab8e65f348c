"""`keys new-destination` and `keys offline`: from an operator's two commands to a structure that verifies."""

import json
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.main import cli
from bridge.node.security.key_files import load_master_key, load_signing_key, save_master_key
from bridge.wire.i2p.destination_keys import new_demo_leaf, new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode, verify
from bridge.wire.keys.text import encode_key

DAY_S = 86_400


@pytest.fixture
def keys(tmp_path: Path) -> Callable[..., Result]:
    """Calls `garlicfarm keys`; whatever it answers holds no private key of any file there."""

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


def test_a_new_destination_is_a_private_file_and_an_address(tmp_path: Path, keys: Callable[..., Result]) -> None:
    path = tmp_path / "master.key"
    said = keys("new-destination", path)
    assert said.exit_code == 0, said.output
    destination = load_master_key(path).destination
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert destination.address in said.stdout
    assert f"garlicfarm keys offline --master {path}" in said.stdout
    assert len(destination.encoded) == 391


def test_a_new_destination_as_json_has_what_others_may_know(tmp_path: Path, keys: Callable[..., Result]) -> None:
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


def test_an_address_that_exists_is_taken_over_out_of_a_routers_key_file(
    tmp_path: Path, keys: Callable[..., Result]
) -> None:
    own = new_master_key()
    source = tmp_path / "eepPriv.dat"
    source.write_bytes(own.destination.encoded + bytes(256) + own.private_key.private_bytes_raw())
    said = keys("import-destination", source, tmp_path / "master.key")
    assert said.exit_code == 0, said.output
    assert own.destination.address in said.stdout
    assert "no router may run a tunnel with this destination" in said.stdout
    assert load_master_key(tmp_path / "master.key").destination == own.destination
    assert stat.S_IMODE((tmp_path / "master.key").stat().st_mode) == 0o600
    found = json.loads(keys("import-destination", source, tmp_path / "other.key", "--json").stdout)
    assert found["address"] == own.destination.address


def test_a_file_that_holds_no_destinations_key_makes_none(tmp_path: Path, keys: Callable[..., Result]) -> None:
    source, out = tmp_path / "eepPriv.dat", tmp_path / "master.key"
    source.write_bytes(b"rubbish")
    for file, says in ((source, "eepPriv.dat: it is not a private key file"), (tmp_path / "absent", "cannot be read")):
        refused = keys("import-destination", file, out)
        assert refused.exit_code == 1
        assert says in refused.stderr
        assert not out.exists()


def test_a_master_key_is_never_overwritten(master: Path, keys: Callable[..., Result]) -> None:
    before = master.read_bytes()
    refused = keys("new-destination", master)
    assert refused.exit_code == 1
    assert "exists already and is not overwritten" in refused.stderr
    assert master.read_bytes() == before


def test_each_node_gets_its_own_signing_key_for_thirty_days(
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


def test_people_are_told_until_when_a_key_signs_and_where_it_belongs(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    said = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", 60)
    ends = time.strftime("%Y-%m-%d", time.gmtime(load_signing_key(tmp_path / "a.key").can_sign_until_s))
    assert f"a.key: signs for {load_master_key(master).destination.address} until {ends}" in said.stdout
    assert "signing_key = " in said.stdout
    assert said.stderr == ""


def test_a_key_that_alarms_from_the_start_is_warned_about(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    said = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", 7)
    assert said.exit_code == 0
    assert "end within a week" in said.stderr


def test_several_keys_are_made_all_or_none(tmp_path: Path, master: Path, keys: Callable[..., Result]) -> None:
    assert keys("offline", "--master", master, "--out", tmp_path / "b.key").exit_code == 0
    before = (tmp_path / "b.key").read_bytes()
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--out", tmp_path / "b.key")
    assert refused.exit_code == 1
    assert "b.key exists already and is not overwritten" in refused.stderr
    assert "no key was made" in refused.stderr
    assert not (tmp_path / "a.key").exists()
    assert (tmp_path / "b.key").read_bytes() == before


def test_what_cannot_be_a_masters_key_makes_no_signing_key(
    tmp_path: Path, master: Path, keys: Callable[..., Result]
) -> None:
    out = tmp_path / "new.key"
    assert keys("offline", "--master", master, "--out", tmp_path / "a.key").exit_code == 0
    open_to_others = tmp_path / "open"
    open_to_others.write_bytes(master.read_bytes())
    open_to_others.chmod(0o644)
    for file, says in (
        (tmp_path / "a.key", "the master key file is needed here"),
        (tmp_path / "absent", "does not exist"),
        (open_to_others, f"chmod 600 {open_to_others}"),
    ):
        refused = keys("offline", "--master", file, "--out", out)
        assert refused.exit_code == 1
        assert says in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert not out.exists()


def test_one_file_for_two_nodes_is_refused(tmp_path: Path, master: Path, keys: Callable[..., Result]) -> None:
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key", "--out", tmp_path / "." / "a.key")
    assert refused.exit_code == 1
    assert "each node needs its own key" in refused.stderr
    assert not (tmp_path / "a.key").exists()


@pytest.mark.parametrize("days", ["0", "-1", "367", "x"])
def test_a_life_that_is_none_or_longer_than_a_year_is_wrong_usage(
    tmp_path: Path, master: Path, keys: Callable[..., Result], days: str
) -> None:
    assert keys("offline", "--master", master, "--out", tmp_path / "a.key", "--days", days).exit_code == 2
    assert not (tmp_path / "a.key").exists()


def test_a_clock_that_cannot_be_right_makes_no_key(
    tmp_path: Path, master: Path, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    refused = keys("offline", "--master", master, "--out", tmp_path / "a.key")
    assert refused.exit_code == 1
    assert "this machine's clock is at 1970-01-01 00:16 UTC: set it" in refused.stderr
    assert not (tmp_path / "a.key").exists()


def test_a_demonstrations_master_makes_keys_that_stay_marked(tmp_path: Path, keys: Callable[..., Result]) -> None:
    save_master_key(tmp_path / "demo.key", new_master_key(demo=True))
    keys("offline", "--master", tmp_path / "demo.key", "--out", tmp_path / "a.key")
    key = load_signing_key(tmp_path / "a.key")
    ends_s = key.can_sign_until_s - 1
    structure = key.sign(ends_s - 900, (MetaLease(new_demo_leaf().hash, 0, ends_s),))
    assert encode(structure)
    assert structure.is_demo
