"""`garlicfarm keys` with a node's control endpoint: key ids as text and as JSON, and never a key."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio
from click.testing import CliRunner, Result

from bridge.api.control_routes import KEYS_REMOVE_CHECK
from bridge.cli.keys import farm_keys as farm_keys_command
from bridge.cli.main import cli
from bridge.node.control.farm_admin import FarmAdmin
from bridge.node.control.routes import Answer, Handlers, Request, Routes
from bridge.node.events.durations import Durations
from bridge.node.events.event_log import EventLog
from bridge.node.founded_farm import CurrentFarm
from bridge.node.membership.user_messages import UserMessages
from bridge.node.security.key_files import load_farm_key
from bridge.node.settings.places import Places
from bridge.wire.keys.farm_key import parse_farm_key
from bridge.wire.keys.text import encode_key
from consensus import Histogram
from gossip.core.keyring import key_id
from tests.effort import each_case
from tests.node.fake_keys import FakeKeys
from tests.node.test_cli_commands import served
from tests.operator_views import farm_view

SERVICE_USER = 65_534


async def nothing() -> str | None:
    return None


async def refused(cluster_id: bytes) -> str | None:
    return f"no member reports cluster {cluster_id.hex()}"


def handlers_of(farm: FakeKeys) -> Handlers:
    """Return the handlers of a node whose key routes are used."""
    trace = EventLog("node-1", lambda: 0)
    admin = FarmAdmin(
        make_view=farm_view,
        encode_view=bytes,
        trace=trace,
        leave=lambda: None,
        withdrawal_refusal=lambda: "nothing to withdraw",
        withdraw=nothing,
        confirm=refused,
        messages=cast("UserMessages", None),
        current_farm=CurrentFarm(),
        stuck=tuple,
        durations=Durations(Histogram()),
        last_verdict=lambda: None,
    )
    return {**admin.handlers, **farm.handlers}


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[FakeKeys]:
    keys = FakeKeys()
    with served(tmp_path / "control.sock", handlers_of(keys)):
        yield keys


@pytest.fixture
def keys(tmp_path: Path, farm: FakeKeys) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        result = CliRunner().invoke(cli, ["keys", *arguments], env={"GARLICFARM_NODE": str(tmp_path)})
        for each in farm.chain.keys:
            for form in (each.key.hex(), encode_key(each.key)):
                assert form not in result.output, "no command prints a key"
        return result

    return call


def primary_of(farm: FakeKeys) -> str:
    return key_id(farm.chain.primary).hex()


def test_ring_is_listed_by_key_ids_with_nodes(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    farm.deaf = {"node-3"}
    farm.absent = ("node-5",)
    installed = json.loads(keys("install", "--json").stdout)["key"]
    shown = keys("list").stdout
    assert f"{primary_of(farm)}  in use     1      3 of 3     3 of 3     -" in shown
    assert f"{installed}  installed  2      2 of 3     0 of 3     node-3" in shown
    assert "members   3 run, 2 have this ring" in shown
    assert "differ    node-3" in shown
    assert "down      node-5" in shown
    assert "/etc/garlicfarm/farm.key, up to date" in shown
    listing = json.loads(keys("list", "--json").stdout)
    assert (listing["schema"], listing["epoch"], listing["primary"], listing["behind"]) == (
        1,
        1,
        primary_of(farm),
        ["node-3"],
    )
    assert {each["keyId"]: (each["state"], each["openedBy"]) for each in listing["keys"]} == {
        primary_of(farm): ("primary", 3),
        installed: ("installed", 2),
    }


def test_rotation_steps_name_the_next_command(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    old = primary_of(farm)
    installed = keys("install").stdout
    new = installed.split()[1]
    assert f"garlicfarm keys use {new}" in installed
    assert "garlicfarm keys remove OLD_KEY" in keys("use", new).stdout
    assert "is removed" in keys("remove", "--yes", old).stdout
    assert farm.steps == ["install", "use", "remove"]
    assert "out of date: `garlicfarm keys export --replace /etc/garlicfarm/farm.key`" in keys("list").stdout


def test_refused_step_exits_with_reason(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    result = keys("use", "00000000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not installed" in result.stderr
    assert keys("remove", "--yes", primary_of(farm)).exit_code == 1
    assert farm.steps == []


def test_refused_removal_does_not_prompt(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    result = keys("remove", "00000000")
    assert (result.exit_code, farm.steps) == (1, [])
    assert "[y/N]" not in result.output
    assert "this key is not installed" in result.stderr
    old = primary_of(farm)
    keys("use", keys("install").stdout.split()[1])
    assert "[y/N]" in keys("remove", old).output
    assert farm.steps == ["install", "use"]


def test_removal_at_earlier_version_waits_for_the_prompt(tmp_path: Path) -> None:
    """A node of an earlier version does not have the route that checks a removal, so the command prompts first."""
    farm = FakeKeys()
    old, handlers = primary_of(farm), {**handlers_of(farm)}
    del handlers[KEYS_REMOVE_CHECK]
    with served(tmp_path / "old.sock", handlers):
        done = CliRunner().invoke(cli, ["keys", "remove", old, "--node", str(tmp_path / "old.sock")], input="n\n")
    assert "[y/N]" in done.output
    assert farm.steps == []


def test_rotate_reports_steps_up_to_key_file(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    old = primary_of(farm)
    result = keys("rotate")
    assert result.exit_code == 0
    assert f"3 members seal with key {primary_of(farm)}, epoch 3" in result.stdout
    assert "garlicfarm keys export FILE" in result.stdout
    assert primary_of(farm) != old
    before = primary_of(farm)
    result = keys("rotate", "--json")
    document = json.loads(result.stdout)
    assert (document["rotated"], document["key"], document["removed"]) == (True, primary_of(farm), [before])
    assert "is created and installed" in result.stderr


def test_stopped_rotation_exits_with_remedy(farm: FakeKeys, keys: Callable[..., Result]) -> None:
    farm.absent = ("node-4",)
    result = keys("rotate")
    assert result.exit_code == 1
    assert "node-4 is down" in result.stderr
    assert farm.steps == []
    assert (
        "Left out: node-4. With the alarm `key-retired`, such a node needs that file."
        in keys("rotate", "--force").stdout
    )


def test_current_key_file_is_exported_for_owner_only(
    tmp_path: Path, farm: FakeKeys, keys: Callable[..., Result]
) -> None:
    path = tmp_path / "farm.key"
    assert keys("export", str(path)).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_farm_key(path) == farm.farm_key
    keys("rotate")
    refused = keys("export", str(path))
    assert refused.exit_code == 1
    assert "exists already" in refused.stderr
    document = json.loads(keys("export", "--replace", "--json", str(path)).stdout)
    label = farm.farm_key.label.hex()
    assert document == {"schema": 1, "file": str(path), "label": label, "epoch": 3, "clusterId": None}
    assert load_farm_key(path).key_ring.primary == farm.chain.primary
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("a shopping list")
    assert keys("export", "--replace", str(path)).exit_code == 1
    assert path.read_text() == "a shopping list"


def test_root_replaces_key_file_of_service_user(
    farm: FakeKeys, keys: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The systemd unit makes its user the owner of the key file. This user must be able to read the new file, too."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        places = Places(root, root / "state", is_service=True)
        places.state_dir.mkdir(mode=0o700)
        assert keys("export", str(places.farm_key)).exit_code == 0
        if os.geteuid() == 0:
            for each in (places.state_dir, places.farm_key):
                os.chown(each, SERVICE_USER, SERVICE_USER)
        owner = places.state_dir.stat()
        monkeypatch.setattr(farm_keys_command, "node_places", lambda: places)
        keys("rotate")
        done = keys("export", "--replace", str(places.farm_key))
        assert done.exit_code == 0, done.output
        status = places.farm_key.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (owner.st_uid, owner.st_gid, 0o600)
        assert parse_farm_key(places.farm_key.read_text()).key_ring.primary == farm.chain.primary


def test_unconfirmed_key_file_is_exported_with_warning(
    tmp_path: Path, farm: FakeKeys, keys: Callable[..., Result]
) -> None:
    path = tmp_path / "farm.key"
    farm.has_leader = False
    assert keys("export", str(path)).exit_code == 1
    assert not path.exists()
    done = keys("export", "--unconfirmed", "--json", str(path))
    assert (done.exit_code, json.loads(done.stdout)["epoch"]) == (0, 1)
    assert "another node may have replaced them" in done.stderr
    assert load_farm_key(path) == farm.farm_key
    farm.has_leader = True
    assert keys("export", "--replace", str(path)).stderr == ""


@each_case("body", [b"", b"{}", b"[]", b'{"key": 7}', b'{"key": "00000000", "forced": true}', b"\xff", b"[" * 5000])
def test_request_without_valid_key_is_refused(body: bytes) -> None:
    farm = FakeKeys()
    routes = Routes(handlers_of(farm))
    answers: list[Answer] = [
        trio.run(routes.answer, Request("POST", f"/v1/keys/{step}", body)) for step in ("use", "remove")
    ]
    assert {answer.status for answer in answers} == {400}
    assert farm.steps == []


def test_key_file_export_by_get_is_refused() -> None:
    answer = trio.run(Routes(handlers_of(FakeKeys())).answer, Request("GET", "/v1/keys/export"))
    assert answer.status == 405
