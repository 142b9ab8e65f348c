"""docs/reference/commands.md, generated from the command line: each command with its usage, help and options.

An option with one meaning in many commands is explained once, at the top of the page; the commands only name it. With
a row in each of these commands, the page was a third longer, and its reader had to find the few other options.
"""

import re
from collections import Counter
from collections.abc import Iterator
from inspect import cleandoc

import click

from bridge.cli.main import cli
from pipeline.cli.entry import load
from pipeline.cli.entry import pipeline as handing_on

HEAD = """# Commands

Every command prints this with `--help`. Exit codes: 0 done, 1 refused or failed with the reason, 2 wrong usage, 130
interrupted. `log verify` also returns 2 if it cannot find or read a log. `status` also returns 3 and 4
([verdicts.md](verdicts.md)).

| option of many commands | meaning |
|---|---|
| `--node ADDRESS` | the node to query: its control socket, its state directory or its name, or a URL (below) |
| `--json` | print [JSON](json.md) with stable keys, for scripts |
| `--yes` | skip confirmation prompts |
{shared}
Without `--node` a command uses the first of these nodes:

1. `$GARLICFARM_NODE`;
2. the first node in `./farm-state` that replies;
3. the node in the default state directory;
4. the node of a package's service in `/var/lib/garlicfarm`, which only root may use.

A name is the name of a state directory in one of these places. A URL is `https://HOST:PORT` of a node
with `control.listen`, together with `--token-file` and `--certificate`. Outside of `garlicfarm pipeline`, each command
with `--node` also takes `--timeout`, `--token-file` and `--certificate`.
"""
COMMON = ("--node", "--json", "--yes")
"""Options with a meaning in `HEAD`."""
WITH_NODE = {"--timeout", "--token-file", "--certificate"}
"""Options of each command with `--node` outside of the pipeline."""
SHARED_BY = 5
"""Number of commands from which on an option with the same meaning is explained at the top of the page."""

Row = tuple[str, str]
"""An option as its help shows it, and its meaning."""


def page() -> str:
    contexts = list(_walk(click.Context(cli, info_name="garlicfarm")))
    rows = _shared(contexts)
    head = HEAD.replace("{shared}\n", _table(rows) + "\n")
    return head + "".join(_command(context, frozenset(rows)) for context in contexts)


def _shared(contexts: list[click.Context]) -> list[Row]:
    """Return the rows of the options that many commands have, sorted; of one option only the most frequent meaning."""
    counts = Counter(row for context in contexts for row in _rows(context))
    most: dict[str, Row] = {}
    for row, count in counts.most_common():
        if count >= SHARED_BY:
            most.setdefault(row[0].split()[0], row)
    return sorted(most.values())


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                own = load() if command is handing_on else command
                yield from _walk(click.Context(own, info_name=name, parent=context))


def _rows(context: click.Context) -> list[Row]:
    parameters = context.command.get_params(context)
    return [record for each in parameters if (record := _record(each, context)) is not None]


def _table(rows: list[Row]) -> str:
    return "".join(f"| `{_escaped(names)}` | {_escaped(meaning)} |\n" for names, meaning in rows)


def _command(context: click.Context, shared: frozenset[Row]) -> str:
    command = context.command
    text = [f"\n## {context.command_path}\n"]
    if any(isinstance(each, click.Argument) for each in command.params):
        text.append(f"\n```text\n{_joined(command.get_usage(context)).removeprefix('Usage: ')}\n```\n")
    if command.help:
        text.append(f"\n{_paragraphs(cleandoc(command.help))}\n")
    common = [each for each in COMMON if any(each in parameter.opts for parameter in command.get_params(context))]
    rows = _rows(context)
    taken = [row[0].split()[0] for row in rows if row in shared]
    common += [each for each in taken if not ("--node" in common and WITH_NODE.issubset(taken) and each in WITH_NODE)]
    if common:
        text.append(f"\nTakes {', '.join(f'`{each}`' for each in common)}.\n")
    options = [row for row in rows if row not in shared]
    if options:
        text.append(f"\n| option | meaning |\n|---|---|\n{_table(options)}")
    return "".join(text)


def _record(parameter: click.Parameter, context: click.Context) -> Row | None:
    record = parameter.get_help_record(context)
    # The usage already has the arguments: a row without a meaning would repeat it.
    is_left_out = record is None or not record[1] or {"--help", *COMMON} & set(parameter.opts)
    return None if is_left_out else record


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _paragraphs(text: str) -> str:
    """Return the paragraphs of a help text: click keeps the lines of a paragraph that begins with a backspace."""
    return "\n\n".join(
        f"```text\n{each[2:].rstrip()}\n```" if each.startswith("\b\n") else _joined(each)
        for each in text.strip("\n").split("\n\n")
    )


def _escaped(text: str) -> str:
    return _joined(text).replace("|", "\\|")
