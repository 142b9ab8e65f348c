"""Groups of commands that store only the name, the place and one line of each command.

The module of a command is imported when the command runs or prints its help. So `--help` and shell completion are quick
on an edge box, and no command loads what only another one needs. Other packages add commands by entry points; the
overview and completion load these for their line, so their modules must be small.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points as installed_entry_points
from typing import Any

import click
from click.shell_completion import CompletionItem

_LINE = 100
"""Characters of a command's line in the overview, at most."""


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """The place of a command (`module:attribute`) and its line in the overview."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed.

    `lazy_commands` are in the order of the overview; the commands of the group `entry_points` follow them.
    """

    def __init__(
        self,
        *arguments: Any,
        lazy_commands: Mapping[str, LazyCommand],
        entry_points: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._own_commands = lazy_commands
        self._entry_points = entry_points

    @cached_property
    def lazy_commands(self) -> dict[str, LazyCommand]:
        """The commands by name, in the order of the overview."""
        added = () if self._entry_points is None else installed_entry_points(group=self._entry_points)
        found = {each.name: LazyCommand(each.value, _loaded(each.value).get_short_help_str(_LINE)) for each in added}
        return {**self._own_commands, **found}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of use by a newcomer."""
        del ctx
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        del ctx
        # A search for entry points reads a file of each installed package, which most commands need not wait for.
        lazy = self._own_commands.get(cmd_name) or self.lazy_commands.get(cmd_name)
        return None if lazy is None else _loaded(lazy.target)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command, or suggest commands with similar names: click suggests options only."""
        name = args[0]
        if name in self._own_commands or name.startswith("-") or name in self.lazy_commands:
            return super().resolve_command(ctx, args)
        similar = get_close_matches(name, self.lazy_commands)
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        return ctx.fail(f"No such command {name!r}.{hint}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names of commands and of options."""
        found = ((name, each) for name, each in self.lazy_commands.items() if name.startswith(incomplete))
        names = [CompletionItem(name, help=each.summary) for name, each in found]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the overview."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self.lazy_commands.items()])


def _loaded(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    command = getattr(import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"{target} is not a command")
    return command
