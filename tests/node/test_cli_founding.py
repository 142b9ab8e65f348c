"""`garlicfarm init` and `join` without a running node: their files, their refusals, and the secrets that they hide."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from bridge.cli.founding import init as init_command
from bridge.cli.founding import join as join_command
from bridge.cli.founding import new_files, starting
from bridge.cli.founding.new_files import configuration_text, merged, own_settings, with_signing_keys
from bridge.cli.founding.token_screen import lifetime_text
from bridge.cli.main import cli
from bridge.cli.router import attaching
from bridge.node.detecting.machine import MachineFiles
from bridge.node.inviting.granting import settings_for
from bridge.node.inviting.invitations import Invitations
from bridge.node.inviting.inviting import create_invitation
from bridge.node.inviting.redeeming import JoinError
from bridge.node.inviting.spare_keys import SpareKeys
from bridge.node.membership.own_name import own_end, remembered_name
from bridge.node.security.key_files import KeyFileError, load_farm_key
from bridge.node.settings.bundle import BundleError, bundle_text, parse_bundle
from bridge.node.settings.configuration import ConfigurationError, load_configuration
from bridge.node.settings.places import Places, default_configuration, has_service, node_places
from bridge.wire.i2p.destination_keys import new_master_key, parse_signing_key, signing_key_text
from bridge.wire.keys.farm_key import new_farm_key
from bridge.wire.keys.invitation import Granted, InviterAddress, RefusalCode, Token, parse_token
from deploy import example_configuration
from gossip.node import NodeIdentity, load_identity
from tests.effort import IS_SOAK, few_of

BIND = ("--bind", "127.0.0.1:17668")
NOW_S = 1_800_000_000
DAY_S = 86_400
CHANGES = frozenset({"os.link", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.chown"})
"""Audit events of changes in a file system."""
KILLED = 99
STEPS_MAX = 80
STRIDE = 1 if IS_SOAK else 4
"""`make test` kills at each fourth change of a file, `make soak` at each one."""

Call = Callable[..., Result]


@pytest.fixture
def garlicfarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command of a user whose home is `tmp_path`, on a machine without a router."""
    monkeypatch.setattr(attaching, "MachineFiles", partial(MachineFiles, tmp_path / "machine"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)

    def call(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin)

    return call


def test_init_writes_files_and_prints_one_line(garlicfarm: Call, tmp_path: Path) -> None:
    done = garlicfarm("init", "--expect", "3", "--name", "site-a", *BIND, "--no-start")
    assert done.exit_code == 0
    [line] = done.stdout.splitlines()
    assert line.startswith("garlicfarm join ")
    token = parse_token(line.split()[-1])
    directory, state_dir = tmp_path / ".config/garlicfarm", tmp_path / ".local/state/garlicfarm"
    assert load_farm_key(directory / "farm.key").expect == 3
    configuration = load_configuration(default_configuration(), try_files=True)
    assert (configuration.name, configuration.state_dir) == ("site-a", state_dir)
    [made] = Invitations(state_dir).all
    assert made.uses_max == 2
    assert [each.host for each in token.places] == ["127.0.0.1"]
    assert "site-a at 127.0.0.1:17668" in done.stderr
    assert {each.name for each in state_dir.iterdir()} == {"invitations", "invitations.json"}


def test_init_of_one_node_does_not_print_token(garlicfarm: Call) -> None:
    done = garlicfarm("init", "--expect", "1", *BIND, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["command"] is None


def test_second_init_does_not_overwrite(garlicfarm: Call, tmp_path: Path) -> None:
    assert garlicfarm("init", *BIND, "--no-start").exit_code == 0
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in (("init", *BIND), ("join", str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16))))):
        refused = garlicfarm(*command)
        assert refused.exit_code == 1
        assert "this machine has a node already, and nothing is overwritten" in refused.stderr
        assert "garlicfarm invite new" in refused.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("command", [("init", *BIND), ("join", "token")])
