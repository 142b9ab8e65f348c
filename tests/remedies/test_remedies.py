"""Commands that the product advises: the command line accepts each of them, and a test runs them.

all advised commands                parse with the real command line and the named options
errors, alarms and verdicts         have a case (`cases.py`): the command is run here, or in the test of the case.
                                    Commands that do not act on a farm (`APART`) do not need a case
advice after a loss                 the farm does not refuse an advised removal
advice about key files              the advised commands end the alarm
"""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.api.alarms import SIGNING_KEY
from bridge.api.verdict import verdict_of
from bridge.api.view import FarmView
from bridge.cli.main import cli
from bridge.core.formation.formation import Formation, FormationTuning
from bridge.core.formation.founding import FormationNotice, FormationState
from bridge.core.formation.member import FarmMember, MemberStatus
from bridge.core.formation.messages import (
    Advertise,
    DeadlineReached,
    Event,
    FormationRefused,
    MembersChanged,
    Persist,
    Persisted,
    Started,
    WithdrawRequested,
)
from bridge.node.control.operator_commands import is_voter_kept
from bridge.node.events.alarms import Alarms, SharedAlarm
from bridge.node.events.event_log import EventLog
from bridge.node.raft.submitting import entry_refusal
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import save_farm_key, save_master_key, save_signing_key
from bridge.node.security.signing_keys import PublishingKey, judge_key
from bridge.node.settings.configuration import load_configuration
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.keys.farm_key import new_farm_key
from tests.effort import each_case
from tests.members import farm_member
from tests.node.test_cli_commands import Node, served
from tests.operator_views import farm_view
from tests.remedies.cases import APART, CASES, GUIDE, READS
from tests.remedies.collect import ROOT, Remedy, in_guide, in_guides, in_module, in_sources
from tests.remedies.parsing import fault_of, found_command
from tests.remedies.typing import fault_of_case, words_typed

NEW_KEY = bytes(range(32))


@cache
def advised() -> tuple[Remedy, ...]:
    return tuple(dict.fromkeys(in_sources()))


@cache
def guides() -> tuple[Remedy, ...]:
    return tuple(dict.fromkeys(in_guides()))


def key_of(remedy: Remedy) -> str:
    """Return the command without values: its path and its options."""
    _, rest, path = found_command(remedy.words)
    options = sorted({each for each in rest if each.startswith("--")})
    return " ".join([path, *options])


def remedies_without_case(remedies: tuple[Remedy, ...]) -> list[str]:
    own = [each for each in remedies if each.words and each.words[0] not in APART and not each.words[0].startswith("-")]
    return [f"{each.place}: `{each.command}` ({key_of(each)})" for each in own if key_of(each) not in CASES]


# -- all advised commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remedies", [advised, guides])
def test_advised_command_parses(
    remedies: Callable[[], tuple[Remedy, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("3").touch()  # the value of a placeholder for an existing file
    assert len(remedies()) > 50
    assert [fault for each in remedies() if (fault := fault_of(each)) is not None] == []


def test_advised_command_has_case() -> None:
    assert remedies_without_case(advised()) == []


@each_case("key", [key for key, case in CASES.items() if case not in {READS, GUIDE}])
def test_case_test_runs_its_command(key: str) -> None:
    """The test exists, and its source contains each word of the command."""
    assert fault_of_case(key, CASES[key]) is None


@pytest.fixture
def garlicfarm(tmp_path: Path) -> Iterator[Callable[..., Result]]:
    """Return a function that runs the command line with a fabricated node, and answers `y` to each question."""
    node = Node()
    node.cluster_id = "00" * 16

    def call(*words: str) -> Result:
        return CliRunner().invoke(cli, list(words), input="y\n", env={"GARLICFARM_NODE": str(tmp_path)})

    call.node = node  # type: ignore[attr-defined]
    with served(tmp_path / "control.sock", node):
        yield call


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case is READS])
def test_reading_remedy_succeeds(key: str, garlicfarm: Callable[..., Result]) -> None:
    words = [word for each in key.split() for word in ([each, "published"] if each == "--kind" else [each])]
    result = garlicfarm(*words)
    assert result.exit_code in ({0, 3, 4} if key.startswith("status") else {0}), result.output


def test_advised_help_pages_exist() -> None:
    pages = {each.words for each in (*advised(), *guides()) if each.words[:1] == ("help",)}
    assert len(pages) > 15
    for words in pages:
        result = CliRunner().invoke(cli, [re.sub("^VALUE$", "verdicts", word) for word in words])
        assert result.exit_code == 0, result.output


# -- planted faults are found ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('x = "sign a new one: `garlicfarm keys transient`"', "has no command"),
        ('x = f"start it: `garlicfarm run --confg {path}`"', "No such option"),
        ('x = "out with it: `garlicfarm servers remove --yes`"', "Missing argument"),
        ('x = "see `garlicfarm help`" "; then `garlicfarm node aprove ID`"', "has no command"),
        ('COMMAND = "garlicfarm withdrow"\nx = f"run `{COMMAND}` here"', "has no command"),
        ('BEGIN: Final = "garlicfarm node"\nx = f"run `{BEGIN} aprove {node}`"', "has no command"),
    ],
    ids=["command", "option", "argument", "second-string", "constant", "first-words"],
)
def test_planted_invalid_command_is_found(source: str, message: str) -> None:
    faults = [fault for each in in_module(source, "planted.py") if (fault := fault_of(each)) is not None]
    assert len(faults) == 1
    assert message in faults[0]


