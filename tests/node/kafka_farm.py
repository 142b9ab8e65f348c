"""A farm with a Kafka listener: the log of a stage as a topic, and helpers that read it."""

from types import SimpleNamespace
from typing import Any, cast

from msgspec.structs import replace

from bridge.core.log.feature_level import KAFKA_LEVEL
from bridge.node.founded_farm import CurrentFarm, FoundedFarm
from bridge.node.kafka.farm_topic import FarmTopic
from bridge.node.kafka.listed_users import ListedUsers
from bridge.node.kafka.producing import Producing
from bridge.node.raft.replica import Replica
from bridge.node.raft.submitting import Submitting
from bridge.node.settings.clients import KafkaSettings
from consensus.protocols.kafka.wire.record_batches import read_batches
from consensus.protocols.kafka.wire.records import RecordBatch
from gossip import Address
from tests.authored import CLUSTER_ID
from tests.node.farm_stage import Stage
from tests.node.partial_farm import partial_farm

HERE = Address("127.0.0.1", 9092)
SETTINGS = KafkaSettings(listen=HERE, advertise=HERE)


def stage_at(level: int = KAFKA_LEVEL) -> Stage:
    stage = Stage()
    farm = stage.applied_state.farm
    farm.state = replace(farm.state, level=level)
    return stage


def named_stage() -> Stage:
    stage = stage_at()
    farm = stage.applied_state.farm
    names = ("one", "two", "three")
    admitted = {
        number: replace(each, name=name)
        for (number, each), name in zip(sorted(farm.state.admitted.items()), names, strict=True)
    }
    farm.state = replace(farm.state, admitted=admitted)
    return stage


def farm_of(stage: Stage) -> FoundedFarm:
    """Return the parts of a farm that a listener uses."""
    replica = cast("Replica", stage.replica)
    submitting = Submitting(replica, stage.applied_state, stage.signer, "submit-01-1")
    farm = partial_farm(stage.applied_state, replica=replica, signer=stage.signer, submitting=submitting)
    founding: Any = SimpleNamespace(cluster_id=CLUSTER_ID)
    return replace(farm, known=replace(farm.known, founding=founding))


def topic_of(
    stage: Stage, settings: KafkaSettings = SETTINGS, users: ListedUsers | None = None, *, is_server: bool = True
) -> FarmTopic:
    current = CurrentFarm(farm_of(stage) if is_server else None)
    return FarmTopic(current, settings, settings.advertise, Producing(current, users, stage.alarms), None)


async def batches(topic: FarmTopic, offset: int = 0, max_bytes: int = 2**20) -> list[RecordBatch]:
    return read_batches(await topic.read(offset, max_bytes))
