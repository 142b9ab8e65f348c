"""The list of farms for `garlicfarm top`, and the farms that --farm names."""

import os
import pwd
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.cli.events.farm_list import FARMS_MAX, FarmListError, ListedFarm, chosen_farms, decode_list, default_list
from bridge.cli.node_queries import find_control_socket
from bridge.node.control.client import ControlError
from bridge.node.control.connections.node_address import RemoteNode
from bridge.node.security.local_trust import with_home
from bridge.node.settings.places import node_places
from tests.effort import each_case

LIST = """
[mill]
nodes = ["mill/control.sock"]

[harbor]
nodes = ["https://192.168.7.5:7650", "https://192.168.7.6"]
token_files = ["5.token", "6.token"]
"""


def written(tmp_path: Path, text: str = LIST) -> Path:
    """Return a list of farms, with its tokens."""
    (tmp_path / "5.token").write_text("five\n")
    (tmp_path / "6.token").write_text("six\n")
    (tmp_path / "mill").mkdir(exist_ok=True)
    (tmp_path / "mill" / "control.sock").touch()
    path = tmp_path / "farms.toml"
    path.write_text(text)
    return path


def test_list_has_nodes_with_their_tokens(tmp_path: Path) -> None:
    farms = chosen_farms((), written(tmp_path))
    assert list(farms) == ["mill", "harbor"]
    assert farms["mill"]() == (tmp_path / "mill" / "control.sock",)
    tokens = [each.token for each in farms["harbor"]() if isinstance(each, RemoteNode)]
    assert tokens == ["five", "six"]


def test_chosen_farms_keep_order_of_names_and_addresses(tmp_path: Path) -> None:
    socket = str(tmp_path / "mill" / "control.sock")
    farms = chosen_farms(("harbor", socket), written(tmp_path))
    assert list(farms) == ["harbor", socket]
    assert farms[socket]() == (Path(socket),)


def test_address_of_directory_finds_only_nodes_inside_it(tmp_path: Path) -> None:
    for name in ("a/node-1", "a/node-2", "b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "control.sock").touch()
    whole, single = str(tmp_path / "a"), str(tmp_path / "a" / "node-2")
    farms = chosen_farms((whole, single), None)
    assert [each.parent.name for each in farms[whole]() if isinstance(each, Path)] == ["node-1", "node-2"]
    assert [each.parent.name for each in farms[single]() if isinstance(each, Path)] == ["node-2"]


@each_case(
    ("text", "fault"),
    [
        ("[mill", "Expected ']'"),
        ("mill = 3", "Expected `object`"),
        ("[mill]\nnodes = []", "length >= 1"),
        ("[mill]\nnode = ['x']", "unknown field `node`"),
        ("", "0 farms"),
        ("[mill]\nnodes = ['https://h']\ntoken_files = ['a', 'b']", "mill.token_files has 2 files for 1 URLs"),
        ("[mill]\nnodes = ['https://h']", "mill: https://h needs a token"),
        ("[mill]\nnodes = ['https://h']\ntoken_files = ['gone']", "gone cannot be read"),
    ],
)
def test_wrong_list_is_refused_with_its_path(tmp_path: Path, text: str, fault: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FarmListError, match=r"farms\.toml") as refused:
        chosen_farms((), path)
    assert fault in str(refused.value)


def test_too_many_farms_are_refused() -> None:
    text = "".join(f"[f{at}]\nnodes = ['x']\n" for at in range(FARMS_MAX + 1))
    with pytest.raises(FarmListError, match="65 farms"):
        decode_list(text.encode())


@given(st.binary(max_size=200))
def test_list_decoder_returns_list_or_one_error(content: bytes) -> None:
    try:
        farms = decode_list(content)
    except FarmListError:
        return
    assert all(isinstance(each, ListedFarm) for each in farms.values())


def test_unknown_name_lists_known_farms(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(FarmListError, match=f"^harbour is neither .*: {re.escape(str(path))} has mill, harbor$"):
        chosen_farms(("harbour",), path)


def test_missing_list_is_named_with_its_path_if_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path, given = tmp_path / "garlicfarm" / "farms.toml", tmp_path / "none.toml"
    assert default_list() == path
    with pytest.raises(FarmListError, match=f"the list {re.escape(str(path))} does not exist"):
        chosen_farms(("mill",), None)
    with pytest.raises(FarmListError, match=f"^{re.escape(str(given))} cannot be read"):
        chosen_farms((), given)
    with pytest.raises(ControlError, match="needs a token"):
        chosen_farms(("https://192.168.7.5",), None)


def test_path_of_unknown_user_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="the home of ~missing-user is unknown"):
        find_control_socket("~missing-user/state")
    for text in ('nodes = ["~missing-user/state"]', 'nodes = ["https://a:1"]\ntoken_files = ["~missing-user/token"]'):
        with pytest.raises(FarmListError, match="mill: the home of ~missing-user is unknown"):
            chosen_farms(("mill",), written(tmp_path, f"[mill]\n{text}\n"))


@pytest.mark.parametrize("home", ["", "relative"])
def test_home_of_account_replaces_relative_home(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a relative path, `init` would write keys below the working directory, where `run` does not find them."""
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", "relative")
    monkeypatch.setenv("HOME", home)
    account = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert default_list() == account / ".config/garlicfarm/farms.toml"
    places = node_places(user_id=1000)
    assert (places.directory, places.state_dir) == (account / ".config/garlicfarm", account / ".local/state/garlicfarm")
    assert [with_home(each) for each in ("~", "~/farm.key", "./~", "farm.key")] == [
        account,
        account / "farm.key",
        Path("./~"),
        Path("farm.key"),
    ]
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(ValueError, match="the home of ~ is unknown"):
        with_home("~/farm.key")
    assert default_list() == Path("/.config/garlicfarm/farms.toml"), "a user without an account"
