"""Groups of commands that know of each command only a name, where it lives and one line.

The module of a command is imported when the command runs or prints its help. So `--help` and shell completion are quick
on an edge box, and no command loads what only another one needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Where a command lives (`module:attribute`) and what the overview says about it."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed; `lazy_commands` are in the order of the overview."""

    def __init__(self, *arguments: Any, lazy_commands: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of a newcomer's way."""
        del ctx
        return list(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        del ctx
        lazy = self._lazy_commands.get(cmd_name)
        if lazy is None:
            return None
        module, _, attribute = lazy.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{lazy.target} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named, or the ones that its name resembles: click suggests options only."""
        name = args[0]
        if name in self._lazy_commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        similar = get_close_matches(name, self._lazy_commands)
        hint = f" Did you mean {' or '.join(similar)}?" if similar else ""
        return ctx.fail(f"No such command {name!r}.{hint}")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names of commands and of options, without loading anything."""
        found = ((name, each) for name, each in self._lazy_commands.items() if name.startswith(incomplete))
        names = [CompletionItem(name, help=each.summary) for name, each in found]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The overview, without loading anything."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.summary) for name, lazy in self._lazy_commands.items()])