def test_second_command_does_not_continue_running_one(
    garlicfarm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    refused: list[Result] = []

    def run_other(*_: object, **__: object) -> bool:
        refused.append(garlicfarm(*command, "--no-start"))
        return False

    monkeypatch.setattr(init_command, "offer_router", run_other)
    done = garlicfarm("init", *BIND, "--no-start")
    assert (done.exit_code, [each.exit_code for each in refused]) == (0, [1])
    directory = tmp_path / ".config/garlicfarm"
    assert f"another run of init or join makes the node of {directory}: wait for its end" in refused[0].stderr


PUBLIC = (("--bind", "8.8.8.8:17668"), "gossip.bind")
FOREIGN = (("--bind", "192.168.250.250:17668"), "Cannot assign requested address; give an address of this machine")
NAME = (("--name", "no name", *BIND), "name: 'no name'")


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [("init", *PUBLIC), *((command, *each) for command in ("init", "join") for each in (FOREIGN, NAME))],
)
def test_wrong_option_is_refused_before_files_and_token(
    garlicfarm: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    options: tuple[str, ...],
    reason: str,
) -> None:
    async def redeem(*_: object) -> Granted:
        raise AssertionError("the token is redeemed")

    monkeypatch.setattr(join_command, "redeem", redeem)
    token = (str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16))),) if command == "join" else ()
    refused = garlicfarm(command, *token, *options, "--no-start")
    assert refused.exit_code == 1
    assert reason in refused.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("allow_wan", [True, False])
def test_join_accepts_public_address_if_bundle_does(
    garlicfarm: Call, monkeypatch: pytest.MonkeyPatch, *, allow_wan: bool
) -> None:
    async def redeem(*_: object) -> Granted:
        return Granted(bundle_text(new_farm_key(3), {"gossip": {"allow_wan": allow_wan}}), "site-a", ())

    monkeypatch.setattr(join_command, "redeem", redeem)
    monkeypatch.setattr("bridge.node.settings.network.may_gossip", lambda _: False)
    done = garlicfarm("join", str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16))), *BIND, "--no-start")
    assert (done.exit_code == 0) is allow_wan, done.output
    assert ("gossip.bind" in done.stderr) is not allow_wan
    assert (default_configuration() is not None) is allow_wan


def test_join_of_farm_on_this_machine_uses_free_ports(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    async def redeem(*_: object) -> Granted:
        return Granted(bundle_text(new_farm_key(3), {"gossip": {"seeds": ["127.0.0.1:31370"]}}), "site-a", ())

    monkeypatch.setattr(join_command, "redeem", redeem)
    token = str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16)))
    assert garlicfarm("join", token, "--no-start").exit_code == 0
    configuration = load_configuration(node_places().configuration)
    assert configuration.gossip is not None
    binds = configuration.gossip.bind, configuration.consensus.bind
    assert {each.host for each in binds} == {"127.0.0.1"}
    assert {7668, 7669}.isdisjoint(each.port for each in binds)


def test_join_with_taken_name_of_host_uses_own_name(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()

    async def redeem(_token: Token, _identity: NodeIdentity, name: str) -> Granted:
        names.append(name)
        if name in {"cloned", "named"}:
            raise JoinError("a running node has this name", RefusalCode.NAME_TAKEN)
        return Granted(bundle_text(new_farm_key(3), {}), "site-a", ())

    monkeypatch.setattr(join_command, "redeem", redeem)
    monkeypatch.setattr("socket.gethostname", lambda: "cloned")
    token = str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16)))
    refused = garlicfarm("join", token, *BIND, "--name", "named", "--no-start")
    assert (refused.exit_code, names) == (1, ["named"])
    assert "repeat the command with it (--name)" in refused.stderr
    assert garlicfarm("join", token, *BIND, "--no-start").exit_code == 0
    configuration = load_configuration(node_places().configuration)
    own = own_end("cloned", load_identity(configuration.state_dir).node_id)
    assert names[1:] == ["cloned", own]
    assert remembered_name(configuration).name == own


def test_init_with_wrong_clock_does_not_write(
    garlicfarm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.cli.keys.master.time", SimpleNamespace(time=lambda: 0))
    refused = garlicfarm("init", "--no-start")
    assert refused.exit_code == 1
    assert "the clock of this machine is wrong: set it" in refused.stderr
    assert list(tmp_path.rglob("farm.key")) == []


def test_join_with_altered_token_is_refused_without_file(garlicfarm: Call, tmp_path: Path) -> None:
    token = str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16)))
    for altered in (token[:-1], token.replace("a", "b", 1), "x"):
        refused = garlicfarm("join", altered)
        assert refused.exit_code == 1
        assert "copy the whole token again" in refused.stderr
        assert altered not in refused.stderr
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("arguments", [("--token-file", "-"), ()])
def test_token_is_read_from_standard_input(garlicfarm: Call, arguments: tuple[str, ...]) -> None:
    token = str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16)))
    refused = garlicfarm("join", *arguments, stdin=f"{token}\n")
    assert refused.exit_code == 1
    assert "127.0.0.1:9: Connection refused" in refused.stderr
    assert "garlicfarm invite list" in refused.stderr
    assert token not in refused.output


