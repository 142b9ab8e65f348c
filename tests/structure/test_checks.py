"""Checks of the structure find planted violations and accept correct code. Also: `tests/effort.py` and the website."""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.effort import each_case, room_in_memory
from tests.reference import site
from tests.structure import __main__ as structure
from tests.structure import message_fields, modules
from tests.structure.addresses import fields_of
from tests.structure.class_names import repeated, wrong_tests
from tests.structure.documents import torn_rows, wrong_names, wrong_sections, wrong_targets
from tests.structure.english import Line, above, counted, offending, patterns, sentences, source_lines
from tests.structure.growth import growing, powers
from tests.structure.raft_rules import quotes
from tests.structure.soak_sizes import is_never_large
from tests.structure.sources import ROOT
from tests.structure.struct_defaults import replaced_defaults
from tests.structure.waits import unbounded
from tests.structure.words import Word, find, listed, unused


def test_command_prints_problems_and_returns_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(structure, "CHECKS", (lambda: iter(["a.py:3: wrong"]), lambda: iter(["b.py:1: wrong"])))
    assert structure.main() == 1
    assert capsys.readouterr().out == "a.py:3: wrong\nb.py:1: wrong\n"


def test_cases_report_all_failures_with_their_names(tmp_path: Path) -> None:
    paths = set[Path]()

    @each_case("first, second", [(1, 1), (1, 2), pytest.param(3, 4)])
    def is_equal(first: int, second: int, tmp_path: Path) -> None:
        paths.add(tmp_path)
        assert first == second

    with pytest.raises(BaseExceptionGroup, match="2 of 3 cases failed") as caught:
        is_equal(tmp_path=tmp_path)
    assert [failure.__notes__ for failure in caught.value.exceptions] == [["case (1, 2)"], ["case (3, 4)"]]
    assert len(paths) == 3
    with pytest.raises(ValueError, match="no case"):
        each_case("first", [])


def test_room_in_memory_is_at_most_memory_of_container(tmp_path: Path) -> None:
    unlimited, small = tmp_path / "unlimited", tmp_path / "small"
    unlimited.write_text("max\n")
    small.write_text("64\n")
    assert room_in_memory(tmp_path, (unlimited, small, tmp_path / "missing")) == 64
    assert room_in_memory(tmp_path, (unlimited,)) > 64
    assert room_in_memory(tmp_path / "missing") == 0


def test_address_field_found_by_type_and_name() -> None:
    planted = "class Planted:\n    contact: Address | None\n    last_endpoint: str\n    term: int\n    name: str\n"
    assert list(fields_of(ast.parse(planted))) == [(2, "Planted.contact"), (3, "Planted.last_endpoint")]


def test_duplicate_class_name_is_found() -> None:
    modules = {Path("a.py"): "class Planted: ...\nclass Other: ...", Path("b.py"): "\nclass Planted: ..."}
    classes = {path: ast.walk(ast.parse(text)) for path, text in modules.items()}
    found = [(str(path), node.lineno, node.name, str(first)) for path, node, first in repeated(classes)]
    assert found == [("b.py", 2, "Planted", "a.py")]


def test_long_or_unitless_name_of_test_is_found() -> None:
    names = {"test_log": 0, f"test_{'x' * 55}": 0, f"test_{'x' * 56}": 1, "test_only_log": 1, "test_no_op": 0}
    for name, count in names.items():
        tree = ast.parse(f"async def {name}(): pass")
        assert len(list(wrong_tests(ROOT / "tests" / "a.py", ast.walk(tree)))) == count


def test_message_with_four_positional_fields_is_found() -> None:
    fields = "".join(f"    field_{number}: int\n" for number in range(4))
    planted = f"@dataclass(frozen=True)\nclass Planted:\n{fields}\n@dataclass(kw_only=True)\nclass Keyword:\n{fields}"
    assert list(message_fields.positional_fields(ast.parse(planted))) == [(2, "Planted", 4)]


