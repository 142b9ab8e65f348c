"""The codec of KRaft against frames that Apache Kafka sent, in `tests/vectors/kraft.json`.

    frame ─▶ decode ─▶ a message ─▶ encode ─▶ the same frame

The file names the sender of each frame; `tests/interop/kafka/record_vectors.py` records it again. All frames
round-trip: Kafka 4.1, librdkafka and kafka-python send only tagged fields that the codec has, and spell each value in
one way.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.codec import decode_request, decode_response, encode_request, encode_response
from tests.effort import each_case

VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors" / "kraft.json").read_text(encoding="utf-8"))
STORIES: Final[dict[str, dict[str, Any]]] = VECTORS["stories"]
EXCHANGES: Final = [
    pytest.param(exchange, id=f"{story} {number} {exchange['name']} v{exchange['version']}")
    for story, recording in STORIES.items()
    for number, exchange in enumerate(recording["exchanges"])
]
OF_QUORUMS: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.CONTROLLER_REGISTRATION,
    ApiKey.UPDATE_RAFT_VOTER,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
}
OF_CLIENTS: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.FETCH,
    ApiKey.PRODUCE,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
}


@each_case("exchange", EXCHANGES)
def test_request_of_kafka_round_trips(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["request"])
    incoming = decode_request(frame)
    assert (incoming.api_key, incoming.api_version) == (exchange["api"], exchange["version"])
    again = encode_request(
        incoming.api_key, incoming.api_version, incoming.correlation_id, incoming.client_id, incoming.message
    )
    assert again == frame


@each_case("exchange", EXCHANGES)
def test_response_of_kafka_round_trips(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["response"])
    correlation_id, message = decode_response(exchange["api"], exchange["version"], frame)
    assert correlation_id == decode_request(bytes.fromhex(exchange["request"])).correlation_id
    assert encode_response(exchange["api"], exchange["version"], correlation_id, message) == frame


def test_frames_include_apis_of_controllers_and_clients() -> None:
    apis_of = {story: {each["api"] for each in recording["exchanges"]} for story, recording in STORIES.items()}
    assert apis_of["static quorum"] | apis_of["dynamic quorum"] >= OF_QUORUMS
    assert apis_of["broker"] >= OF_CLIENTS
    assert all(api_key in VERSIONS for apis in apis_of.values() for api_key in apis)
