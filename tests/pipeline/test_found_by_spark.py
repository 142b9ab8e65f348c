"""Discovery of the sources by Spark's naming convention, without a registration call.

Spark imports every package named `pyspark_*`. Our two packages must be importable without the extra `pipeline`, because
an ImportError would disable the sources of all other packages.
"""

import importlib
import io
import sys

import pytest
from pyspark.sql.worker import lookup_data_sources

import pyspark_garlicfarm
import pyspark_garlicfarm_events


def test_spark_discovers_both_sources_by_name() -> None:
    def read_field() -> bytes:
        return output.read(int.from_bytes(output.read(4), "big"))

    output, look_up = io.BytesIO(), vars(lookup_data_sources)["_main"]
    look_up(io.BytesIO(), output)
    output.seek(0)
    count = int.from_bytes(output.read(4), "big")
    names = [(read_field().decode(), read_field())[0] for _ in range(count)]
    assert {"farm", "farm_events"} <= {*names}


@pytest.mark.parametrize(
    ("package", "module"),
    [(pyspark_garlicfarm, "pipeline.source.farm"), (pyspark_garlicfarm_events, "pipeline.source.events")],
)
def test_package_is_importable_without_the_extra(monkeypatch: pytest.MonkeyPatch, package: object, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = vars(package)["__name__"]
    monkeypatch.delitem(sys.modules, name)
    assert not hasattr(importlib.import_module(name), "DefaultSource")