def test_pattern_of_messages_without_module_is_found() -> None:
    patterns = ("consensus/core/messages.py", "consensus/core/no_such_*.py")
    assert list(message_fields.check(patterns)) == [
        "tests/structure/message_fields.py:1: consensus/core/no_such_*.py does not match a file: correct it"
    ]


def test_clock_as_default_of_struct_is_found() -> None:
    fields = "    now_s: Clock = time.monotonic\n    later_s: Clock = field(default_factory=lambda: time.monotonic)\n"
    planted = f"class Planted(Struct):\n{fields}\n@dataclass\nclass Other:\n{fields}"
    assert list(replaced_defaults(ast.parse(planted))) == [(2, "now_s")]


@pytest.mark.parametrize("source", ["delay = first * 2**failures", "mask = 1 << number", "delay = math.pow(2, n)"])
def test_power_by_variable_is_found(source: str) -> None:
    assert [line for line, _ in powers(ast.parse(source))] == [1]


@each_case(
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
def test_number_growing_by_multiplication_is_found(source: str) -> None:
    assert [line for line, _ in growing(ast.parse(f"async def wait():\n    {source}"))] == [2]


@pytest.mark.parametrize("source", ["pause_s = 2 * first_s", "total = total + 2 * step", "pause_s = backoff.next_s()"])
def test_number_without_growth_by_factor_is_accepted(source: str) -> None:
    assert not list(growing(ast.parse(source)))


@each_case(
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
def test_wait_without_limit_is_found(source: str) -> None:
    assert [line for line, _ in unbounded(ast.walk(ast.parse(f"\n{source}")))] == [2]


@each_case(
    "source",
    [
        "process.wait(END_S)",
        "process.communicate(timeout=END_S)",
        "thread.join(END_S)",
        "message = sender.join()",
        "async def test(): await event.wait()",
    ],
)
def test_limited_or_async_wait_and_other_join_are_accepted(source: str) -> None:
    assert not list(unbounded(ast.walk(ast.parse(source))))


LISTED_MIN = 120
"""The list of words must have more words than this. Otherwise the test did not read it completely."""
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


def test_import_of_lower_layer_is_accepted() -> None:
    assert not list(modules.higher_floors({"bridge": {}, NODE: {CORE: 1, API: 2}, CORE: {}, API: {}}))


def test_long_docstring_of_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "modules_in", lambda *_: [ROOT / "bridge" / "__init__.py"])
    for lines, count in ((modules.PREFACE_LINES, 0), (modules.PREFACE_LINES + 1, 1)):
        tree = ast.parse('"""' + "A line.\n" * lines + '"""')
        monkeypatch.setattr(modules, "tree_of", lambda _, tree=tree: tree)
        assert len(list(modules.long_prefaces())) == count


def test_short_module_with_one_importer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    short = ROOT / "bridge" / "core" / "formation" / "__main__.py"
    monkeypatch.setattr(modules, "modules", lambda: {"bridge.core.formation.short": short})
    monkeypatch.setattr(modules, "code_lines", lambda _: modules.SLIVER_LINES - 1)
    monkeypatch.setattr(modules, "tree_of", lambda _: ast.parse('"""A short module."""'))
    assert list(modules.slivers({"bridge.app": {"bridge.core.formation.short": 1}}))
    monkeypatch.setattr(modules, "tree_of", lambda _: ast.parse('"""A separate module: why."""'))
    assert not list(modules.slivers({"bridge.app": {"bridge.core.formation.short": 1}}))


@each_case(
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
def test_missing_target_in_document_is_found(text: str, name: str) -> None:
    document = ROOT / "docs" / "explanation" / "architecture.md"
    assert any(name in line for line in wrong_names(document, text))


@pytest.mark.parametrize(
    "quoted",
    [", 'No such section'", ' ("No such section")', ' ("Glossary", "No such section") lists', '\n"No such section"'],
)
def test_missing_section_is_found(quoted: str) -> None:
    named = f"docs/glossary.md{quoted}"
    path = ROOT / "README.md"
    assert any("No such section" in line for line in wrong_sections(path, [named]))
    assert not list(wrong_sections(path, [named.replace("No such section", "Glossary")]))


@each_case("text", ["run `make {}`", "```\nmake {}\n```"])
def test_missing_target_of_make_is_found(text: str) -> None:
    path = ROOT / "README.md"
    assert any("target no-such" in line for line in wrong_targets(path, text.format("no-such")))
    assert not list(wrong_targets(path, f"{text.format('soak')}\nmake no-such thing in prose"))


@each_case(
    ("text", "lines"),
    [
        ("| a | b |\n|---|---|\n| c | a torn\nrow |\n", [3]),
        ("```\n| in code\n```\n\n- item\n  | a | torn\n  row |\n", [6]),
        ("| a | b |\n|---|---|\n| c | d |\n", []),
    ],
)
def test_torn_table_row_is_found(text: str, lines: list[int]) -> None:
    found = list(torn_rows(ROOT / "README.md", text))
    assert [line.split(":")[:2] for line in found] == [["README.md", str(line)] for line in lines]


def test_rule_is_quoted_by_run_of_its_words() -> None:
    rule = "Reply false if term < currentTerm"
    assert quotes("test_reply_false_if_term_is_old", rule)
    assert not quotes("test_reply_if_the_term_is_old", rule)


@each_case(
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
def test_unlisted_word_is_accepted(word: str, text: str) -> None:
    assert find("a.py", text, [Word(word, "plain", ())]) == []


def test_word_is_found_in_file_name() -> None:
    word = Word("blue door", "plain", ())
    assert find("farm/blue_door.py", "", [word]) == ["farm/blue_door.py:0: 'blue door' -> plain"]


def test_word_is_accepted_only_below_its_paths() -> None:
    word = Word("chair", "plain", ("farm/",))
    assert find("farm/core/house.py", "a chair", [word]) == []
    assert find("town/core/house.py", "a chair", [word]) != []


def test_planted_words_of_the_list_are_found() -> None:
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
        "colors, neighbors, or canceled",
    ],
)
def test_correct_use_of_glossary_word_is_accepted(text: str) -> None:
    assert find("a.md", text, listed()) == []


def test_names_of_other_libraries_are_skipped() -> None:
    assert find("a.py", "except trio.Cancelled: scope.cancelled_caught", listed()) == []
    assert find("a.py", "Cancelled when the peer is removed", listed()) == ["a.py:1: '*cancelled*' -> canceled"]


def test_exempt_path_without_the_word_is_found() -> None:
    word = Word("word that no page has", "plain", ("docs/",))
    assert any("remove it from `kept`" in line for line in unused([word]))
    assert list(unused([Word("router", "plain", ("docs/",))])) == []


def test_site_with_pictures_has_gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    "long": "The node " + "and the node " * 8 + "run.",
}


