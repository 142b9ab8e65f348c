"""docs/reference/alarms.md has each alarm that the code can raise, with what it means and what to do, and no other."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from bridge.api.verdict import DISAGREEMENT_ALARMS, MEANINGS
from gossip.core.effects import AlarmKind
from tests.reference.alarms import described

ROOT = Path(__file__).parents[2]
BOARD = "bridge.node.events.alarms"
BOARDS = {"alarms", "_alarms"}
PASSED_ON = {
    # Gossip's alarms, under their own names. With a second instance, or a rolled back directory, the node stops;
    # and the farm gives gossip no `admit`.
    "bridge.node.membership.gossip_events": {
        each.value
        for each in AlarmKind
        if each not in {AlarmKind.IDENTITY_CONFLICT, AlarmKind.ROLLED_BACK, AlarmKind.ADMIT_FAILED}
    },
    "bridge.node.raft.refused_connections": {"refused-by-peers", "peers-refused"},
    "bridge.node.control.verdict_watch": {*DISAGREEMENT_ALARMS}
    | {each.alarm for each in MEANINGS.values() if each.alarm is not None},
}
"""Kinds that a module raises by a variable; a new module that does so has to be entered here."""


def raised_in(path: Path) -> Iterator[str]:
    """The kinds that one module raises."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        kind = kind_argument(node) if isinstance(node, ast.Call) else None
        if kind is None or module == BOARD:
            continue
        match kind:
            case ast.Constant(str(text)):
                yield text
            case ast.Name(name) if isinstance(getattr(import_module(module), name, None), str):
                yield getattr(import_module(module), name)
            case ast.Attribute(ast.Attribute(ast.Name("AlarmKind"), name), "value"):
                yield AlarmKind[name].value
            case _:
                assert module in PASSED_ON, f"{module}:{kind.lineno} raises an alarm whose kind this test cannot tell"
                yield from PASSED_ON[module]


def kind_argument(call: ast.Call) -> ast.expr | None:
    """What a call says is the kind of an alarm, if it raises or shares one."""
    match call.func:
        case ast.Attribute(ast.Name(name) | ast.Attribute(attr=name), "set") if name in BOARDS and len(call.args) > 2:
            return call.args[0]
        case ast.Name("SharedAlarm"):
            return call.args[1]
        case _:
            return None


def raised() -> set[str]:
    """The kinds that the farm's code raises."""
    return {kind for path in sorted((ROOT / "bridge").rglob("*.py")) for kind in raised_in(path)}


def test_every_alarm_that_can_be_raised_is_in_the_operators_table_and_no_other() -> None:
    found = raised()
    assert {"no-quorum", "publishing-without-quorum", "isolated", "disk-full"} <= found
    assert found == described().keys()


def test_every_alarm_says_what_happened_and_what_to_do() -> None:
    for kind, (happened, do) in described().items():
        assert len(happened) > 20, kind
        assert len(do) > 4, kind
