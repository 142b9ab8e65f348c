"""docs/reference/commands.md, generated from the command line: each command with its usage, help and options."""

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from bridge.cli.main import cli
from pipeline.cli.entry import load
from pipeline.cli.entry import pipeline as handing_on

HEAD = """# Commands

Every command prints this with `--help`. Exit codes: 0 done, 1 refused or failed with the reason, 2 wrong usage; for
`status` also 3 and 4 ([verdicts.md](verdicts.md)).

| option of many commands | meaning |
|---|---|
| `--node ADDRESS` | the node to query: its control socket, its state directory or its name, or a URL (below) |
| `--json` | print [JSON](json.md) with stable keys, for scripts |
| `--timeout SECONDS` | the limit for replies, from 0.1 to 3600 s |
| `--watch` | print new events, entries or records as they come, or print a view again every 2 s, until Ctrl-C |
| `--output FILE` | the new file, if the command has a name for it; other commands take the file as an argument |
| `--yes` | skip confirmation prompts |

Without `--node` a command uses the first of these nodes: `$GARLICFARM_NODE`; the first node in `./farm-state` that
replies; the node in the default state directory; the node of a package's service in `/var/lib/garlicfarm`, which only
root may use. A name is the name of a state directory in one of these places. A URL is `https://HOST:PORT` of a node
with `control.listen`, together with `--token-file` and `--certificate`.
"""
COMMON = ("--node", "--json", "--yes")


def page() -> str:
    """Return the document."""
    return HEAD + "".join(_command(context) for context in _walk(click.Context(cli, info_name="garlicfarm")))


def _walk(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                own = load() if command is handing_on else command
                yield from _walk(click.Context(own, info_name=name, parent=context))


def _command(context: click.Context) -> str:
    command = context.command
    usage = command.get_usage(context).removeprefix("Usage: ")
    text = [f"\n## {context.command_path}\n\n```text\n{_joined(usage)}\n```\n"]
    if command.help:
        text.append(f"\n{_paragraphs(cleandoc(command.help))}\n")
    common = [
        f"`{each}`" for each in COMMON if any(each in parameter.opts for parameter in command.get_params(context))
    ]
    if common:
        text.append(f"\nTakes {', '.join(common)}.\n")
    options = [record for each in command.get_params(context) if (record := _record(each, context)) is not None]
    if options:
        text.append("\n| option | meaning |\n|---|---|\n")
        text += [f"| `{_escaped(names)}` | {_escaped(meaning)} |\n" for names, meaning in options]
    return "".join(text)


def _record(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    record = parameter.get_help_record(context)
    return None if record is None or {"--help", *COMMON} & set(parameter.opts) else record


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
