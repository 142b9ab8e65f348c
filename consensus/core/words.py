"""Words of texts for operators."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun; `many` is the plural, `one` with an `s` if it is empty."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
