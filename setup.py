"""What setuptools makes beyond pyproject.toml: compiled modules in the platform wheel, the documents in every wheel.

mypyc turns the typed modules of [tool.garlicfarm] compiled into one extension. It does so only if GARLICFARM_COMPILED
is 1, which `make dist` and `make compiled` set: an editable install, the source distribution and the pure wheel need no
compiler and run the same modules as Python. The wheel has both, and Python prefers the compiled ones.

Level 1 of optimization: steps of the core are twice as quick as at level 0 and no slower than at level 3, which takes a
third longer to compile.

docs/ becomes bridge/docs in a wheel, for `garlicfarm help`. A copy below bridge/ in the repository would be a second
truth, and a link does not survive every checkout. An editable install is read in docs/ itself.
"""

import os
import sys
import tomllib
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent


def extensions() -> list[Extension]:
    """Return the extension of all compiled modules, or none."""
    if os.environ.get("GARLICFARM_COMPILED") != "1":
        return []
    if sys.platform == "linux":
        # A Python that was built elsewhere than in /usr has its own library path in the command that links. It would
        # stand in the wheel (RUNPATH), where it means nothing on another machine, or something else.
        os.environ.setdefault("LDSHARED", f"{os.environ.get('CC', 'cc')} -shared")
    # Only a build that compiles needs mypyc.
    from mypyc.build import mypycify  # noqa: PLC0415

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["garlicfarm"]["compiled"]
    modules = sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})
    return mypycify(modules, opt_level="1", debug_level="0", target_dir="build/mypyc", group_name="garlicfarm")


class BuildDocuments(Command):
    """Copies the documents into the package (a `SubCommand` of setuptools' `build`)."""

    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        """Nothing is known before the other commands have settled."""
        self.build_lib = ""

    def finalize_options(self) -> None:
        """Use the directory of the modules."""
        self.build_lib = self.get_finalized_command("build_py").build_lib

    def get_source_files(self) -> list[str]:
        """Return the files of the source distribution."""
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]

    def get_output_mapping(self) -> dict[str, str]:
        """Where each document goes, and where it comes from."""
        place = Path(self.build_lib) / "bridge"
        return {str(place / source): source for source in self.get_source_files()}

    def get_outputs(self) -> list[str]:
        """Return the paths only."""
        return list(self.get_output_mapping())

    def run(self) -> None:
        """Copy them, unless the checkout itself is what is installed."""
        if self.editable_mode:
            return
        for target, source in self.get_output_mapping().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(str(ROOT / source), target, preserve_mode=False)


build.sub_commands.append(("build_documents", None))
setup(ext_modules=extensions(), cmdclass={"build_documents": BuildDocuments})
