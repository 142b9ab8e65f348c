"""One farm of three processes for the tests that leave it as they found it."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.farm import Farm, local_farm


@pytest.fixture(scope="session")
def standing_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Three nodes, started once."""
    with local_farm(tmp_path_factory.mktemp("standing"), 3) as farm:
        farm.start_all()
        yield farm


@pytest.fixture
def farm(standing_farm: Farm) -> Farm:
    """The standing farm, in good order: what an earlier test killed has been started again."""
    standing_farm.start_all()
    standing_farm.wait_settled()
    return standing_farm


@pytest.fixture
def unhurried_farm(tmp_path: Path) -> Iterator[Farm]:
    """A farm of the test's own, for what is said about terms and elections on a busy machine."""
    with local_farm(tmp_path / "unhurried", 3, unhurried=True) as farm:
        farm.start_all()
        farm.wait_settled()
        farm.wait_acquainted()
        yield farm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what the nodes wrote."""
    report = yield
    told = getattr(item, "funcargs", {})
    found = told.get("farm", told.get("unhurried_farm"))
    if report.failed and isinstance(found, Farm):
        report.sections.append(("node logs", found.logs()))
    return report
