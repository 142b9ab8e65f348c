"""`garlicfarm help`: the project's documents as text, by topic, without a network and without a checkout.

    garlicfarm help                         every topic with its task, in the order of docs/README.md
    garlicfarm help servers                 one document
    garlicfarm help upgrade 'made before'   a section of it, by words of its heading
    garlicfarm help node evict              a command, if no document has that name

The documents are stored once in the repository, in docs/. In a checkout, the command reads them there; the wheel has
them inside the package, where `setup.py` puts them. Messages name a document by this command, because an operator who
installed a package does not have docs/.
"""

import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

import bridge
from bridge.cli.failure import fail
from bridge.cli.printing import echo, echo_whole, print_markdown

_ROW = re.compile(r"^\| \[[^\]]+\]\(([\w/-]+)\.md\) \| (.+?) \|$", re.MULTILINE)
_INTRODUCED = re.compile(r"\[[^\]]+\]\(([\w-]+)\.md\)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!\w+://)([^)#\s]*)(?:#[^)\s]*)?\)")
NEAR_MOST = 3
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.+)$")


class Topic(Struct, frozen=True):
    """One document: `name` as `garlicfarm help` shows it, `place` below docs/ without the suffix."""

    name: str
    place: str
    part: str
    summary: str


def _text_of(place: str) -> str:
    """Return the text of a document; end the command if this installation lacks it."""
    text = bridge.document(f"{place}.md")
    if text is None:
        fail(
            f"this installation does not have the documents in {bridge.DOCUMENTS[0]}: install garlicfarm again from its"
            " wheel or its package"
        )
    return text


def topics() -> list[Topic]:
    """Return every document, in the order of the index.

    Documents with equal file names have their folder in the topic's name.
    """
    head, *parts = re.split(r"^## (.+)$", _text_of("README"), flags=re.MULTILINE)
    found = [(place, "", "") for place in dict.fromkeys(_INTRODUCED.findall(head))]
    for part, text in zip(parts[::2], parts[1::2], strict=True):
        found += [(place, part, summary) for place, summary in _ROW.findall(text)]
    stems = [place.rpartition("/")[2] for place, _, _ in found]
    return [
        Topic(stem if stems.count(stem) == 1 else place, place, part, summary)
        for stem, (place, part, summary) in zip(stems, found, strict=True)
    ]


def find_topic(known: list[Topic], words: str) -> Topic | None:
    """Return the topic of that name; a path such as `docs/how-to/servers.md` also names its document."""
    place = words.removeprefix("docs/").removesuffix(".md")
    return next((each for each in known if place in {each.name, each.place}), None)


def find_section(text: str, words: str) -> str | None:
    """Return the section with this heading, or else the first with these words in its heading; with its subsections."""
    exactly = _first_section(text, lambda heading: heading.strip("`") == words.casefold())
    return exactly or _first_section(text, lambda heading: words.casefold() in heading)


def _first_section(text: str, is_wanted: Callable[[str], bool]) -> str | None:
    found: list[str] = []
    rank, fenced = 0, False
    for line in text.split("\n"):
        fenced ^= line.startswith("```")
        heading = None if fenced else _HEADING.match(line)
        if heading is not None and found and len(heading[1]) <= rank:
            break
        if heading is not None and not found and is_wanted(heading[2].casefold()):
            rank = len(heading[1])
        if rank:
            found.append(line)
    return "\n".join(found) if found else None


def readable(text: str, topic: Topic, known: list[Topic]) -> str:
    """Return the document without links: a link to another document becomes the name of its topic."""
    names = {each.place: each.name for each in known}
    folder = topic.place.rpartition("/")[0]

    def link(found: re.Match[str]) -> str:
        words, target = found[1], found[2]
        parts: list[str] = folder.split("/") if folder else []
        for step in target.removesuffix(".md").split("/"):
            parts = parts[:-1] if step == ".." else [*parts, step]
        name = names.get("/".join(parts), "")
        return f"{words} (`garlicfarm help {name}`)" if name and target else words

    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(text))


def _complete_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    del context, parameter
    known = topics()
    return [CompletionItem(each.name, help=each.summary) for each in known if each.name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", required=False, shell_complete=_complete_topic)
@click.argument("words", nargs=-1)
@click.pass_context
def help_command(context: click.Context, topic: str | None, words: tuple[str, ...]) -> None:
    """Show a document: TOPIC, or a section of it by WORDS of its heading. Without a topic, list them all."""
    known = topics()
    if topic is None:
        _list(known)
        return
    found = find_topic(known, topic)
    if found is None:
        for line in _command_help(context.find_root(), [topic, *words], known).splitlines():
            echo_whole(line)
        return
    text, section = _text_of(found.place), " ".join(words)
    chosen = find_section(text, section) if section else text
    if chosen is None:
        fail(f"no heading of {found.name} has the words {section!r}; its sections: {'; '.join(_headings(text))}")
    print_markdown(readable(chosen, found, known))


def _list(known: list[Topic]) -> None:
    width = max(len(each.name) for each in known)
    part = ""
    echo("garlicfarm help TOPIC shows a document, garlicfarm COMMAND --help the options of a command.")
    for each in known:
        if each.part != part:
            part = each.part
            echo()
            echo(part, bold=True)
        echo(f"  {each.name:<{width}}  {each.summary}".rstrip())


def _headings(text: str) -> Iterator[str]:
    for line in _FENCE.sub("", text).split("\n"):
        heading = _HEADING.match(line)
        if heading is not None and len(heading[1]) > 1:
            yield heading[2]


def _command_help(root: click.Context, path: list[str], known: list[Topic]) -> str:
    """Return the help of the command that the words name, or end this command with similar names."""
    context = root
    for name in path:
        group = context.command
        command = group.get_command(context, name) if isinstance(group, click.Group) else None
        if command is None:
            documents = [] if context is not root else [each.name for each in known]
            commands = group.list_commands(context) if isinstance(group, click.Group) else []
            names = [*dict.fromkeys([*documents, *commands])]
            near = get_close_matches(name, names) or [each for each in names if name in each][:NEAR_MOST]
            before = context.command_path.removeprefix(root.command_path)
            meant = f" (perhaps {' or '.join(f'{before} {each}'.strip() for each in near)})" if near else ""
            fail(
                f"no document or command is called {' '.join(path)!r}{meant}: `garlicfarm help` lists the documents,"
                f" and `garlicfarm{before} --help` the commands"
            )
        context = click.Context(command, info_name=name, parent=context)
    return context.get_help()
