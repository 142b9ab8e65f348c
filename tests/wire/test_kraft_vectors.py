"""The codec of KRaft against frames that Apache Kafka sent, in `tests/vectors/kraft.json`.

    frame ─▶ decode ─▶ a message ─▶ encode ─▶ the same frame

The file says who sent them, and `tests/interop/kafka/record_vectors.py` records it anew. All of them are symmetric:
Kafka 4.1 and the two other clients send no tagged field that the codec does not have, and spell nothing in two ways.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey
from consensus.protocols.kafka.wire.codec import decode_request, decode_response, encode_request, encode_response

VECTORS: Final = json.loads((Path(__file__).parents[1] / "vectors" / "kraft.json").read_text(encoding="utf-8"))
STORIES: Final[dict[str, dict[str, Any]]] = VECTORS["stories"]
EXCHANGES: Final = [
    pytest.param(exchange, id=f"{story} {number} {exchange['name']} v{exchange['version']}")
    for story, told in STORIES.items()
    for number, exchange in enumerate(told["exchanges"])
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


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_request_is_read_and_written_as_kafka_does(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["request"])
    incoming = decode_request(frame)
    assert (incoming.api_key, incoming.api_version) == (exchange["api"], exchange["version"])
    again = encode_request(
        incoming.api_key, incoming.api_version, incoming.correlation_id, incoming.client_id, incoming.message
    )
    assert again == frame


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_response_is_read_and_written_as_kafka_does(exchange: dict[str, Any]) -> None:
    frame = bytes.fromhex(exchange["response"])
    correlation_id, message = decode_response(exchange["api"], exchange["version"], frame)
    assert correlation_id == decode_request(bytes.fromhex(exchange["request"])).correlation_id
    assert encode_response(exchange["api"], exchange["version"], correlation_id, message) == frame


def test_what_controllers_and_clients_say_to_one_another_is_among_the_frames() -> None:
    said = {story: {each["api"] for each in told["exchanges"]} for story, told in STORIES.items()}
    assert said["static quorum"] | said["dynamic quorum"] >= OF_QUORUMS
    assert said["broker"] >= OF_CLIENTS
    assert all(api_key in VERSIONS for apis in said.values() for api_key in apis)
