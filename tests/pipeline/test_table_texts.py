"""The SQL text of each derived table, by its checksum.

The checksum is a part of the name of the table's commits (`pipeline/gold/tables.py`). After any change of the text,
the next run derives the table from the base rows again. A new comment or name of a view is a change, too. Rows of a
table whose base rows were removed by `--keep-days` are lost then. If a formula has to change, record its checksum here,
and describe the new derivation in CHANGELOG.md.
"""

import zlib

from pipeline.gold.tables import FOLDED, GOLD
from pipeline.gold.traces import TRACED

CHECKSUMS = {
    "leaderships": "02ae72b2",
    "publishers": "39b9d0d8",
    "router_health": "de5d31de",
    "destination_health": "03124342",
    "data_quality": "1beb4941",
    "members": "cd940754",
    "detections": "da2cd262",
    "convergence": "5585e997",
}


def test_table_texts_are_unchanged() -> None:
    texts = {name: each.sql for name, each in FOLDED.items()}
    texts |= {name: "".join((each.sql, *each.views.values())) for name, each in (GOLD | TRACED).items()}
    assert {name: f"{zlib.crc32(text.encode()):08x}" for name, text in texts.items()} == CHECKSUMS
