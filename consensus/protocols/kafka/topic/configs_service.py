"""The settings of a topic and of a server for Kafka's tools: the API DescribeConfigs (key 32).

    kafka-configs --describe, kafka-topics --describe, admin clients ─▶ TOPIC name │ BROKER id ─▶ read-only settings

Many tools request settings first, and end with "broker too old" without this API. The reply has only settings that are
in effect. Examples are the clean-up policy (`delete`: the topic is cut at its start), the source of timestamps, and the
largest request. All are read-only, and none is a secret. They are changed in the server's own configuration, not by
this protocol.

This is a separate module because operators' tools use it; producers and consumers use the other services.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import trio

from consensus.protocols.kafka.connections.service import Caller, ServedApi, Service
from consensus.protocols.kafka.topic.served_topic import ServedTopic, TopicState
from consensus.protocols.kafka.wire import messages_admin as admin
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode


class _Resource(IntEnum):
    """Resources with settings."""

    TOPIC = 2
    BROKER = 4


class _Type(IntEnum):
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LIST = 7


_STATIC: Final = 4
"""The source of a setting: the server's own configuration."""
_DEFAULT: Final = 5
"""The source of a setting: it is not set for this topic."""

_Settings = Mapping[str, tuple[str, _Type]]


class ConfigsService(Service):
    """A `Service` for DescribeConfigs of one topic and for this server."""

    def __init__(self, topic: ServedTopic, *, max_request_bytes: int, has_server_time: bool) -> None:
        """Make the service; `has_server_time` is True if records have the server's timestamps, not the clients'."""
        self._topic = topic
        self._max_request_bytes = max_request_bytes
        self._has_server_time = has_server_time

    def apis(self) -> Mapping[int, ServedApi]:
        """Return DescribeConfigs."""
        return {ApiKey.DESCRIBE_CONFIGS: ServedApi(*VERSIONS[ApiKey.DESCRIBE_CONFIGS], self.describe_configs)}

    async def describe_configs(
        self, request: admin.DescribeConfigsRequest, caller: Caller
    ) -> admin.DescribeConfigsResponse:
        """Return the requested settings of each resource, or an error if this server does not have the resource.

        The default of all brokers (an empty name) does not have settings.
        """
        del caller
        await trio.lowlevel.checkpoint()
        state = self._topic.state()
        return admin.DescribeConfigsResponse(
            results=tuple(self._result(state, each, request) for each in request.resources)
        )

    def _result(
        self, state: TopicState, resource: admin.DescribeConfigsRequestResource, request: admin.DescribeConfigsRequest
    ) -> admin.DescribeConfigsResponseResult:
        error, text, settings, source = ErrorCode.NONE, None, dict[str, tuple[str, _Type]](), _DEFAULT
        match resource.resource_type:
            case _Resource.TOPIC if resource.resource_name == state.name:
                settings = dict(self._of_topic())
            case _Resource.TOPIC:
                error, text = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic here is {state.name}"
            case _Resource.BROKER if resource.resource_name == str(state.node_id):
                settings, source = dict(self._of_server(state)), _STATIC
            case _Resource.BROKER if not resource.resource_name:
                pass  # the default of all brokers, which cannot be set
            case _Resource.BROKER:
                error, text = (
                    ErrorCode.INVALID_REQUEST,
                    f"this is broker {state.node_id}: send the request to the named broker",
                )
            case _:
                error, text = ErrorCode.INVALID_REQUEST, "only topics and brokers have settings here"
        requested_names = resource.configuration_keys
        return admin.DescribeConfigsResponseResult(
            error_code=error,
            error_message=text,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=tuple(
                _setting(name, value, kind, source, has_synonyms=request.include_synonyms)
                for name, (value, kind) in settings.items()
                if not requested_names or name in requested_names
            ),
        )

    def _of_topic(self) -> _Settings:
        return {
            "cleanup.policy": ("delete", _Type.LIST),
            "compression.type": ("uncompressed", _Type.STRING),
            "max.message.bytes": (str(self._max_request_bytes), _Type.INT),
            "message.timestamp.type": ("LogAppendTime" if self._has_server_time else "CreateTime", _Type.STRING),
        }

    def _of_server(self, state: TopicState) -> _Settings:
        return {
            "node.id": (str(state.node_id), _Type.INT),
            "auto.create.topics.enable": ("false", _Type.BOOLEAN),
            "delete.topic.enable": ("false", _Type.BOOLEAN),
            "message.max.bytes": (str(self._max_request_bytes), _Type.INT),
            "num.partitions": ("1", _Type.INT),
        }


def _setting(
    name: str, value: str, kind: _Type, source: int, *, has_synonyms: bool
) -> admin.DescribeConfigsResponseConfig:
    synonym = admin.DescribeConfigsResponseSynonym(name=name, value=value, source=source)
    return admin.DescribeConfigsResponseConfig(
        name=name,
        value=value,
        read_only=True,
        config_source=source,
        is_sensitive=False,
        synonyms=(synonym,) if has_synonyms else (),
        config_type=kind,
        documentation=None,
    )
