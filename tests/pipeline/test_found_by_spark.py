"""Plain Spark finds the sources by its own convention, and a machine without the extra loses no other source by it."""

import importlib
import io
import sys

import pytest
from pyspark.sql.worker import lookup_data_sources

import pyspark_garlicfarm
import pyspark_garlicfarm_events


def test_spark_finds_both_sources_by_their_names_without_a_call_that_registers_them() -> None:
    def with_length() -> bytes:
        return told.read(int.from_bytes(told.read(4), "big"))

    told, look_up = io.BytesIO(), vars(lookup_data_sources)["_main"]
    look_up(io.BytesIO(), told)
    told.seek(0)
    count = int.from_bytes(told.read(4), "big")
    names = [(with_length().decode(), with_length())[0] for _ in range(count)]
    assert {"farm", "farm_events"} <= {*names}


@pytest.mark.parametrize(
    ("package", "module"),
    [(pyspark_garlicfarm, "pipeline.source.farm"), (pyspark_garlicfarm_events, "pipeline.source.events")],
)
def test_without_the_extra_the_package_has_no_source_and_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, package: object, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = vars(package)["__name__"]
    monkeypatch.delitem(sys.modules, name)
    assert not hasattr(importlib.import_module(name), "DefaultSource")
