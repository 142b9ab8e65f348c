"""`garlicfarm help` finds each document with its sections, each command, and each topic that a message names."""

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import bridge
from bridge.cli.help import documents
from bridge.cli.main import cli
from tests.effort import each_case, few_of
from tests.structure.sources import ROOT

DOCS = ROOT / "docs"
NAMED = re.compile(r"`garlicfarm help ([\w/-]+)(?: '([^']+)')?`")
LINK_TO_FILE = re.compile(r"\]\((?!https?:)")
PATH = re.compile(r"\bdocs/[\w/-]+\.md\b")


def help_of(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["help", *words])
    return done.exit_code, done.output


def messages(package: str) -> Iterator[tuple[Path, str]]:
    """Yield each text that may name a document or topic; docstrings count only for commands."""
    for path in sorted((ROOT / package).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not ("help" in source or "docs/" in source):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        shown = {
            id(function.body[0].value)
            for function in nodes
            if isinstance(function, ast.FunctionDef)
            and isinstance(function.body[0], ast.Expr)
            and any("command" in ast.unparse(each) for each in function.decorator_list)
        }
        apart = {id(each.value) for each in nodes if isinstance(each, ast.Expr)} - shown
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield path, "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
                yield path, node.value


def test_documents_are_topics_with_unique_names() -> None:
    known = documents.topics()
    assert sorted(each.place for each in known) == sorted(
        str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md") if path.name != "README.md"
    )
    names = [each.name for each in known]
    assert sorted(names) == sorted(set(names))


def test_topic_list_shows_task_of_each_topic() -> None:
    code, output = help_of()
    assert code == 0
    assert re.search(r"^  servers +add, replace and remove nodes$", output, re.MULTILINE)
    assert "  explanation/storage " in output
    assert output.count("\n") > len(documents.topics())


TOPICS = {topic.place: topic for topic in documents.topics()}
SHORT = [place for place in TOPICS if (DOCS / f"{place}.md").stat().st_size < 5_000]


@each_case("topic", TOPICS.values(), ids=lambda topic: topic.place)
def test_document_is_readable_without_paths(topic: documents.Topic) -> None:
    shown = documents.readable((DOCS / f"{topic.place}.md").read_text(encoding="utf-8"), topic, list(TOPICS.values()))
    assert LINK_TO_FILE.search(shown) is None


@pytest.mark.parametrize("topic", few_of(TOPICS, *SHORT))
def test_document_is_shown_without_markdown_or_paths(topic: documents.Topic) -> None:
    code, output = help_of(topic.name)
    assert code == 0
    title = (DOCS / f"{topic.place}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    assert title.replace("`", "").split()[0] in output
    assert LINK_TO_FILE.search(output) is None
    assert "\x1b" not in output


@pytest.mark.parametrize("path", ["docs/how-to/servers.md", "how-to/servers", "servers", "servers.md"])
def test_path_selects_its_document(path: str) -> None:
    assert help_of(path) == help_of("servers")


def test_words_of_heading_select_its_section() -> None:
    code, output = help_of("upgrade", "made", "before")
    assert code == 0
    assert "A farm made before" in output
    assert "changelog" not in output


def test_unknown_section_lists_sections() -> None:
    code, output = help_of("upgrade", "nonsense")
    assert code == 1
    assert "A farm made before" in output


def test_command_without_document_is_explained() -> None:
    code, output = help_of("node", "evict")
    assert code == 0
    assert output.startswith("Usage: ")
    assert "Evict an identity" in output


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("server", "(perhaps servers"),
        ("node evct", "(perhaps node evict)"),
        ("monitr", "(perhaps monitor or init)"),
        ("tunnel", "no document or command is called 'tunnel': `garlicfarm help` lists"),
        ("publish now", "`garlicfarm publish --help` the commands"),
        ("attach", "(perhaps attach-a-router)"),
    ],
)
def test_unknown_topic_shows_nearest_topic(typed: str, near: str) -> None:
    code, output = help_of(*typed.split())
    assert (code, near in output) == (1, True), output


def test_unencodable_letters_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr("sys.stdout", output)
    cli(["help", "layout"], standalone_mode=False)
    output.flush()
    output.seek(0)
    assert "consensus/core" in output.read()


def test_messages_name_existing_topics_without_paths() -> None:
    known = documents.topics()
    wrong, topics_named = [], 0
    for path, text in (*messages("bridge"), *messages("pipeline")):
        wrong += [f"{path.name}: {found[0]}" for found in PATH.finditer(text)]
        for name, section in NAMED.findall(text):
            topics_named += 1
            topic = documents.find_topic(known, name)
            lacks = topic is None or (
                section and documents.find_section((DOCS / f"{topic.place}.md").read_text(), section) is None
            )
            wrong += [f"{path.name}: garlicfarm help {name} {section}"] * bool(lacks)
    assert wrong == []
    assert topics_named > 20


def test_missing_documents_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bridge, "DOCUMENTS", (tmp_path / "a", tmp_path / "b"))
    code, output = help_of("servers")
    assert code == 1
    assert "this installation does not have the documents" in output


@pytest.mark.parametrize(("typed", "meant"), [("stats", "status"), ("member", "members"), ("serves", "servers")])
def test_unknown_command_names_similar_command(typed: str, meant: str) -> None:
    done = CliRunner().invoke(cli, [typed])
    assert done.exit_code == 2
    assert f"No such command {typed!r}." in done.output
    assert repr(meant) in done.output.rpartition("Did you mean")[2]
