"""docs/reference/alarms.md, and the alarms in the Prometheus rules, generated from `bridge.api.alarms`.

Each alarm has a separate section: alerts link to it (`deploy/prometheus/garlicfarm.rules.yml`), and `garlicfarm help
alarms KIND` shows only that section. A remedy refers to a document by the command that shows it; the page has links
instead. The rules are a file of the package, written by hand except for two lists of kinds.
"""

import re
import textwrap
from pathlib import Path

from bridge.api.alarms import ALARMS, AlarmType
from bridge.api.verdict import GRAVE_ALARMS, OF_VERDICTS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "garlicfarm.rules.yml"
HEAD = """# Alarms

`garlicfarm status` and `garlicfarm top` show each alarm with its remedy; `/v1/events` has the times when it was raised
and cleared. An alarm is active while its cause lasts; you do not acknowledge it. `garlicfarm help alarms disk-full`
shows one alarm. Prometheus has the alarms as `garlicfarm_alarms`, with ready-made alerts
([prometheus-and-grafana.md](../how-to/prometheus-and-grafana.md)). Critical alarms come first: the node or its farm
does not work.

A node that stops because of an error writes the reason as the last line of its output. [storage.md](storage.md)
explains `the storage … is damaged`; do not delete single files.
"""
WIDTH = 120
_HELP = re.compile(r"`garlicfarm help ([\w-]+)`")


def page() -> str:
    return HEAD + "".join(map(_section, ALARMS.values()))


def rules() -> str:
    """Return the Prometheus rules, with the kinds of alarms for each of the two alerts."""
    of_verdicts = [each.kind for each in OF_VERDICTS]
    text = re.sub(r'(?<=_alarms\{kind=~")[^"]*', "|".join(sorted(GRAVE_ALARMS)), RULES.read_text(encoding="utf-8"))
    return re.sub(r'(?<=_alarms\{kind!~")[^"]*', "|".join([*of_verdicts, *sorted(GRAVE_ALARMS)]), text)


def _section(alarm: AlarmType) -> str:
    periods = f"{alarm.delay_periods} reporting period{'s'[: alarm.delay_periods - 1]}"
    delay = f", after {periods} if the cause may be temporary" if alarm.delay_periods else ""
    happened = f"{_sentence(alarm.happened)} *{alarm.severity.value.capitalize()}{delay}.*"
    return f"\n## `{alarm.kind}`\n\n{_wrapped(happened)}\n\n{_wrapped(f'**Do**: {alarm.remedy}.')}\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _wrapped(text: str) -> str:
    linked = _HELP.sub(_link, text)
    return textwrap.fill(linked, WIDTH, break_long_words=False, break_on_hyphens=False)


def _link(found: re.Match[str]) -> str:
    [document] = (ROOT / "docs").glob(f"*/{found[1]}.md")
    folder = "" if document.parent.name == "reference" else f"../{document.parent.name}/"
    return f"[{document.name}]({folder}{document.name})"
