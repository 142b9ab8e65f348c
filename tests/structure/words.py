"""Words that do not come back: names and phrases for which the project has a plain word (`words.toml`).

The table `plain` names each word and what stands in its place. A word is found in prose and in identifiers, because an
underscore counts as a space: "old name" finds `old_name` as well. `*` stands for the rest of a word: "name*" finds
"names". A word with a capital is found only as it is spelled, any other one in any case. All tracked texts are
searched, and the names of the files. `kept` names the paths below which a word stays.

`python -m tests.structure.words` prints what it finds and then ends with status 1. `make check` runs it.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("words.toml")
TEXTS = {"", ".go", ".java", ".json", ".md", ".mod", ".py", ".toml", ".txt"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word, what stands in its place, and the paths below which it stays."""

    word: str
    plain: str
    kept: tuple[str, ...]

    def lines_in(self, text: str, lowered: str) -> Iterator[int]:
        """The lines on which it stands in a text, and in the same text in small letters."""
        searched = lowered if self.word.islower() else text
        # Most words stand in no file: a search for plain letters is much faster than one for a pattern.
        if self.word.strip("*") in searched:
            pattern = rf"\b{re.escape(self.word)}\b".replace(r"\*", r"\w*")
            for found in re.finditer(pattern, searched):
                yield text.count("\n", 0, found.start())


def listed() -> list[Word]:
    """What the list says."""
    data = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Word(word, plain, tuple(data["kept"].get(word, ()))) for word, plain in data["plain"].items()]


def tracked() -> list[str]:
    """The texts of the repository, by their paths from its root; the list itself is none of them."""
    command = ["git", "ls-files", "-z"]
    paths = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [
        path for path in paths if path and Path(path).suffix in TEXTS and ROOT / path != LIST and (ROOT / path).exists()
    ]


def find(path: str, content: str, words: list[Word]) -> list[str]:
    """A line for each place in a file where one of the words stands; line 0 is the name of the file."""
    text = f"{path}\n{content}".replace("_", " ")
    lowered = text.lower()
    return [
        f"{path}:{line}: {word.word!r} -> {word.plain}"
        for word in words
        if not path.startswith(word.kept)
        for line in word.lines_in(text, lowered)
    ]


def main() -> int:
    """Print what is found; returns the status of the process."""
    words = listed()
    found = [line for path in tracked() for line in find(path, (ROOT / path).read_text(encoding="utf-8"), words)]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
