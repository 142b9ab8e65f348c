"""Counters of the farm's Kafka topic: results of producers and consumer groups.

They are declared apart from the code that counts, because that code needs the packages of the extra.
"""

from consensus import CountedReason


class TopicEvent(CountedReason):
    """Ordinary events of producers and consumer groups."""

    OFFSETS_WRITTEN = (
        "offsets_written",
        "Offsets of consumer groups that this node has written to the log of the farm. It grows as groups read",
    )
    PRODUCED_DUPLICATES = (
        "produced_duplicates",
        "Records produced a second time and left out, as after a lost answer. It does not need a remedy",
    )
    PRODUCED_PRODUCERS = "produced_producers", "Producers that have requested an id from the Kafka listener"
    PRODUCED_RECORDS = "produced_records", "Records of clients of the Kafka listener that the farm has committed"


class ProduceRefusal(CountedReason):
    """Refused batches of producers, and refused requests for a producer id."""

    EARLY = "early", "requests to a farm whose feature level is too low for producers"
    EXPIRED = "expired", "batches of a producer that the farm no longer knows"
    FENCED = "fenced", "batches of an earlier epoch of their producer"
    FOREIGN = "foreign", "batches with the producer id of another user"
    FORGOTTEN = "forgotten", "copies of records committed too long ago to know their offset"
    INVALID = "invalid", "batches with a record that is not a valid entry"
    NO_LEADER = "no_leader", "batches without a leader to commit them"
    OUT_OF_ORDER = "out_of_order", "batches that do not follow the committed records of their producer"
    OUT_OF_SCOPE = "out_of_scope", "requests of a user without the necessary scope"
    UNKNOWN = "unknown", "requests whose result is unknown: their clients repeat them"
