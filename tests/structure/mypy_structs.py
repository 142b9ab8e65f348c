"""A plugin of mypy that checks the fields given to `msgspec.structs.replace`.

msgspec declares `replace(struct, **changes: Any)`, so mypy accepts any name and any type. mypy checks
`dataclasses.replace` against the fields of the class, and reads the fields of a Struct in the same way (PEP 681).
This plugin uses that check for both functions. `pyproject.toml` names it in `[tool.mypy]`.
"""

from collections.abc import Callable

from mypy.plugin import FunctionSigContext, Plugin
from mypy.plugins.dataclasses import replace_function_sig_callback
from mypy.types import FunctionLike


class StructPlugin(Plugin):
    """Gives `msgspec.structs.replace` the signature of `dataclasses.replace`."""

    def get_function_signature_hook(self, fullname: str) -> Callable[[FunctionSigContext], FunctionLike] | None:
        """Return mypy's own check of `dataclasses.replace` for the function of msgspec."""
        return replace_function_sig_callback if fullname == "msgspec.structs.replace" else None


def plugin(_version: str) -> type[Plugin]:
    """Return the plugin; mypy calls this function by its name."""
    return StructPlugin
