"""Groups of commands that store only the name, the place and one line of each command.

The module of a command is imported when the command runs or prints its help. So `--help` and shell completion are quick
on a small machine, and a command loads only its own modules. Other packages add commands by entry points. For their
line of help, the overview and completion import the modules of these commands, which must be small.

The overview shows the commands in sections. The table of a group has one mapping for each section, so each command has
a section.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem
from msgspec import Struct

from bridge import document

_COMMAND = re.compile(r"^## garlicfarm ([a-z-]+) ([a-z-]+)\n\n(.+)$", re.MULTILINE)
_LINE = 100
"""Limit in characters for the line of another package's command."""


class LazyCommand(Struct, frozen=True):
    """The place of a command (`module:attribute`) and its line in the overview."""

    target: str
    summary: str


Sections = Mapping[str, Mapping[str, LazyCommand]]
"""The commands of a group by name, below the heading of each section."""


class AddedCommands(Struct, frozen=True):
    """The commands that other packages register: the group of their entry points, and their section."""

    entry_points: str
    section: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed.

    `sections` are in the order of the overview; the commands of other packages are the last in their section.
    """

    def __init__(self, *arguments: Any, sections: Sections, added: AddedCommands | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._own_sections = sections
        self._own_commands = {name: each for section in sections.values() for name, each in section.items()}
        self._added = added

    @cached_property
    def sections(self) -> Sections:
        """The commands below their headings, with the commands of other packages."""
        if self._added is None:
            return self._own_sections
        # Most commands run without a search for the commands of other packages.
        from importlib.metadata import entry_points  # noqa: PLC0415

        found = {
            each.name: LazyCommand(each.value, _loaded(each.value).get_short_help_str(_LINE))
            for each in entry_points(group=self._added.entry_points)
        }
        own = self._own_sections
        return {**own, self._added.section: {**own[self._added.section], **found}}

    @cached_property
    def lazy_commands(self) -> dict[str, LazyCommand]:
        """The commands by name, in the order of the overview."""
        return {name: each for section in self.sections.values() for name, each in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the overview."""
        del ctx
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        del ctx
        # A search for entry points reads a file of each installed package; most commands do not need it.
        lazy = self._own_commands.get(cmd_name) or self.lazy_commands.get(cmd_name)
        return None if lazy is None else _loaded(lazy.target)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or suggest others.

        Suggestions are commands of this name in subgroups, or commands of this group with similar names.
        """
        name = args[0]
        if name in self._own_commands or name.startswith("-") or name in self.lazy_commands or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        below = self.places_of(name)
        if below:
            raise click.UsageError(f"No such command {name!r}. Did you mean {' or '.join(map(repr, below))}?", ctx)
        raise click.exceptions.NoSuchCommand(name, possibilities=self.lazy_commands, ctx=ctx)

    def places_of(self, name: str) -> list[str]:
        """Return the commands of this name in this group and in its groups, each with its group."""
        here = [name] if name in self.lazy_commands else []
        below = ((group, each) for group, each, _ in _documented_commands() if group in self.lazy_commands)
        return here + [f"{group} {each}" for group, each in below if each == name]

    def commands_below(self, name: str) -> dict[str, str]:
        """Return the documented commands of a group in this group, each with its line of help."""
        return {each: line for group, each, line in _documented_commands() if group == name}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands and of options."""
        found = ((name, each) for name, each in self.lazy_commands.items() if name.startswith(incomplete))
        names = [CompletionItem(name, help=each.summary) for name, each in found]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview."""
        del ctx
        width = max(map(len, self.lazy_commands))
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), lazy.summary) for name, lazy in commands.items()])


def _documented_commands() -> list[tuple[str, str, str]]:
    """Return each group, command and line of help in the reference: an import of all modules would take a second."""
    return _COMMAND.findall(document("reference/commands.md") or "")


def _loaded(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    command = getattr(import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is not a command")
    return command
