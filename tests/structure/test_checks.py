"""Each check of the structure finds a planted violation, and leaves alone what is right."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reference import site
from tests.structure import __main__ as structure
from tests.structure import modules
from tests.structure.addresses import fields_of
from tests.structure.class_names import repeated
from tests.structure.documents import wrong_names, wrong_sections
from tests.structure.english import Line, above, counted, offending, patterns, source_lines
from tests.structure.growth import growing, powers
from tests.structure.message_fields import positional_fields
from tests.structure.raft_rules import quotes
from tests.structure.sources import ROOT
from tests.structure.waits import unbounded
from tests.structure.words import Word, find, listed, unused


def test_command_prints_problems_and_returns_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(structure, "CHECKS", (lambda: iter(["a.py:3: wrong"]), lambda: iter(["b.py:1: wrong"])))
    assert structure.main() == 1
    assert capsys.readouterr().out == "a.py:3: wrong\nb.py:1: wrong\n"


def test_address_field_is_found_by_type_and_by_name() -> None:
    planted = "class Planted:\n    contact: Address | None\n    last_endpoint: str\n    term: int\n    name: str\n"
    assert list(fields_of(ast.parse(planted))) == [(2, "Planted.contact"), (3, "Planted.last_endpoint")]


def test_class_name_of_two_modules_is_found() -> None:
    modules = {Path("a.py"): "class Planted: ...\nclass Other: ...", Path("b.py"): "\nclass Planted: ..."}
    classes = {path: ast.walk(ast.parse(text)) for path, text in modules.items()}
    found = [(str(path), node.lineno, node.name, str(first)) for path, node, first in repeated(classes)]
    assert found == [("b.py", 2, "Planted", "a.py")]


def test_message_with_four_positional_fields_is_found() -> None:
    fields = "".join(f"    field_{number}: int\n" for number in range(4))
    planted = f"@dataclass(frozen=True)\nclass Planted:\n{fields}\n@dataclass(kw_only=True)\nclass Keyword:\n{fields}"
    assert list(positional_fields(ast.parse(planted))) == [(2, "Planted", 4)]


@pytest.mark.parametrize("source", ["delay = first * 2**failures", "mask = 1 << number", "delay = math.pow(2, n)"])
def test_power_by_a_variable_is_found(source: str) -> None:
    assert [line for line, _ in powers(ast.parse(source))] == [1]


@pytest.mark.parametrize(
    "source",
    [
        "pause_s = min(2 * pause_s, RETRY_LAST_S)",
        "self._pause_s = min(self._pause_s * 2, 60)",
        "pause_s = FIRST if found else pause_s * FACTOR",
        "delay *= 2",
        "delay <<= 1",
        "delay = delay + delay",
        "pause: float = 1.5 * pause",
        "state = replace(state, pause_s=2 * state.pause_s)",
    ],
)
def test_delay_that_doubles_itself_is_found(source: str) -> None:
    assert [line for line, _ in growing(ast.parse(f"async def wait():\n    {source}"))] == [2]


@pytest.mark.parametrize("source", ["pause_s = 2 * first_s", "total = total + 2 * step", "pause_s = backoff.next_s()"])
def test_delay_of_another_number_is_not_found(source: str) -> None:
    assert not list(growing(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "with subprocess.Popen(command) as process: pass",
        "process = stack.enter_context(Popen(command))",
        "process.wait()",
        "code = process.wait()",
        "process.communicate('input')",
        "thread.join()",
    ],
)
def test_wait_without_a_limit_is_found(source: str) -> None:
    assert [line for line, _ in unbounded(ast.walk(ast.parse(f"\n{source}")))] == [2]


@pytest.mark.parametrize(
    "source",
    [
        "process.wait(END_S)",
        "process.communicate(timeout=END_S)",
        "thread.join(END_S)",
        "message = sender.join()",
        "async def test(): await event.wait()",
    ],
)
def test_wait_with_a_limit_is_left_alone(source: str) -> None:
    assert not list(unbounded(ast.walk(ast.parse(source))))


LISTED_MIN = 120
"""A shorter list of words was not read whole."""
CORE, NODE, API = "bridge.core.farm.role", "bridge.node.app", "bridge.api.words"


@pytest.mark.parametrize(
    ("check", "imports", "text"),
    [
        (modules.cycles, {"a": {"b": 1}, "b": {"a": 4}}, "a cycle of imports"),
        (modules.higher_floors, {"bridge": {}, CORE: {NODE: 7}, NODE: {}}, f":7: {CORE} imports {NODE}"),
        (modules.missing_floors, {"bridge.cellar.wine": {}}, "cellar"),
    ],
)
def test_wrong_import_is_found(
    check: Callable[[modules.Graph], Iterator[str]], imports: modules.Graph, text: str
) -> None:
    assert any(text in line for line in check(imports))


def test_import_of_a_lower_floor_is_left_alone() -> None:
    assert not list(modules.higher_floors({"bridge": {}, NODE: {CORE: 1, API: 2}, CORE: {}, API: {}}))


def test_short_module_with_one_importer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ROOT / "bridge" / "core" / "formation" / "__main__.py"
    monkeypatch.setattr(modules, "modules", lambda: {"bridge.core.formation.short": short})
    monkeypatch.setattr(modules, "code_lines", lambda _: modules.SLIVER_LINES - 1)
    monkeypatch.setattr(modules, "tree_of", lambda _: ast.parse('"""A short module."""'))
    assert list(modules.slivers({"bridge.app": {"bridge.core.formation.short": 1}}))
    monkeypatch.setattr(modules, "tree_of", lambda _: ast.parse('"""A module of its own: why."""'))
    assert not list(modules.slivers({"bridge.app": {"bridge.core.formation.short": 1}}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[there](no-such-page.md)", "no-such-page.md"),
        ("[there](../../bridge/VERSION.py)", "VERSION.py"),
        ("[here](#no-such-heading)", "no-such-heading"),
        ("as in `no-such-page.md`", "no-such-page.md"),
        ("see `wire/test_no_such.py`", "wire/test_no_such.py"),
        ("in `bridge.no_such`", "bridge.no_such"),
        ("in `bridge/no_such.py`", "bridge/no_such.py"),
    ],
)
def test_name_of_nothing_in_a_document_is_found(text: str, name: str) -> None:
    document = ROOT / "docs" / "explanation" / "architecture.md"
    assert any(name in line for line in wrong_names(document, text))


def test_section_that_does_not_exist_is_found() -> None:
    document = "docs/glossary.md"
    named = f"{document}, 'No such section'"
    path = ROOT / "README.md"
    assert any("No such section" in line for line in wrong_sections(path, [named]))
    assert not list(wrong_sections(path, [named.replace("No such section", "Glossary")]))


def test_rule_is_quoted_by_a_run_of_its_words() -> None:
    rule = "Reply false if term < currentTerm"
    assert quotes("test_reply_false_if_term_is_old", rule)
    assert not quotes("test_reply_if_the_term_is_old", rule)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("blue door", "the blue door opens"),
        ("blue door", "from farm.blue_door import BlueDoor"),
        ("blue door", "a BLUE_DOOR"),
        ("paint*", "as it paints"),
        ("*room", "red_bedroom"),
        ("*Room", "BedRoom()"),
        ("Chair", "a Chair"),
    ],
)
def test_word_is_found_in_prose_and_in_identifiers(word: str, text: str) -> None:
    assert find("a.py", f"\n{text}\n", [Word(word, "plain", ())]) == [f"a.py:2: {word!r} -> plain"]


@pytest.mark.parametrize(
    ("word", "text"), [("room", "roomy"), ("paint*", "repaints"), ("Chair", "a chair"), ("blue door", "a bluedoor")]
)
def test_other_word_is_left_alone(word: str, text: str) -> None:
    assert find("a.py", text, [Word(word, "plain", ())]) == []


def test_word_is_found_in_the_name_of_a_file() -> None:
    word = Word("blue door", "plain", ())
    assert find("farm/blue_door.py", "", [word]) == ["farm/blue_door.py:0: 'blue door' -> plain"]


def test_word_is_kept_below_its_paths_alone() -> None:
    word = Word("chair", "plain", ("farm/",))
    assert find("farm/core/house.py", "a chair", [word]) == []
    assert find("town/core/house.py", "a chair", [word]) != []


def test_each_word_of_the_list_is_found_where_it_is_planted() -> None:
    words = listed()
    assert len(words) > LISTED_MIN
    for word in words:
        planted = word.word.strip("*")
        assert find("a.md", f"\nIn prose: {planted}.\n", [word]) == [f"a.md:2: {word.word!r} -> {word.plain}"]
        assert find("a.py", f"set_{planted.replace(' ', '_')}_first()", [word])


@pytest.mark.parametrize(
    "text",
    [
        "Three nodes found each other.",
        "a founder, the founding, the phase `founded`, the event `farm-founded`",
        "an I2P router, the router's I2CP, each router refuses it",
        "colors, neighbors, canceled or cancelled",
    ],
)
def test_right_use_of_a_glossary_word_is_left_alone(text: str) -> None:
    assert find("a.md", text, listed()) == []


def test_exempt_path_without_the_word_is_found() -> None:
    word = Word("word that no page has", "plain", ("docs/",))
    assert any("remove it from `kept`" in line for line in unused([word]))
    assert list(unused([Word("router", "plain", ("docs/",))])) == []


def test_site_has_a_gallery_if_pictures_were_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("BUILD", ""), ("PAGES", "docs"), ("GALLERY", "gallery")):
        monkeypatch.setattr(site, name, tmp_path / place)
    site.lay_out()
    assert "gallery" not in (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / site.GALLERY_PAGE).write_text("# Gallery\n\n![The farm](gallery/farm.svg)\n")
    (tmp_path / "gallery" / "farm.svg").write_text("<svg/>")
    site.lay_out()
    assert '{"Gallery" = "gallery.md"}' in (tmp_path / "zensical.toml").read_text(encoding="utf-8")
    assert (tmp_path / "docs" / "gallery" / "farm.svg").exists()
    assert (tmp_path / "docs" / site.GALLERY_PAGE).exists()


SPOKEN = {
    "speech": "the peer is told of it",
    "hearing": "a server that hears a leader",
    "clause": "keep what waits",
    "passive": "entries that are committed",
    "negation": "this raises no alarm",
    "adverb": "it begins anew",
    "verb": "the alarm stands",
    "pronoun": "the keys are those of the farm",
    "place": "a node beside the router",
    "condition": "as far as the log reaches",
    "order": "so does the leader",
    "animate": "a silent peer",
    "opening": "Whether the log is empty.",
}


@pytest.mark.parametrize("pattern", [each.name for each in patterns()])
def test_sentence_of_each_pattern_is_counted(pattern: str) -> None:
    kind = "openings" if pattern == "opening" else "docstrings"
    found = list(offending([Line("a.py", 3, "gossip", kind, SPOKEN[pattern])]))
    assert pattern in [name for name, _ in found]
    assert [line for _, lines in above(found, Counter()) for line in lines] == [line for _, line in found]
    assert not list(above(found, counted(found)))


def test_prose_of_a_source_has_docstrings_comments_texts_and_test_names() -> None:
    source = 'def test_a_b():\n    """Opening.\n\n    Second."""\n    x = "a text"  # A comment.\n    # Another.\n'
    nodes = list(ast.walk(ast.parse(source)))
    assert {(number, kind, text.strip()) for number, kind, text in source_lines(source, nodes, tests=True) if text} == {
        (1, "names", "a b"),
        (2, "docstrings", "Opening."),
        (2, "openings", "Opening."),
        (4, "docstrings", "Second."),
        (5, "docstrings", "A comment."),
        (6, "docstrings", "Another."),
    }
    assert (5, "strings", "a text") in set(source_lines(source, nodes, tests=False))
