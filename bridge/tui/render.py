"""A FarmView as a screen of exactly the given size: pure, so that a test looks at the same lines as an operator.

    header      3 lines, always: the verdict first
    alarms      next in importance
    members     (or, for a local farm, its processes)
    published   who publishes, and the entries
    weights     exclusions, and factors with their age
    events      what is left of the height
    footer      1 line, or 2 for a local farm

When the height does not suffice, each section keeps a few lines and says how many it leaves out; nothing ever scrolls.
"""

from rich.console import Group
from rich.text import Text

from bridge.api.event_words import OF_THE_FARM, StoryTeller
from bridge.api.view import AlarmView, EventView, FarmView, LocalFarmView, best_view
from bridge.tui.layout import COLOURS, MONOCHROME, Canvas, Want, rows, share
from bridge.tui.sections import (
    TITLE,
    Section,
    alarms_section,
    events_section,
    farm_header,
    local_header,
    members_section,
    processes_section,
    publishing_section,
    weights_section,
)

FOOTER = (" q quit    more: garlicfarm status, members, log, lease-set show (--json)",)
LOCAL_FOOTER = " q stops the farm    kill -9 a PID: the others take over; start it again with"
LEAST_WIDTH = 20
LEAST_HEIGHT = 5
LEAST_ROWS = 3
NOTHING = Section(None, [])


def render(view: FarmView, width: int, height: int, *, color: bool = True) -> Group:
    """What one node sees."""
    canvas = _canvas(width, color=color)
    sections = [
        alarms_section(view.alarms, canvas),
        members_section(view, canvas),
        publishing_section(view, canvas),
        weights_section(view.weights, canvas),
        events_section(view.events, canvas),
    ]
    return _screen(farm_header(view, canvas), sections, canvas, height)


def render_local_farm(farm: LocalFarmView, width: int, height: int, *, color: bool = True) -> Group:
    """A whole local farm."""
    canvas = _canvas(width, color=color)
    best = best_view(farm)
    sections = [
        alarms_section(_alarms_of_all(farm), canvas),
        processes_section(farm, canvas),
        NOTHING if best is None else publishing_section(best, canvas),
        NOTHING if best is None else weights_section(best.weights, canvas),
        events_section(_events_of_all(farm), canvas),
    ]
    return _screen(local_header(farm, canvas), sections, canvas, height, (LOCAL_FOOTER, _start_again(farm)))


def render_message(text: str, width: int, height: int, *, color: bool = True) -> Group:
    """In place of a picture: why there is none."""
    canvas = _canvas(width, color=color)
    pieces = (text[at : at + canvas.width] for at in range(0, len(text), canvas.width))
    wrapped = [Section(None, [canvas.line((each, canvas.palette.doubtful))]) for each in pieces]
    return _screen([canvas.line(TITLE)], wrapped, canvas, height)


def _canvas(width: int, *, color: bool) -> Canvas:
    return Canvas(max(width, LEAST_WIDTH), COLOURS if color else MONOCHROME)


def _screen(
    header: list[Text], sections: list[Section], canvas: Canvas, height: int, footer: tuple[str, ...] = FOOTER
) -> Group:
    height, dim = max(height, LEAST_HEIGHT), canvas.palette.dim
    footer = footer[: height - len(header) - 1]
    body_height = height - len(footer)
    wants = []
    for section in sections:
        titles = 0 if section.title is None else 1
        full = titles + len(section.lines) if section.lines else 0
        wants.append(Want(min(full, titles + LEAST_ROWS), full))
    lines = list(header)
    for section, given in zip(sections, share(body_height - len(header), wants), strict=True):
        if given > 0 and section.title is not None:
            lines.append(section.title)
            given -= 1  # noqa: PLW2901 -- the title takes the first of the section's lines
        lines.extend(rows(section.lines, given, dim) if section.counted else section.lines[:given])
    lines = lines[:body_height]
    lines.extend(Text("", end="") for _ in range(body_height - len(lines)))
    lines.extend(canvas.line((each, dim)) for each in footer)
    return Group(Text("\n", end="").join(lines))


def _start_again(farm: LocalFarmView) -> str:
    """The command that starts the router that was killed, or for want of one the first."""
    names = [each.name for each in farm.processes if not each.running] + [each.name for each in farm.processes]
    name = names[0] if names else "node-1"
    return f" {farm.program} run --config {farm.state_directory}/{name}/node.toml"


def _alarms_of_all(farm: LocalFarmView) -> tuple[AlarmView, ...]:
    """Every node's alarms, each once."""
    found = (alarm for each in farm.processes if each.running and each.view is not None for alarm in each.view.alarms)
    return tuple(dict.fromkeys(found))


def _events_of_all(farm: LocalFarmView) -> tuple[EventView, ...]:
    """What the nodes tell, as one story: each fact once, and named after the node what is of one node alone."""
    found = sorted(
        ((event, each.name) for each in farm.processes if each.view is not None for event in each.view.events),
        key=lambda told: told[0].time_ms,
    )
    story = StoryTeller()
    return tuple(
        EventView(event.time_ms, event.kind, event.text if event.kind in OF_THE_FARM else f"{name}: {event.text}")
        for event, name in found
        if story.is_news(event.text, event.time_ms)
    )
