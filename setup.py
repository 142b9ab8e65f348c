"""Build steps beyond pyproject.toml: compiled modules in the platform wheel, the documents in every wheel.

mypyc compiles the typed modules of `compiled` in [tool.garlicfarm] into one extension. It does so only if
GARLICFARM_COMPILED is 1, which `make dist` and `make compiled` set: an editable install, the source distribution and
the pure wheel work without a compiler and run the same modules as Python. The platform wheel has both, and Python
prefers the compiled ones.

pip runs this file twice for a wheel: the first run (`dist_info`) writes only metadata, so it does not need mypyc.

Optimization level 1: steps of the core are twice as fast as at level 0, and as fast as at level 3, which takes a third
longer to compile.

docs/ becomes bridge/docs in a wheel, for `garlicfarm help`. A copy below bridge/ in the repository would be a second
source, and a link does not survive every checkout. An editable install reads docs/ itself.
"""

import gc
import os
import sys
import tomllib
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent


def extensions() -> list[Extension]:
    """Return the extension of all compiled modules, or none."""
    if os.environ.get("GARLICFARM_COMPILED") != "1" or "dist_info" in sys.argv:
        return []
    if sys.platform == "linux":
        # A Python built outside /usr adds its own library path to the linker command. In the wheel (RUNPATH), that path
        # would be missing or wrong on another machine.
        os.environ.setdefault("LDSHARED", f"{os.environ.get('CC', 'cc')} -shared")
    # Only a compiling build needs mypyc.
    from mypyc.build import mypycify  # noqa: PLC0415

    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["garlicfarm"]["compiled"]
    modules = sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})
    made = mypycify(modules, opt_level="1", debug_level="0", target_dir="build/mypyc", group_name="garlicfarm")
    # Without this, Python searches the millions of objects of mypyc for garbage at its end: 9 s of processor time.
    gc.freeze()
    return made


class BuildDocuments(Command):
    """The command that copies the documents into the package (a `SubCommand` of setuptools' `build`)."""

    user_options = ()
    editable_mode = False

    def initialize_options(self) -> None:
        """Leave the directory unset until the other commands are configured."""
        self.build_lib = ""

    def finalize_options(self) -> None:
        """Use the directory of the modules."""
        self.build_lib = self.get_finalized_command("build_py").build_lib

    def get_source_files(self) -> list[str]:
        """Return the files of the source distribution."""
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]

    def get_output_mapping(self) -> dict[str, str]:
        """Return the source path of each document, by its path in the package."""
        place = Path(self.build_lib) / "bridge"
        return {str(place / source): source for source in self.get_source_files()}

    def get_outputs(self) -> list[str]:
        """Return only the paths in the package."""
        return list(self.get_output_mapping())

    def run(self) -> None:
        """Copy the documents, except for an editable install."""
        if self.editable_mode:
            return
        for target, source in self.get_output_mapping().items():
            self.mkpath(str(Path(target).parent))
            self.copy_file(str(ROOT / source), target, preserve_mode=False)


build.sub_commands.append(("build_documents", None))
setup(ext_modules=extensions(), cmdclass={"build_documents": BuildDocuments})
