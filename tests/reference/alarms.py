"""docs/reference/alarms.md out of alarms.toml, which says of each alarm what happened and what to do.

tests/structure/test_alarms.py compares its kinds with those that the code can raise. Each alarm is a section of its
own: alerts link to it (`deploy/prometheus/garlicfarm.rules.yml`), and `garlicfarm help alarms KIND` shows it alone.
"""

import textwrap
import tomllib
from pathlib import Path

HEAD = """# Alarms

`garlicfarm status` and `garlicfarm top` show each alarm with what to do; `/v1/events` tells when it was raised and
cleared. An alarm stands as long as its cause does; nothing has to be acknowledged. `garlicfarm help alarms disk-full`
shows one of them. Prometheus has them as `garlicfarm_alarms`, with alerts that come along
([prometheus-and-grafana.md](../how-to/prometheus-and-grafana.md)).

A node that ends by itself writes the reason as the last line of its output. `the storage … is damaged` is explained in
[storage.md](storage.md); do not delete single files.
"""
WIDTH = 120


def described() -> dict[str, tuple[str, str]]:
    """By kind: what happened, and what an operator does."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        return {kind: (texts["happened"], texts["do"]) for kind, texts in tomllib.load(file).items()}


def page() -> str:
    """The document."""
    return HEAD + "".join(_section(kind, happened, do) for kind, (happened, do) in described().items())


def _section(kind: str, happened: str, do: str) -> str:
    return f"\n## `{kind}`\n\n{_paragraph(happened)}\n\n{_paragraph(f'**Do**: {do}')}\n"


def _paragraph(text: str) -> str:
    sentence = f"{text[0].upper()}{text[1:]}."
    return textwrap.fill(sentence, WIDTH, break_long_words=False, break_on_hyphens=False)