@each_case(
    "case",
    [
        "tests/node/test_cli_keys.py",
        "tests/node/test_gone.py::test_rotate_reports_steps_up_to_key_file",
        "tests/node/test_cli_keys.py::test_gone",
        "tests/node/test_cli_keys.py::keys",
        "tests/node/test_cli_keys.py::test_ring_is_listed_by_key_ids_with_nodes",
        "tests/node/test_rotation_command.py::test_rotation_installs_uses_and_removes_with_progress",
    ],
    ids=["file", "no-file", "no-test", "fixture", "another-test", "another-way"],
)
def test_case_naming_wrong_test_is_found(case: str) -> None:
    assert fault_of_case("keys rotate", CASES["keys rotate"]) is None
    assert fault_of_case("keys rotate", case) is not None


@each_case(
    ("source", "is_typed"),
    [
        ('def test_a():\n    call("keys", "rotate")', True),
        ('def test_a(typed):\n    pass\ndef typed():\n    call("keys rotate")', True),
        ("def test_a():\n    invoke(cli)\n    CliRunner().invoke(rotate, ['keys'])", True),
        ('def test_a():\n    pass\ndef test_b():\n    call("keys", "rotate")', False),
        ('def test_a():\n    """Calls keys rotate."""\n    # keys rotate', False),
        ('def test_a():\n    assert "garlicfarm keys rotate" in text', False),
        ("", False),
    ],
    ids=["own", "fixture", "invoked", "another", "described", "looked-for", "empty"],
)
def test_words_typed_come_only_from_named_test(source: str, *, is_typed: bool) -> None:
    assert ({"keys", "rotate"} <= words_typed(source, "test_a")) is is_typed


def test_planted_line_of_guide_is_found() -> None:
    [remedy] = in_guide("Text:\n\n    garlicfarm keys exprt FILE      the key\n", "planted.md")
    assert "has no command" in (fault_of(remedy) or "")


def test_remedy_without_case_is_found() -> None:
    [remedy] = in_module('x = "do `garlicfarm publish include LEAF`"', "planted.py")
    assert fault_of(remedy) is None
    assert remedies_without_case((remedy,)) == ["planted.py:1: `garlicfarm publish include LEAF` (publish include)"]


# -- after a loss ------------------------------------------------------------------------------------------------------


def after_a_loss(expect: int, voters: int, down: tuple[int, ...]) -> FarmView:
    view = farm_view()
    raft = replace(
        view.raft,
        voters=view.raft.voters[:voters],
        learners=(),
        majorities=(tuple(range(1, voters + 1)),),
        followers=tuple(each for each in view.raft.followers if each.raft_id not in down and each.raft_id <= voters),
    )
    members = tuple(
        replace(each, status=MemberStatus.DEAD if each.raft_id in down else MemberStatus.ALIVE)
        for each in view.members[:voters]
    )
    return replace(view, raft=raft, members=members, farm=replace(view.farm, expect=expect))


