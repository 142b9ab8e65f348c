"""docs/reference/router-report.md: the figures of `router` in a report, generated from `bridge.core.log.figures`."""

from bridge.api.view import SHOWN
from bridge.core.log.figures import FIGURES, Figure, Unit

HEAD = """# The figures of a router

The table has the keys of `router` in a report ([application-json.md](application-json.md)). It also has their names in
the [view](json.md#reportview) and in the table `reports` of the [pipeline](pipeline-tables.md). Reports omit figures
that their kind of router lacks. I2P proposal 150 defines the keys marked **P**. In the columns *file*, *Java* and
*i2pd*, *yes* means that the router measures the figure, and *no* that it is not measured. *host* means that the host or
the node measures it. *newer* means a Java router whose I2PControl has the key.

| key | meaning | unit, range | source | file | Java | i2pd | view | column |
|---|---|---|---|---|---|---|---|---|
"""
ATTACHED = ("`attached`", "The node's router replies to GetDate of I2CP; true if left out", "boolean", "router")
ROUTER_INFO = ("`lastPublishedRI` **P**", "RouterInfo; only if it changed, and once an hour", "I2P base64", "router")


def page() -> str:
    rows = [
        (*ATTACHED, "demo", "yes", "yes", "`attached`", "`attached`"),
        *map(_row, FIGURES.values()),
        (*ROUTER_INFO, "no", "newer", "no", "", ""),
    ]
    return HEAD + "".join(f"| {' | '.join(each)} |\n" for each in rows)


def _row(figure: Figure) -> tuple[str, ...]:
    key = f"`{figure.key}`{' **P**' * figure.of_proposal}"
    unit = "0 to 100 %" if figure.unit is Unit.PERCENT else figure.unit.value or "count"
    view = f"`{_camel(figure.name)}`" if figure in SHOWN else ""
    column = figure.column or figure.name
    return key, figure.meaning, unit, figure.source, *figure.kinds, view, f"`{column}`"


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
