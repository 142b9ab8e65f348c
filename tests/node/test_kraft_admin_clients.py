"""Requests of admin clients to the client listener: settings, and the cluster as brokers or as controllers."""

import pytest

from consensus.protocols.kafka.topic.configs_service import ConfigsService
from consensus.protocols.kafka.topic.consumer_service import ConsumerService
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.codec import decode_response, encode_response
from tests.node.kraft_topic import MemoryTopic, caller

TOPIC, BROKER = 2, 4


def service() -> ConfigsService:
    return ConfigsService(MemoryTopic(), max_request_bytes=65_536, has_server_time=True)


async def described(
    kind: int, name: str, keys: tuple[str, ...] | None = None, **given: bool
) -> admin.DescribeConfigsResponseResult:
    resource = admin.DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    response = await service().describe_configs(admin.DescribeConfigsRequest(resources=(resource,), **given), caller(4))
    for version in range(VERSIONS[ApiKey.DESCRIBE_CONFIGS][0], VERSIONS[ApiKey.DESCRIBE_CONFIGS][1] + 1):
        frame = encode_response(ApiKey.DESCRIBE_CONFIGS, version, 1, response)
        decoded = decode_response(ApiKey.DESCRIBE_CONFIGS, version, frame)[1]
        assert [each.name for each in decoded.results[0].configs] == [each.name for each in response.results[0].configs]
    [result] = response.results
    return result


async def test_topic_settings_are_read_only() -> None:
    found = await described(TOPIC, "farm")
    assert found.error_code == ErrorCode.NONE
    assert {each.name: each.value for each in found.configs} == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "max.message.bytes": "65536",
        "message.timestamp.type": "LogAppendTime",
    }
    assert all(each.read_only and not each.is_sensitive and each.synonyms == () for each in found.configs)


async def test_server_describes_its_own_settings() -> None:
    found = await described(BROKER, "1", include_synonyms=True)
    assert {each.name: each.value for each in found.configs}["node.id"] == "1"
    assert all([synonym.name for synonym in each.synonyms] == [each.name] for each in found.configs)


@pytest.mark.parametrize(
    ("keys", "names"), [(("node.id", "unknown"), ["node.id"]), ((), None), (None, None)], ids=["some", "empty", "null"]
)
async def test_described_settings_are_filtered_by_name(keys: tuple[str, ...] | None, names: list[str] | None) -> None:
    found = [each.name for each in (await described(BROKER, "1", keys)).configs]
    assert found == names if names is not None else len(found) > 3


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "", ErrorCode.NONE),
        (8, "1", ErrorCode.INVALID_REQUEST),
    ],
    ids=["topic", "broker", "default", "logger"],
)
async def test_resource_without_settings_is_empty_or_refused(kind: int, name: str, error: ErrorCode) -> None:
    found = await described(kind, name)
    assert (found.error_code, found.configs) == (error, ())


@pytest.mark.parametrize("endpoint_type", [1, 2])
async def test_servers_are_brokers_and_controllers(endpoint_type: int) -> None:
    request = admin.DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    found = await ConsumerService(MemoryTopic()).describe_cluster(request, caller(2))
    assert (found.error_code, found.endpoint_type, found.controller_id) == (ErrorCode.NONE, endpoint_type, 1)
    assert [each.broker_id for each in found.brokers] == [1, 2]


async def test_unknown_endpoint_type_is_refused() -> None:
    request = admin.DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=3)
    found = await ConsumerService(MemoryTopic()).describe_cluster(request, caller(2))
    assert (found.error_code, found.brokers) == (ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, ())