@each_case("pattern", [each.name for each in patterns()])
def test_sentence_with_pattern_is_counted(pattern: str) -> None:
    kind = {"opening": "openings", "long": "sentences"}.get(pattern, "docstrings")
    found = list(offending([Line("a.py", 3, "gossip", kind, SPOKEN[pattern])]))
    assert pattern in [name for name, _ in found]
    assert [line for _, lines in above(found, Counter()) for line in lines] == [line for _, line in found]
    assert not list(above(found, counted(found)))


def test_sentences_end_at_items_and_diagrams_not_at_lines() -> None:
    lines = ["A title", "", "*One.* Two `a b`", "goes on. Three", "- an item", "    a ──▶ b", "| x | y |"]
    assert list(sentences(enumerate(lines, 1))) == [
        (1, "A title"),
        (3, "*One."),
        (3, "Two X goes on."),
        (3, "Three"),
        (5, "- an item"),
        (6, "a ──▶ b"),
        (7, "| x."),
        (7, "y |"),
    ]


def test_source_lines_give_each_kind_of_prose() -> None:
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


def test_soak_size_without_mark_is_found() -> None:
    assert is_never_large("SEEDS = 20 if IS_SOAK else 2")
    assert not any(map(is_never_large, ("SEEDS = 2", "IS_SOAK … mark.search", "IS_SOAK … GROUP_SEEDS")))
