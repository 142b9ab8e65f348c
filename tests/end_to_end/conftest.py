"""A farm of three processes, shared by the tests of one file, which may kill its nodes.

The start of a farm takes 0.7 s of processor time; an idle farm takes 0.1 s per second. So the farm ends after the tests
of the file. Its election timeouts are long, for tests of terms and elections on a busy machine.
"""

from collections.abc import Generator, Iterator

import pytest

from tests.end_to_end.farm import Farm, local_farm


@pytest.fixture(scope="module")
def shared_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with local_farm(tmp_path_factory.mktemp("standing"), 3, lan_timing=True) as farm:
        farm.start_all()
        yield farm


@pytest.fixture
def farm(shared_farm: Farm) -> Farm:
    """Return the shared farm. Nodes killed by an earlier test are started again, and known to each other."""
    shared_farm.start_all()
    shared_farm.wait_settled()
    shared_farm.wait_known()
    return shared_farm


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the nodes to the report of a failed test."""
    report = yield
    found = getattr(item, "funcargs", {}).get("farm")
    if report.failed and isinstance(found, Farm):
        report.sections.append(("node logs", found.logs()))
    return report
