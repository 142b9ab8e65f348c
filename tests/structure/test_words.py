"""No text holds a word of `words.toml`, except where the list keeps it; the search finds words."""

import pytest

from tests.structure.words import ROOT, Word, find, listed, tracked


def test_no_text_holds_a_word_that_does_not_come_back() -> None:
    words = listed()
    assert [line for path in tracked() for line in find(path, (ROOT / path).read_text(encoding="utf-8"), words)] == []


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("blue door", "the blue door opens"),
        ("blue door", "from farm.blue_door import BlueDoor"),
        ("blue door", "a BLUE_DOOR"),
        ("paint*", "as it paints"),
        ("*room", "red_bedroom"),
        ("*Room", "BedRoom()"),
        ("Chair", "a Chair"),
    ],
)
def test_a_word_is_found_in_prose_and_in_identifiers(word: str, text: str) -> None:
    assert find("a.py", f"\n{text}\n", [Word(word, "plain", ())]) == [f"a.py:2: {word!r} -> plain"]


@pytest.mark.parametrize(
    ("word", "text"), [("room", "roomy"), ("paint*", "repaints"), ("Chair", "a chair"), ("blue door", "a bluedoor")]
)
def test_other_words_are_left_alone(word: str, text: str) -> None:
    assert find("a.py", text, [Word(word, "plain", ())]) == []


def test_a_word_is_found_in_the_name_of_a_file() -> None:
    assert find("farm/blue_door.py", "", [Word("blue door", "plain", ())]) == [
        "farm/blue_door.py:0: 'blue door' -> plain"
    ]


def test_a_word_is_kept_below_its_paths_alone() -> None:
    word = Word("chair", "plain", ("farm/",))
    assert find("farm/core/house.py", "a chair", [word]) == []
    assert find("town/core/house.py", "a chair", [word]) != []
