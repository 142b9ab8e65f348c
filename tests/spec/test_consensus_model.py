"""The model of consensus: every state of small worlds keeps the claims of the paper, and planted faults break them."""

import ast
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.effort import few_of
from tests.spec.model import explorer
from tests.spec.model.explorer import explore
from tests.spec.model.mutants import MUTANTS, ModelMutant
from tests.spec.model.worlds import SMALL, World, voters

MODEL = Path(__file__).with_name("model")


@pytest.mark.parametrize(
    "world", few_of({each.name: each for each in SMALL}, "append, a removal", "append, followers commit")
)
def test_small_world_keeps_every_claim_in_every_state(world: World) -> None:
    found = explore(world)
    assert found.broken is None, found.story
    assert found.is_complete
    assert found.states > 300


LARGE_WORLDS = {
    *("change-during-change", "change-before-own-commit", "joint-majority-of-the-new", "always-directly"),
    *("longer-log-wins", "fetch-cuts-agreement"),
}
"""Faults that need long stories; only `make soak` searches for them."""


@pytest.mark.parametrize(
    "mutant",
    few_of({each.name: each for each in MUTANTS}, *({each.name for each in MUTANTS} - LARGE_WORLDS)),
)
def test_fault_in_the_rules_breaks_a_claim(mutant: ModelMutant) -> None:
    found = explore(mutant.world, mutant.rules)
    assert found.broken == mutant.breaks
    assert found.story


def test_model_imports_nothing_of_the_product() -> None:
    imported = {
        name
        for path in MODEL.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert not {name for name in imported if name.split(".")[0] in ("consensus", "bridge", "gossip", "pipeline")}
    assert {name for name in imported if name.startswith("tests.")} == {
        name for name in imported if name.startswith("tests.spec.model.")
    }


def test_symmetry_keeps_one_state_of_each_class() -> None:
    world = World("one term", voters(0b111, 0b111, 0b111), terms=1, entries=1, crashes=1)
    reduced = explore(world)
    with patch.object(explorer, "permutations", lambda places: [tuple(places)]):
        full = explore(world)
    assert reduced.depth == full.depth
    assert reduced.states < full.states <= 6 * reduced.states