LOSSES = [
    (expect, voters, down)
    for expect in (1, 2, 3, 4, 5)
    for voters in range(expect, 6)
    for count in range(1, (voters + 1) // 2)
    for down in combinations(range(2, voters + 1), count)
]


def refusals_of_advice(view: FarmView, advice: str) -> list[str]:
    """Return the servers whose advised removal the farm refuses, with the removals run in order."""
    found = list[str]()
    for name in re.findall(r"`garlicfarm servers remove ([^`]+)`", advice):
        server = next((each for each in view.raft.voters if each.name == name), None)
        assert server is not None, f"{name} is not a server"
        if is_voter_kept(view, server.raft_id):
            found.append(name)
        view = replace(view, raft=replace(view.raft, voters=tuple(e for e in view.raft.voters if e is not server)))
    return found


@each_case(("expect", "voters", "down"), LOSSES)
def test_advice_after_loss_is_never_refused(expect: int, voters: int, down: tuple[int, ...]) -> None:
    """The farms have up to five voters and lost a minority of them. Node 1, the leader, shows the advice."""
    view = after_a_loss(expect, voters, down)
    verdict = verdict_of(view)
    assert verdict.text.startswith("Degraded"), verdict.text
    assert refusals_of_advice(view, verdict.advice) == []
    is_removal_advised = "servers remove" in verdict.advice
    assert is_removal_advised is (voters - len(down) >= expect)
    steps = [verdict.advice.find(f"`garlicfarm {each}`") for each in ("invite new", "help servers")]
    assert is_removal_advised or (min(steps) >= 0 and steps == sorted(steps)), verdict.advice


def test_servers_guide_exports_key_before_approval() -> None:
    text = (ROOT / "docs" / "how-to" / "servers.md").read_text(encoding="utf-8")
    assert text.index("garlicfarm keys export") < text.index("garlicfarm node approve ID")


def test_planted_refused_removal_is_found() -> None:
    view = after_a_loss(3, 3, (2,))
    assert refusals_of_advice(view, "take it out: `garlicfarm servers remove node-2`") == ["node-2"]


# -- key files ---------------------------------------------------------------------------------------------------------


def run_all(action: str, garlicfarm: Callable[..., Result]) -> None:
    """Run each command of an advice, in order."""
    for command in re.findall(r"`((?:garlicfarm|mv|chmod) [^`]+)`", action):
        program, *words = shlex.split(command)
        match program:
            case "garlicfarm":
                result = garlicfarm(*words)
                assert result.exit_code == 0, f"{command}: {result.output}"
            case "mv":
                Path(words[0]).rename(words[1])
            case _:
                Path(words[1]).chmod(int(words[0], 8))


@pytest.mark.parametrize("damage", ["missing", "foreign", "readable", "damaged", "older"])
def test_advice_about_key_file_ends_alarm(tmp_path: Path, garlicfarm: Callable[..., Result], damage: str) -> None:
    """The farm key file is missing, foreign, readable by others, damaged or outdated."""
    path, fake = tmp_path / "farm.key", garlicfarm.node.keys  # type: ignore[attr-defined]
    filed = fake.farm_key
    keys = FarmKeys(path, filed, lambda: fake.chain)
    save_farm_key(path, filed)
    match damage:
        case "missing":
            path.unlink()
        case "foreign":
            path.unlink()
            save_farm_key(path, new_farm_key(3))
        case "readable":
            path.chmod(0o644)
        case "damaged":
            path.write_text("damaged")
        case _:
            fake.chains["node-1"] = filed.key_ring.install(NEW_KEY).use(NEW_KEY)
            fake.farm_key = filed.following(fake.chain)
    alarms = Alarms(EventLog("node-1", lambda: 0))
    keys.judge_file(keys.filed_now(), alarms)
    [alarm] = alarms.active()
    run_all(f"{alarm.text} {alarm.action}", garlicfarm)
    keys.judge_file(keys.filed_now(), alarms)
    assert alarms.active() == ()


def test_advice_about_signing_key_ends_alarm(tmp_path: Path, garlicfarm: Callable[..., Result]) -> None:
    """The signing key ends soon. A new key is created with the advised command and moved to its place."""
    master, path, now_s = new_master_key(), tmp_path / "signing.key", 1_767_225_600
    save_master_key(tmp_path / "master.key", master)
    save_signing_key(path, master.sign_transient(now_s, 3600))
    held, alarms = PublishingKey.load(path), Alarms(EventLog("node-1", lambda: 0))
    judge_key(held, now_s, SharedAlarm(alarms, SIGNING_KEY))
    [alarm] = alarms.active()
    assert "`garlicfarm keys offline`" in alarm.action
    made = garlicfarm("keys", "offline", "--master", str(tmp_path / "master.key"), "--out", str(tmp_path / "new.key"))
    assert made.exit_code == 0, made.output
    (tmp_path / "new.key").replace(path)
    assert held.renew(now_s)
    judge_key(held, now_s, SharedAlarm(alarms, SIGNING_KEY))
    assert alarms.active() == ()


# -- a founding blocked by an unknown node -----------------------------------------------------------------------------


class Founders:
    """Three connected founders, and an unknown node with the farm key that does not endorse a founding."""

    IDS = tuple(bytes([0] * 7 + [number]) for number in (1, 2, 3))
    UNKNOWN_NODE = bytes([0] * 7 + [9])

    def __init__(self) -> None:
        self.durable = dict.fromkeys(self.IDS, FormationState())
        self.notices = dict.fromkeys((*self.IDS, self.UNKNOWN_NODE), FormationNotice())
        self.refusals: list[str] = []
        self.now_ms = 0
        self.start({})

    def start(self, founders: dict[bytes, frozenset[bytes]]) -> None:
        """Start all founders, with the lists from their settings."""
        tuning = FormationTuning(settle_ms=50, patience_ms=2_000)
        self.cores = {
            each: Formation(each, 3, self.durable[each], Random(each[7]), founders=founders.get(each), tuning=tuning)
            for each in self.IDS
        }
        for each in self.IDS:
            self.step(each, Started())
        began_ms = self.now_ms
        for now_ms in range(began_ms, began_ms + 5_000, 50):
            self.now_ms = now_ms
            for each in self.IDS:
                self.step(each, MembersChanged(self._members(each)))
                self.step(each, DeadlineReached())

    def step(self, node_id: bytes, event: Event) -> None:
        """Process one event at a node. Its write is durable after all other effects."""
        effects = self.cores[node_id].step(event, self.now_ms, 1_767_225_600_000 + node_id[7])
        for effect in sorted(effects, key=lambda each: isinstance(each, Persist)):
            match effect:
                case Persist(number, state):
                    self.durable[node_id] = state
                    self.step(node_id, Persisted(number))
                case Advertise(notice):
                    self.notices[node_id] = notice
                case FormationRefused(text):
                    self.refusals.append(text)
                case _:
                    pass

    def _members(self, of: bytes) -> tuple[FarmMember, ...]:
        return tuple(farm_member(each, notice=notice) for each, notice in self.notices.items() if each != of)

    def founded(self) -> set[bytes | None]:
        """Return the clusters of the founders; None means that a founder does not have one."""
        return {None if state.founding is None else state.founding.cluster_id for state in self.durable.values()}


@pytest.mark.parametrize("of", ["alarm", "refusal"])
def test_remedy_of_blocked_founding_creates_farm(tmp_path: Path, of: str) -> None:
    """An unknown node blocks the founding, until each founder has the advised list in its settings."""
    farm, lists = Founders(), dict[bytes, frozenset[bytes]]()
    for node_id in Founders.IDS:
        [alarm] = farm.cores[node_id].alarms
        assert "garlicfarm withdraw" not in alarm, "withdrawal is refused"
        farm.step(node_id, WithdrawRequested())
        [line] = re.findall(r"`(founders = [^`]+)`", alarm if of == "alarm" else farm.refusals[-1])
        settings = tmp_path / f"{node_id.hex()}.toml"
        settings.write_text(f'{line}\nfarm_key = "farm.key"\n[gossip]\nbind = "127.0.0.1:7668"\n')
        lists[node_id] = load_configuration(settings).founders
    assert len(farm.refusals) == 3
    assert farm.founded() == {None}
    farm.start(lists)
    assert len(farm.founded() - {None}) == 1
    assert None not in farm.founded()


# -- guides ------------------------------------------------------------------------------------------------------------


def test_client_key_guide_commands_succeed(
    tmp_path: Path, garlicfarm: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test runs all complete lines of docs/how-to/client-keys.md in order.

    The farm accepts the submitted entries, and no command needs the private key on the node's machine.
    """
    monkeypatch.chdir(tmp_path)
    lines = [each for each in guides() if each.place.startswith("client-keys.md:") and not each.is_open]
    for key in (key for key, case in CASES.items() if case is GUIDE):
        assert any({*key.split()} <= {*key_of(each).split()} for each in lines), f"the guide does not have {key}"
    for line in lines:
        result = garlicfarm(*(word.replace("HASH", "a" * 52) for word in line.words))
        assert result.exit_code == 0, f"{line.command}: {result.output}"
    submitted = garlicfarm.node.submitted  # type: ignore[attr-defined]
    assert len(submitted) == 2
    assert [entry_refusal(each) for each in submitted] == [None, None]
    clients = [each["client"] for each in garlicfarm.node.commands]  # type: ignore[attr-defined]
    assert [(each["name"], each["admitted"]) for each in clients] == [
        ("pipeline", True),
        ("pipeline", False),
        ("script", True),
    ]
