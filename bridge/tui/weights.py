"""The line of what operators and the pipeline add to the reports: exclusions, and factors with their age."""

from bridge.api.view import WeightsView
from bridge.tui.layout import Cell, line
from bridge.tui.sections import Palette, Section
from bridge.tui.words import duration, short_address


def weights_section(weights: WeightsView, width: int, palette: Palette) -> Section:
    """One line, and none where nobody has said anything: what matters comes first, `garlicfarm farm` has it all."""
    cells = [Cell(f" excluded {short_address(each.destination)}", palette.bad) for each in weights.excluded]
    cells += [
        Cell(f" {short_address(each.destination)} x {each.factor:g} by an operator", palette.doubtful)
        for each in weights.costs
    ]
    cells += [
        Cell(f" {short_address(each.destination)} x {each.factor:g} by the pipeline {duration(each.age_ms)} ago")
        for each in weights.factors
    ]
    return Section(None, [line([Cell("WEIGHTS", palette.title), *cells], width)] if cells else [])
