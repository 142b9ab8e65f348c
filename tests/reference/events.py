"""docs/reference/events.md: the kinds of events and their sentences, generated from `bridge.api.events`."""

from collections.abc import Iterator, Mapping

from bridge.api.events import EVENT_TYPES, EventType, is_warning
from bridge.api.trace import Scalar, TraceEvent

HEAD = """# Events

Each node keeps its latest events and writes them to its log. `garlicfarm events` and `top` show them, and
`GET /v1/events` returns them as JSON ([control-endpoint.md](control-endpoint.md)). An event has a kind, the facts as
key and value, and a sentence.

In the sentences below, the key of a fact represents its value, and every optional part is present. An event of an
unlisted kind is printed with its facts. The mark `!` shows a warning: an action failed or was refused, or an alarm was
raised. The node's log has it with the level WARNING. `verdict-changed` is a warning unless the verdict is `ok`.
"""
FARM = """
## About the farm

All nodes report these alike, so several nodes' reports within 15 s are shown once.

| kind | | sentence |
|---|---|---|
"""
NODE = """
## About the node that reports them

| kind | | sentence |
|---|---|---|
"""


class _Placeholders(Mapping[str, Scalar]):
    """Facts with their names as values, so a sentence shows the place of each fact."""

    def __getitem__(self, key: str) -> Scalar:
        return "promote" if key == "step" else f"`{key}`"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def page() -> str:
    return HEAD + FARM + _rows(of_farm=True) + NODE + _rows(of_farm=False)


def _rows(*, of_farm: bool) -> str:
    return "".join(_row(each) for _, each in sorted(EVENT_TYPES.items()) if each.of_farm is of_farm)


def _row(event_type: EventType) -> str:
    sentence = event_type.sentence("`node`", _Placeholders())
    event = TraceEvent(1, 0, None, event_type.kind, "node")
    return f"| `{event_type.kind}` | {'!' if is_warning(event) else ''} | {sentence} |\n"
