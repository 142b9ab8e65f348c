"""The build step beyond pyproject.toml: the documents in the wheel.

docs/ becomes bridge/docs in a wheel, for `garlicfarm help`. A copy below bridge/ in the repository would be a second
source, and a link does not survive every checkout. An editable install reads docs/ itself.
"""

from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

ROOT = Path(__file__).parent


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
setup(cmdclass={"build_documents": BuildDocuments})
