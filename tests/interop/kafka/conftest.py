"""Stories that need librdkafka's Python package are collected only if the extra `interop-kafka` is installed.

`make test` also collects this folder, and deselects its stories because of their mark.
"""

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("confluent_kafka") is not None
    else [
        "test_farm_quorum.py",
        "test_groups.py",
        "test_how_to.py",
        "test_librdkafka_batches.py",
        "test_librdkafka_groups.py",
        "test_other_clients.py",
        "test_pipeline_of_topic.py",
        "test_readers.py",
        "test_stock_consumers.py",
        "test_stock_producers.py",
    ]
)
