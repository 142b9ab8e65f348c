"""Compiled modules for the platform wheel; everything else about the package is in pyproject.toml.

mypyc turns the typed modules of [tool.garlicfarm] compiled into one extension. It does so only if GARLICFARM_COMPILED
is 1, which `make dist` and `make compiled` set: an editable install, the source distribution and the pure wheel need no
compiler and run the same modules as Python. The wheel has both, and Python prefers the compiled ones.

Level 1 of optimisation: steps of the core are twice as quick as at level 0 and no slower than at level 3, which takes a
third longer to compile.
"""

import os
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent


def extensions() -> list[Extension]:
    """The extension of all compiled modules, or none."""
    if os.environ.get("GARLICFARM_COMPILED") != "1":
        return []
    # Only a build that compiles needs mypyc.
    from mypyc.build import mypycify  # noqa: PLC0415

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["garlicfarm"]["compiled"]
    modules = sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})
    return mypycify(modules, opt_level="1", debug_level="0", target_dir="build/mypyc", group_name="garlicfarm")


setup(ext_modules=extensions())
