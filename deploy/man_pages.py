"""Manual pages, generated from the command line and the declared settings, without repeated text.

    garlicfarm.1              its purpose, every command in a line, files, environment, documents
    garlicfarm-COMMAND.1      one for each command; a group's page lists its commands
    garlicfarm.toml.5         every setting

`python -m deploy.man_pages DIRECTORY` writes them. They use the classic `man` macros of groff and mandoc.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from bridge import VERSION
from bridge.cli.help.documents import topics
from bridge.cli.main import cli
from bridge.node.settings.configuration import SETTINGS
from deploy.example_configuration import CONFIGURATION_DIRECTORY, STATE_DIRECTORY, kind_and_default

MANUAL = "Garlic Farm"
HANDED_ON = frozenset({"pipeline"})
"""Commands whose options belong to a separate extra; their page has only the overview."""
_MARKED = re.compile(r"`([^`]+)`|\[([^\]]+)\]\([^)]*\)")


def pages() -> dict[str, str]:
    """Return the pages by file name."""
    root = click.Context(cli, info_name="garlicfarm", **cli.context_settings)
    made = {"garlicfarm.1": _overview(), "garlicfarm.toml.5": _settings()}
    for name in cli.lazy_commands:
        made[f"garlicfarm-{name}.1"] = _command_page(root, name)
    return made


def _title(name: str, section: int, summary: str) -> list[str]:
    return [
        f'.TH "{name.upper()}" "{section}" "" "garlicfarm {VERSION}" "{MANUAL}"',
        ".SH NAME",
        rf"{_plain(name)} \- {_plain(summary.rstrip('.'))}",
    ]


def _overview() -> str:
    lines = [
        *_title("garlicfarm", 1, "high-availability groups of I2P routers"),
        ".SH SYNOPSIS",
        r"\fBgarlicfarm\fR \fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
        *_paragraphs(cli.help or ""),
        ".SH COMMANDS",
    ]
    for heading, commands in cli.sections.items():
        lines += [f".SS {heading}"]
        for name, lazy in commands.items():
            lines += [".TP", rf"\fBgarlicfarm\-{_plain(name)}\fR(1)", _plain(lazy.summary)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        r"\fBGARLICFARM_NODE\fR",
        r"Control socket or state directory of the node that commands query without \fB\-\-node\fR.",
        ".SH FILES",
    ]
    for path, meaning in (
        (
            f"{CONFIGURATION_DIRECTORY}/node.toml",
            "configuration of the service's node; see garlicfarm.toml(5)",
        ),
        (f"{CONFIGURATION_DIRECTORY}/farm.key", "the farm's key; without it the service does not start"),
        (STATE_DIRECTORY, "the node's identity, its log and its control socket; never copy it to a second machine"),
    ):
        lines += [".TP", rf"\fI{_plain(path)}\fR", _plain(meaning)]
    names = ", ".join(each.name for each in topics())
    lines += [
        *_exit_status(),
        ".SH DOCUMENTS",
        rf"\fBgarlicfarm help\fR \fITOPIC\fR shows one of: {_plain(names)}.",
        ".SH SEE ALSO",
        r"\fBgarlicfarm.toml\fR(5)",
    ]
    return "\n".join(lines) + "\n"


def _command_page(root: click.Context, name: str) -> str:
    group = cli.get_command(root, name)
    if group is None:
        raise LookupError(f"{name} is listed and cannot be loaded")
    context = click.Context(group, info_name=name, parent=root)
    lines = [
        *_title(f"garlicfarm-{name}", 1, cli.lazy_commands[name].summary),
        ".SH SYNOPSIS",
        _usage(context),
        ".SH DESCRIPTION",
        *_paragraphs(group.help or ""),
    ]
    if name in HANDED_ON:
        lines += [
            ".PP",
            r"It needs a separate extra; see \fBgarlicfarm help how\-to/pipeline\fR to install it.",
        ]
    else:
        lines += _options(context, ".SH OPTIONS")
    own = list(_below(context))
    if own:
        lines.append(".SH COMMANDS")
        for each in own:
            lines += [f'.SS "{_plain(each.command_path)}"', _usage(each), *_paragraphs(each.command.help or "", ".PP")]
            lines += _options(each, None)
    lines += [*_exit_status(), ".SH SEE ALSO", r"\fBgarlicfarm\fR(1), \fBgarlicfarm.toml\fR(5)"]
    return "\n".join(lines) + "\n"


def _below(context: click.Context) -> Iterator[click.Context]:
    """Yield the commands of a group, and of its groups."""
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                inner = click.Context(command, info_name=name, parent=context)
                yield inner
                yield from _below(inner)


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return rf"\fB{_plain(context.command_path)}\fR {_plain(pieces)}"


def _options(context: click.Context, heading: str | None) -> list[str]:
    lines = []
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            names, meaning = record
            lines += [".TP", rf"\fB{_plain(names)}\fR", _plain(" ".join(meaning.split()))]
    return [heading, *lines] if heading and lines else lines


def _paragraphs(text: str, first: str = "") -> list[str]:
    """Convert a help text: click keeps the lines of a paragraph that begins with a backspace."""
    lines = []
    for number, each in enumerate(text.strip("\n").split("\n\n")):
        if each.startswith("\b\n"):
            lines += [".PP", ".nf", *(_plain(line) for line in each[2:].rstrip().split("\n")), ".fi"]
        else:
            lines += [".PP" if number else first, _plain(" ".join(each.split()))]
    return [line for line in lines if line]


def _exit_status() -> list[str]:
    return [".SH EXIT STATUS", "0: done. 1: refused or failed, with the reason. 2: wrong usage."]


def _settings() -> str:
    lines = [
        *_title("garlicfarm.toml", 5, "settings of a Garlic Farm node"),
        ".SH SYNOPSIS",
        rf"\fI{_plain(CONFIGURATION_DIRECTORY)}/node.toml\fR, or the file of \fBgarlicfarm run \-\-config\fR",
        ".SH DESCRIPTION",
        r"A TOML file. Every setting except \fBfarm_key\fR has a default. Unknown keys and invalid values are errors,",
        r"reported with their place. A relative path is relative to the file.",
        r"\fBgarlicfarm config show\fR prints all settings with their defaults.",
    ]
    table = None
    for path, each in SETTINGS.items():
        if each.table != table:
            table = each.table
            lines.append(f'.SH "{table.upper() or "AT THE TOP OF THE FILE"}"')
        lines += [".TP", rf"\fB{_plain(path)}\fR", _marked(f"{each.setting.meaning} ({kind_and_default(each)})")]
    lines += [".SH SEE ALSO", r"\fBgarlicfarm\fR(1), \fBgarlicfarm\-run\fR(1), \fBgarlicfarm\-config\fR(1)"]
    return "\n".join(lines) + "\n"


def _marked(text: str) -> str:
    """Convert Markdown of one line: code becomes bold, and a link becomes its text."""
    parts, at = [], 0
    for found in _MARKED.finditer(text):
        marked = rf"\fB{_plain(found[1])}\fR" if found[1] is not None else _plain(found[2])
        parts += [_plain(text[at : found.start()], inside=True), marked]
        at = found.end()
    whole = "".join(parts) + _plain(text[at:], inside=True)
    return rf"\&{whole}" if whole.startswith((".", "'")) else whole


def _plain(text: str, *, inside: bool = False) -> str:
    """Escape text for troff: escapes, requests at the beginning of a line, hyphens that can be copied."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq").replace("`", r"\(ga")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) and not inside else escaped


def main() -> int:
    """Write the pages into the directory that the first argument names."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        (directory / name).write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
