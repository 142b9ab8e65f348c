"""Rejected words: names and phrases for which the project has a plain word (`words.toml`).

The table `plain` lists each word with its replacement. The check finds words in prose and in identifiers, because an
underscore counts as a space: "old name" also finds `old_name`. `*` matches the rest of a word: "name*" finds "names". A
word with a capital is case-sensitive, all others are not. The check searches all tracked texts and the names of the
files. It skips names of other libraries (`foreign`). `kept` lists paths whose files may contain the word; a path
without the word is a problem, so this list only shrinks.

`python -m tests.structure` prints the places. `make check` runs it.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.structure.english import PATTERNS
from tests.structure.sources import ROOT, text_of, tracked

LIST = Path(__file__).with_name("words.toml")
TEXTS = {"", ".go", ".html", ".java", ".json", ".md", ".mod", ".py", ".pyi", ".sh", ".sql", ".toml", ".txt", ".yml"}


@dataclass(frozen=True, slots=True)
class Word:
    """A word, its replacement, and the paths of permitted uses."""

    word: str
    plain: str
    kept: tuple[str, ...]

    def lines_in(self, text: str, lowered: str) -> Iterator[int]:
        """Yield the numbers of its lines in a text; `lowered` is the same text in small letters."""
        searched = lowered if self.word.islower() else text
        # Most words do not occur: a search for plain letters is much faster than a search for a pattern.
        if self.word.strip("*") in searched:
            pattern = rf"\b{re.escape(self.word)}\b".replace(r"\*", r"\w*")
            for found in re.finditer(pattern, searched):
                yield text.count("\n", 0, found.start())


def listed() -> list[Word]:
    data = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Word(word, plain, tuple(data["kept"].get(word, ()))) for word, plain in data["plain"].items()]


@cache
def foreign() -> tuple[str, ...]:
    """Return the names of other libraries."""
    names = tomllib.loads(LIST.read_text(encoding="utf-8"))["foreign"].values()
    return tuple(name for library in names for name in library)


def find(path: str, content: str, words: list[Word]) -> list[str]:
    """Return a line for each occurrence of a word in a file; line 0 is the name of the file."""
    for name in foreign():
        content = content.replace(name, "")
    text = f"{path}\n{content}".replace("_", " ")
    lowered = text.lower()
    return [
        f"{path}:{line}: {word.word!r} -> {word.plain}"
        for word in words
        if not path.startswith(word.kept)
        for line in word.lines_in(text, lowered)
    ]


def unused(words: list[Word]) -> Iterator[str]:
    texts = {str(path.relative_to(ROOT)): text_of(path) for path in tracked() if path.suffix in TEXTS}
    for word in words:
        everywhere = Word(word.word, word.plain, ())
        for kept in word.kept:
            if not any(find(path, text, [everywhere]) for path, text in texts.items() if path.startswith(kept)):
                yield f"{LIST.relative_to(ROOT)}:1: {word.word!r} does not occur below {kept}: remove it from `kept`"


def check() -> Iterator[str]:
    """Yield the occurrences of words of the list."""
    words = listed()
    yield from unused(words)
    for path in tracked():
        # The lists of words are not prose.
        if path.suffix in TEXTS and path not in {LIST, PATTERNS}:
            yield from find(str(path.relative_to(ROOT)), text_of(path), words)