def test_public_token_file_is_refused(garlicfarm: Call, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16))))
    path.chmod(0o644)
    assert "chmod 600" in garlicfarm("join", "--token-file", str(path)).stderr
    path.chmod(0o600)
    assert "Connection refused" in garlicfarm("join", "--token-file", str(path)).stderr
    assert "give the token once" in garlicfarm("join", "x", "--token-file", str(path)).stderr


def test_package_places_belong_to_root_alone(tmp_path: Path) -> None:
    unit = tmp_path / "lib/systemd/system/garlicfarm.service"
    unit.parent.mkdir(parents=True)
    home = {"XDG_CONFIG_HOME": str(tmp_path / "c"), "XDG_STATE_HOME": str(tmp_path / "s")}
    own = Places(tmp_path / "c/garlicfarm", tmp_path / "s/garlicfarm")
    assert node_places(home, tmp_path, 0) == own
    unit.touch()
    assert node_places(home, tmp_path, 1000) == own
    assert has_service(tmp_path)
    service = Places(tmp_path / "etc/garlicfarm", tmp_path / "var/lib/garlicfarm", is_service=True)
    assert node_places(home, tmp_path, 0) == service


def killed(run: Callable[[], object], step: int) -> bool:
    """Run in a child process that exits at its next change of a file after `step` changes; return True if it did."""
    child = os.fork()
    if not child:
        changes = iter(range(step))

        def count(event: str, arguments: tuple[object, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (event in CHANGES or writes) and next(changes, None) is None:
                os._exit(KILLED)

        try:
            sys.addaudithook(count)
            run()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


PLACES = {each: each for each in ("user", "service")}


@pytest.fixture(params=list(PLACES))
def places(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places(tmp_path / "etc", tmp_path / "state", is_service=request.param == "service")
    for module in (init_command, join_command):
        monkeypatch.setattr(module, "node_places", lambda: made)
    return made


def start_again(places: Places) -> None:
    """Make the files of a machine without a node."""
    for each in (places.directory, places.state_dir):
        shutil.rmtree(each, ignore_errors=True)
    if places.is_service:
        places.directory.mkdir()
        places.configuration.write_text(f'# own text\nstate_dir = "{places.state_dir}"\nfarm_key = "farm.key"\n')


@pytest.mark.search
@pytest.mark.parametrize("places", few_of(PLACES, "service"), indirect=True)
def test_join_is_repeated_after_kill_at_each_step(
    places: Places, garlicfarm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, farm_key = new_master_key(), new_farm_key(3)
    settings = {"master": [{"destination": key.destination.base64, "publish": "auto"}]}
    bundle = bundle_text(farm_key, {**settings, "gossip": {"capacity": 7}})
    granted = Granted(bundle, "site-a", (signing_key_text(key.sign_transient(NOW_S, DAY_S)),))
    identities = tmp_path / "identities"

    async def redeem(_: Token, identity: NodeIdentity, name: str) -> Granted:
        assert (name, places.farm_key.exists()) == ("site-b", False), "a token may expire before the repetition"
        with identities.open("a") as file:
            file.write(f"{identity.node_id.hex()}\n")
        return granted

    monkeypatch.setattr(join_command, "redeem", redeem)
    token = str(Token((InviterAddress("127.0.0.1", 1),), bytes(32), bytes(16)))
    command = ("join", token, "--name", "site-b", *BIND, "--no-start")
    for step in range(0, STEPS_MAX, STRIDE):
        start_again(places)
        identities.write_text("")
        if not killed(lambda: garlicfarm(*command), step):
            break
        done = garlicfarm(*command)
        assert done.exit_code == 0, (step, done.output)
        assert not (places.directory / new_files.MARKER).exists()
        assert load_farm_key(places.farm_key) == farm_key
        assert len(set(identities.read_text().split())) == 1, "the inviting node approves one identity"
        configuration = load_configuration(places.configuration, try_files=True)
        assert (configuration.name, len(configuration.masters)) == ("site-b", 1)
        assert ("# own text" in places.configuration.read_text()) is places.is_service
    else:
        pytest.fail("it has more steps than expected")
    assert step > 5


@pytest.mark.search
@pytest.mark.parametrize("places", few_of(PLACES, "user"), indirect=True)
def test_init_is_repeated_after_kill_at_each_step(places: Places, garlicfarm: Call) -> None:
    command = ("init", "--name", "site-a", *BIND, "--no-start")
    for step in range(0, STEPS_MAX, STRIDE):
        start_again(places)
        if not killed(lambda: garlicfarm(*command), step):
            break
        done = garlicfarm(*command)
        assert done.exit_code == 0, (step, done.output)
        assert done.stdout.startswith("garlicfarm join ")
        assert not (places.directory / new_files.MARKER).exists()
        assert load_farm_key(places.farm_key).expect == 3
        assert load_configuration(places.configuration, try_files=True).name == "site-a"
        assert Invitations(places.state_dir).open_uses == 2
    else:
        pytest.fail("it has more steps than expected")
    assert step > 5


@pytest.mark.parametrize("other", [("--expect", "5"), ("--name", "site-b"), ("--bind", "127.0.0.1:17669")])
def test_continued_init_refuses_other_settings(places: Places, garlicfarm: Call, other: tuple[str, str]) -> None:
    command = ("init", "--name", "site-a", *BIND, "--no-start")
    start_again(places)
    assert garlicfarm(*command).exit_code == 0
    before = places.configuration.read_text()
    (places.directory / new_files.MARKER).write_text("init\n")
    refused = garlicfarm(*command, *other)
    assert refused.exit_code == 1
    assert f"an earlier `garlicfarm init` has written {other[0]}" in refused.stderr
    remedy = f"remove {places.farm_key}" if other[0] == "--expect" else f"change {places.configuration}"
    assert f"repeat it with that, or {remedy} first" in refused.stderr
    assert "nothing is overwritten" in garlicfarm("join", "x").stderr
    assert places.configuration.read_text() == before
    assert garlicfarm(*command).exit_code == 0


def test_foreign_configuration_without_key_is_kept(garlicfarm: Call, tmp_path: Path) -> None:
    path = tmp_path / ".config/garlicfarm/node.toml"
    path.parent.mkdir(parents=True)
    state_dir = tmp_path / ".local/state/garlicfarm"
    for text in ('farm_key = "other.key"\n', f'farm_key = "farm.key"\nstate_dir = "{state_dir}"\nname = "other"\n'):
        path.write_text(text)
        refused = garlicfarm("init", *BIND, "--no-start")
        assert refused.exit_code == 1
        assert "nothing is overwritten" in refused.stderr
        assert [each.read_text() for each in path.parent.iterdir()] == [text]


def test_user_next_to_package_is_directed_to_sudo(garlicfarm: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for has_package in (False, True):
        monkeypatch.setattr(new_files, "has_service", lambda has=has_package: has)
        for command in (("init", "--bind", "8.8.8.8:1"), ("join", "x")):
            done = garlicfarm(*command)
            assert (f"with `sudo`, {command[0]} uses the service" in done.stderr) is has_package


def test_unreadable_directory_is_reported(garlicfarm: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> bool:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(new_files, "answers", closed)
    for command in (("init", *BIND), ("join", "x")):
        refused = garlicfarm(*command)
        assert refused.exit_code == 1
        assert f"{tmp_path}: Permission denied" in refused.stderr


def test_printed_command_is_accepted_as_token(garlicfarm: Call) -> None:
    token = str(Token((InviterAddress("127.0.0.1", 9),), bytes(32), bytes(16)))
    refused = garlicfarm("join", "--token-file", "-", stdin=f"garlicfarm join {token}\n")
    assert "127.0.0.1:9: Connection refused" in refused.stderr


def test_service_name_is_not_set_twice(tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path / "state", is_service=True)
    places.configuration.write_text('name = "site-b"\n')
    text = configuration_text(places, own_settings("site-b", None))
    assert text == 'name = "site-b"\n'
    with pytest.raises(ConfigurationError, match="it sets name to another value"):
        configuration_text(places, own_settings("site-c", None))


def test_package_configuration_keeps_its_comments(tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path / "state", is_service=True)
    before = example_configuration.text()
    places.configuration.write_text(before)
    shared = {"gossip": {"seeds": ["192.168.7.5:7668"]}, "master": [{"destination": master(), "publish": "auto"}]}
    text = configuration_text(places, merged(own_settings("site-b", "127.0.0.1:17668"), shared))
    places.configuration.write_text(text)
    assert {line for line in before.splitlines() if line.startswith("# ")} <= set(text.splitlines())
    configuration = load_configuration(places.configuration)
    assert configuration.name == "site-b"
    assert configuration.gossip is not None
    assert configuration.gossip.seeds == ("192.168.7.5:7668",)
    assert str(configuration.state_dir) == example_configuration.STATE_DIRECTORY
    assert len(configuration.masters) == 1


def master() -> str:
    return new_master_key().destination.base64


def test_bundle_has_differing_settings_and_masters(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        'name = "site-a"\nfarm_key = "farm.key"\n[gossip]\nbind = "127.0.0.1:1"\ncapacity = 7\n'
        '[router]\nkind = "i2cp"\n'
    )
    destination = master()
    settings = settings_for(load_configuration(tmp_path / "node.toml"), [destination])
    assert settings["gossip"] == {"capacity": 7}
    assert settings["master"] == [{"destination": destination, "publish": "auto"}]
    assert "router" not in settings
    assert "name" not in settings
    parse_bundle(bundle_text(new_farm_key(3), settings))


def test_spare_key_is_assigned_to_one_identity(tmp_path: Path) -> None:
    spare, key = SpareKeys(tmp_path), new_master_key()
    one, other = bytes(8), bytes([1]) * 8
    spare.add([key.sign_transient(NOW_S, DAY_S), key.sign_transient(NOW_S, DAY_S)])
    own = key.destination.base64
    [first] = spare.assign(one, [own])
    assert spare.assign(one, [own]) == (first,)
    [second] = spare.assign(other, [own])
    assert parse_signing_key(first).private_key != parse_signing_key(second).private_key
    assert spare.assign(bytes([2]) * 8, [own]) == ()
    spare.forget_assigned()
    assert list(spare.directory.iterdir()) == []


def test_spare_key_of_other_master_is_kept(tmp_path: Path) -> None:
    spare, key = SpareKeys(tmp_path), new_master_key()
    assert spare.assign(bytes(8), [master()]) == ()
    spare.add([key.sign_transient(NOW_S, DAY_S)])
    assert spare.assign(bytes(8), [master()]) == ()
    assert len(spare.free()) == 1
    with pytest.raises(KeyFileError, match="more than 64"):
        spare.add([key.sign_transient(NOW_S, DAY_S)] * 64)


def test_signing_key_replaces_destination_of_its_master(tmp_path: Path) -> None:
    key = new_master_key()
    settings = {"master": [{"destination": key.destination.base64, "publish": "auto"}, {"destination": master()}]}
    made, files = with_signing_keys(tmp_path, settings, [key.sign_transient(NOW_S, DAY_S)])
    [path] = files
    assert made["master"][0] == {"publish": "auto", "signing_key": path.name}
    assert "signing_key" not in made["master"][1]
    assert settings["master"][0]["destination"] == key.destination.base64
    with pytest.raises(BundleError):
        with_signing_keys(tmp_path, {}, [key.sign_transient(NOW_S, DAY_S)])


def test_invitations_of_one_node_share_port(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(
        f'farm_key = "farm.key"\nstate_dir = "{tmp_path}"\n[gossip]\nbind = "127.0.0.1:1"\n'
    )
    configuration, invitations = load_configuration(tmp_path / "node.toml"), Invitations(tmp_path)
    _, token = create_invitation(configuration, invitations, 1, 60)
    _, later = create_invitation(configuration, invitations, 1, 60)
    assert token.places == later.places
    assert token.places[0].port == invitations.port
    assert token.secret != later.secret


def test_service_is_enabled_and_failure_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = tmp_path / "calls"
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(starting, "SYSTEMD_RUNS", tmp_path)
    places = Places(tmp_path, tmp_path, is_service=True)
    starting.start_node(places)
    assert calls.read_text() == "enable --now garlicfarm.service\n"
    systemctl.write_text("#!/bin/sh\necho no unit >&2\nexit 5\n")
    with pytest.raises(SystemExit):
        starting.start_node(places)
    assert "no unit" in capsys.readouterr().err
    monkeypatch.setattr(starting, "SYSTEMD_RUNS", tmp_path / "missing")
    starting.start_node(places)
    assert "systemd does not run here" in capsys.readouterr().out


def test_running_node_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "answers", lambda _: True)
    with pytest.raises(SystemExit):
        new_files.is_continued(Places(tmp_path, tmp_path), "init")


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "1 minute"), (3600, "1 hour"), (5400, "90 minutes"), (172_800, "2 days")]
)
def test_lifetime_is_shown_in_largest_unit(seconds: int, text: str) -> None:
    assert lifetime_text(seconds) == text
