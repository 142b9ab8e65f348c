"""`garlicfarm link`: the link of a master, the directories in it, the QR code, and the reasons without a link."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import segno
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.api.view import DirectoryView, FarmView
from bridge.cli import link as command
from bridge.cli.founding import token_screen
from bridge.cli.link import BORDER, link_of, qr_lines
from bridge.cli.main import cli
from bridge.wire.i2p.farm_link import DIRECTORIES_LIMIT, parse_link
from bridge.wire.i2p.structures import address_of, hash_of_address
from bridge.wire.keys.invitation import InviterAddress, Token
from tests.node.test_cli_commands import Node, served
from tests.operator_views import farm_view

VIEW = farm_view(servers=3)
[MASTER] = [each.master for each in VIEW.publishing]
OTHER_MASTER = address_of(b"m" * 32)
PROBLEM = "nothing replies at 127.0.0.1:7656"


def address(number: int) -> str:
    return address_of(bytes([number]) * 32)


def view_with(*directories: DirectoryView | None, own: DirectoryView | None = None) -> FarmView:
    """Return the view of node 1 in a farm whose servers report these directories."""
    made = farm_view(servers=len(directories))
    reports = tuple(
        replace(made.reports[0], raft_id=number, name=f"node-{number}", directory=directory)
        for number, directory in enumerate(directories, 1)
    )
    voters = tuple(replace(made.raft.voters[0], raft_id=each.raft_id, name=each.name) for each in reports)
    raft = replace(made.raft, voters=voters, learners=())
    return replace(made, reports=reports, raft=raft, node=replace(made.node, directory=own))


def serving(number: int) -> DirectoryView:
    return DirectoryView(address(number), None)


def numbers_in(link: str) -> list[int]:
    return [each[0] for each in parse_link(link).directories]


@pytest.fixture
def garlicfarm(tmp_path: Path) -> Callable[..., Result]:
    def call(view: FarmView, *arguments: str) -> Result:
        node = Node()

        async def shown() -> FarmView:
            return view

        node.view = shown  # type: ignore[method-assign]  # the view of this story
        with served(tmp_path / "control.sock", node):
            return CliRunner().invoke(cli, ["link", *arguments], env={"GARLICFARM_NODE": str(tmp_path)})

    return call


def test_link_names_directories_of_all_nodes() -> None:
    made = link_of(view_with(serving(1), serving(2), serving(3)), None)
    assert made.address == MASTER
    assert parse_link(made.link).address == MASTER
    assert numbers_in(made.link) == [1, 2, 3]
    assert [(each.server, each.address, each.problem) for each in made.directories] == [
        (f"node-{number}", address(number), None) for number in (1, 2, 3)
    ]


def test_serving_directories_come_first() -> None:
    broken, unopened = DirectoryView(address(1), PROBLEM), DirectoryView(None, PROBLEM)
    made = link_of(view_with(broken, unopened, serving(3)), None)
    assert numbers_in(made.link) == [3, 1]
    assert [each.server for each in made.directories] == ["node-3", "node-1", "node-2"]


def test_directory_of_queried_node_is_its_present_one() -> None:
    made = link_of(view_with(None, serving(2), own=serving(1)), None)
    assert numbers_in(made.link) == [1, 2]


def test_link_has_at_most_sixteen_directories() -> None:
    made = link_of(view_with(*(serving(number) for number in range(1, 21))), None)
    assert numbers_in(made.link) == list(range(1, DIRECTORIES_LIMIT + 1))
    assert len(made.directories) == 20


def test_directory_reported_by_two_servers_is_in_link_once() -> None:
    assert numbers_in(link_of(view_with(serving(1), serving(1)), None).link) == [1]


def test_link_without_terminal_is_printed_alone(garlicfarm: Callable[..., Result]) -> None:
    view = view_with(serving(1), None)
    assert garlicfarm(view).stdout == f"{link_of(view, None).link}\n"


def test_link_on_terminal_has_link_first(garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "is_terminal", lambda: True)
    view = view_with(serving(1), None, DirectoryView(address(3), PROBLEM))
    result = garlicfarm(view, "--no-qr")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == link_of(view, None).link
    assert f"node-1     {address(1)} returns structures to clients" in lines
    assert f"node-3     {address(3)}, does not serve: {PROBLEM}" in lines
    assert any(line.startswith("node-2     no directory: it does not use a SAM bridge") for line in lines)
    assert lines[-1] == "users run  garlicfarm connect 'LINK' --listen 127.0.0.1:8080"
    assert "\N{FULL BLOCK}" not in result.stdout


def test_link_as_json_has_documented_keys(garlicfarm: Callable[..., Result]) -> None:
    found = json.loads(garlicfarm(view_with(serving(1), None), "--json").stdout)
    assert found["link"] == f"garlicfarm:{MASTER[:52]}?at={address(1)[:52]}"
    assert found["address"] == MASTER
    assert found["directories"][0] == {"server": "node-1", "address": address(1), "problem": None}
    assert list(found) == ["schema", "address", "link", "directories"]


def test_link_without_directories_names_reason_of_each_node(garlicfarm: Callable[..., Result]) -> None:
    view = view_with(DirectoryView(None, PROBLEM), None)
    view = replace(view, raft=replace(view.raft, learners=(replace(view.raft.voters[0], raft_id=9, name="node-9"),)))
    result = garlicfarm(view)
    assert result.exit_code == 1
    assert result.stdout == ""
    first, *reasons = result.stderr.splitlines()
    assert first.startswith("garlicfarm: no node has a directory yet")
    assert reasons == [f"  node-1: {PROBLEM}", f"  node-2: {command.NO_SAM}", f"  node-9: {command.NO_REPORT}"]


@pytest.mark.parametrize("master", [MASTER, MASTER[:52], MASTER.upper()])
def test_master_is_named_in_any_form(garlicfarm: Callable[..., Result], master: str) -> None:
    assert garlicfarm(view_with(serving(1)), "--master", master, "--no-qr").exit_code == 0


def test_unknown_master_is_refused_with_published_ones(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm(view_with(serving(1)), "--master", OTHER_MASTER)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"garlicfarm: the farm does not publish {OTHER_MASTER}; name one of these with --master:",
        f"  {MASTER}",
    ]


def test_link_of_several_masters_requires_name(garlicfarm: Callable[..., Result]) -> None:
    view = view_with(serving(1))
    view = replace(view, publishing=(*view.publishing, replace(view.publishing[0], master=OTHER_MASTER)))
    assert "the farm publishes several masters" in garlicfarm(view).stderr
    assert garlicfarm(view, "--master", OTHER_MASTER).stdout.startswith(f"garlicfarm:{OTHER_MASTER[:52]}?")


def test_farm_without_masters_is_refused(garlicfarm: Callable[..., Result]) -> None:
    result = garlicfarm(replace(view_with(serving(1)), publishing=()))
    assert "does not publish a master yet" in result.stderr


def test_stopped_node_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["link"], env={"GARLICFARM_NODE": str(tmp_path)})
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("directories", [1, 3, 16])
def test_qr_code_has_modules_of_link(directories: int) -> None:
    link = link_of(view_with(*(serving(number) for number in range(1, directories + 1))), None).link
    lines = qr_lines(link)
    upper, lower = set("\N{FULL BLOCK}\N{UPPER HALF BLOCK}"), set("\N{FULL BLOCK}\N{LOWER HALF BLOCK}")
    modules = [[letter in half for letter in line] for line in lines for half in (upper, lower)]
    expected = [[bool(each) for each in row] for row in segno.make(link, error="l", micro=False).matrix]
    size = len(expected)
    assert [row[BORDER : BORDER + size] for row in modules[BORDER : BORDER + size]] == expected
    assert sum(map(sum, modules)) == sum(map(sum, expected)), "the border is white"
    assert {len(line) for line in lines} == {size + 2 * BORDER}


@pytest.mark.parametrize(
    ("columns", "note"),
    [
        (200, None),
        (80, "The QR code has 6 of the 16 directories"),
        (60, "The QR code has 2 of the 16 directories"),
        (40, "The terminal is too narrow for a QR code: it has 40 columns, and 49 are necessary."),
    ],
)
def test_qr_code_has_directories_that_fit(capsys: pytest.CaptureFixture[str], columns: int, note: str | None) -> None:
    whole = parse_link(link_of(view_with(*(serving(number) for number in range(1, 17))), None).link)
    command._print_qr_code(whole, columns)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines[:-1])
    if note is None:
        assert lines == qr_lines(str(whole))
    else:
        assert lines[-1].startswith(note)


@pytest.mark.parametrize(
    ("columns", "qr", "is_drawn"), [(80, True, True), (80, False, False), (40, True, False)], ids=["80", "no-qr", "40"]
)
def test_token_has_qr_code_if_terminal_is_wide_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *, qr: bool, is_drawn: bool
) -> None:
    token = Token((InviterAddress("192.168.1.5", 7671),), b"f" * 32, b"s" * 16)
    monkeypatch.setattr(token_screen, "is_terminal", lambda: True)
    monkeypatch.setattr(token_screen, "terminal_columns", lambda: columns)
    token_screen.print_token(token, 2, 3600, qr=qr)
    head, empty, text, second_empty, *drawn, last = capsys.readouterr().out.splitlines()
    assert (head, empty, second_empty) == ("On each of 2 other machines, within 1 hour:", "", "")
    assert text == f"garlicfarm join {token}"
    assert last.startswith("The token is secret")
    assert drawn == (qr_lines(text) if is_drawn else [])


def test_links_of_fictional_farm_are_valid() -> None:
    assert VIEW.node.directory is not None
    assert hash_of_address(VIEW.node.directory.address or "")
