"""Words that do not come back: names and phrases for which the project has a plain word (`words.toml`).

The table `plain` names each word and what stands in its place. A word is found in prose and in identifiers, because an
underscore counts as a space: "old name" finds `old_name` as well. `*` stands for the rest of a word: "name*" finds
"names". A word with a capital is found only as it is spelled, any other one in any case. All tracked texts are
searched, and the names of the files. `kept` names the paths below which a word stays.

`python -m tests.structure` prints what it finds. `make check` runs it.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.structure.english import PATTERNS
from tests.structure.sources import ROOT, text_of, tracked

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


def check() -> Iterator[str]:
    """Yield the places where a word of the list stands."""
    words = listed()
    for path in tracked():
        # The lists of words are not prose.
        if path.suffix in TEXTS and path not in {LIST, PATTERNS}:
            yield from find(str(path.relative_to(ROOT)), text_of(path), words)
