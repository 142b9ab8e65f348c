"""Requests of consumer groups: their coordinator, their members, the assignments, and the committed offsets.

    FindCoordinator                                   ─▶ the leader of the log, on the listener for clients
    JoinGroup, SyncGroup, Heartbeat, LeaveGroup       ─▶ `GroupCoordinator`: members, in the leader's memory
    OffsetCommit, OffsetFetch                         ─▶ `GroupOffsets`: entries of the log
    ListGroups, DescribeGroups                        ─▶ both

This is the classic protocol, not the protocol of KIP-848. The APIs are served if the topic can store offsets
(`ServedTopic.groups`).

*In order.* Requests of one connection are served in order, and JoinGroup and SyncGroup wait for other members. Clients
have a separate connection for their coordinator, so fetching continues. A waiting member counts as alive.

*A commit is held* so that one entry serves several commits of its group. Commits and heartbeats of a connection
overlap, so that several commits can wait together. Replies leave in order, so the reply to a heartbeat waits for the
replies to earlier commits. Therefore a commit waits for at most a tenth of its group's session. A client without a
session may wait longer (`GroupOptions.max_hold_ms`).

*Offsets are acknowledged when their entries are committed.* A client without a group (`assign`) may commit offsets
under a group's name while the group is empty, as in Kafka.
"""

from collections.abc import Mapping
from typing import Any, Final

import trio

from consensus.protocols.kafka.connections.service import Answer, Caller, ServedApi, Service
from consensus.protocols.kafka.groups.coordinator import GroupCoordinator, GroupOptions
from consensus.protocols.kafka.groups.group import (
    Assigned,
    ConsumerGroup,
    GroupState,
    Joined,
    JoinRequest,
    MemberRef,
    Refused,
)
from consensus.protocols.kafka.topic.served_topic import (
    CommittedOffset,
    GroupOffsets,
    ProduceRefusedError,
    ServedTopic,
)
from consensus.protocols.kafka.wire import messages_groups as groups
from consensus.protocols.kafka.wire.apis import VERSIONS, ApiKey, ErrorCode
from consensus.protocols.kafka.wire.limits import NO_REPLICA, PARTITION
from consensus.server.errors import ServerBusyError, ServerStoppedError

_GROUP_KEY: Final = 0
"""The key type of groups in FindCoordinator."""
_CLASSIC: Final = "classic"
_DEAD: Final = "Dead"
_NO_OFFSET: Final = -1
_FIRST_FIND_OF_SEVERAL: Final = 4
_FIRST_JOIN_WITH_KNOWN_ID: Final = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
_FIRST_JOIN_THAT_SKIPS: Final = 9
_FIRST_LEAVE_OF_SEVERAL: Final = 3
_FIRST_OFFSET_FETCH_OF_SEVERAL: Final = 8
_FIRST_DESCRIBE_WITH_NOT_FOUND: Final = 6
_OVERLAPPING: Final = frozenset({ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT})
_ALWAYS: Final = frozenset({ApiKey.LIST_GROUPS})
"""APIs that tools send to every broker, even without groups."""
_COMMIT_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""The error code of a group for each error of the topic."""


class GroupService(Service):
    """A `Service` of a listener for the consumer groups of one topic."""

    def __init__(self, topic: ServedTopic, options: GroupOptions | None = None) -> None:
        self._topic = topic
        self._options = options or GroupOptions()
        self._coordinator = GroupCoordinator(topic, self._options)
        answers: dict[int, Answer] = {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
        }
        self._apis = {
            key: ServedApi(*VERSIONS[key], answer, overlaps=key in _OVERLAPPING) for key, answer in answers.items()
        }

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the APIs of groups if the topic keeps offsets; otherwise only the list of groups, which is empty."""
        return {key: self._apis[key] for key in self._apis if self._topic.groups() is not None or key in _ALWAYS}

    async def find_coordinator(
        self, request: groups.FindCoordinatorRequest, caller: Caller
    ) -> groups.FindCoordinatorResponse:
        """Return the leader of the log, for any group."""
        keys = request.coordinator_keys if caller.api_version >= _FIRST_FIND_OF_SEVERAL else (request.key,)
        found = tuple(self._coordinator_of(request.key_type, key) for key in keys)
        if caller.api_version >= _FIRST_FIND_OF_SEVERAL:
            return groups.FindCoordinatorResponse(coordinators=found)
        [one] = found
        return groups.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _coordinator_of(self, key_type: int, key: str) -> groups.FindCoordinatorResponseCoordinator:
        if key_type != _GROUP_KEY:
            error, text = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served"
        elif not key:
            error, text = ErrorCode.INVALID_GROUP_ID, "a group must have a name"
        else:
            state = self._topic.state()
            for broker in state.brokers:
                if broker.node_id == state.controller_id:
                    return groups.FindCoordinatorResponseCoordinator(
                        key=key, node_id=broker.node_id, host=broker.host, port=broker.port
                    )
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            text = "the leader is unknown now, or does not have a listener for clients"
        return groups.FindCoordinatorResponseCoordinator(
            key=key, node_id=NO_REPLICA, host="", port=NO_REPLICA, error_code=error, error_message=text
        )

    async def join_group(self, request: groups.JoinGroupRequest, caller: Caller) -> groups.JoinGroupResponse:
        """Add a member; wait for the other members."""
        timeout_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms
        answer = await self._coordinator.join(
            request.group_id,
            JoinRequest(
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=caller.client_id,
                client_host=caller.host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=min(timeout_ms, self._options.max_rebalance_timeout_ms),
                protocol_type=request.protocol_type,
                protocols=tuple((each.name, each.metadata) for each in request.protocols),
                needs_known_id=caller.api_version >= _FIRST_JOIN_WITH_KNOWN_ID,
                may_skip_assignment=caller.api_version >= _FIRST_JOIN_THAT_SKIPS,
                principal=caller.principal,
            ),
        )
        if isinstance(answer, Joined):
            return groups.JoinGroupResponse(
                generation_id=answer.generation,
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol_name,
                leader=answer.leader_id,
                skip_assignment=answer.skips_assignment,
                member_id=answer.member_id,
                members=tuple(
                    groups.JoinGroupResponseMember(
                        member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata
                    )
                    for each in answer.members
                ),
            )
        refused = answer if isinstance(answer, Refused) else Refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        return groups.JoinGroupResponse(
            error_code=refused.error,
            protocol_name=None if caller.api_version >= _FIRST_JOIN_WITH_NULL_PROTOCOL else "",
            leader="",
            member_id=refused.member_id or request.member_id,
            members=(),
        )

    async def sync_group(self, request: groups.SyncGroupRequest, caller: Caller) -> groups.SyncGroupResponse:
        """Return a member's assignment; wait for the leader of the group."""
        if (error := self._refusal(request.group_id, caller.principal)) is not ErrorCode.NONE:
            await trio.lowlevel.checkpoint()
            return groups.SyncGroupResponse(error_code=error, assignment=b"")
        answer = await self._coordinator.sync(
            request.group_id,
            MemberRef(request.member_id, request.group_instance_id, request.generation_id),
            (request.protocol_type, request.protocol_name),
            {each.member_id: each.assignment for each in request.assignments},
        )
        if isinstance(answer, Assigned):
            return groups.SyncGroupResponse(
                protocol_type=answer.protocol_type, protocol_name=answer.protocol_name, assignment=answer.assignment
            )
        error = answer.error if isinstance(answer, Refused) else ErrorCode.UNKNOWN_SERVER_ERROR
        return groups.SyncGroupResponse(error_code=error, assignment=b"")

    async def heartbeat(self, request: groups.HeartbeatRequest, caller: Caller) -> groups.HeartbeatResponse:
        """Process a member's heartbeat."""
        if (error := self._refusal(request.group_id, caller.principal)) is not ErrorCode.NONE:
            return groups.HeartbeatResponse(error_code=error)
        member = MemberRef(request.member_id, request.group_instance_id, request.generation_id)
        return groups.HeartbeatResponse(error_code=self._coordinator.heartbeat(request.group_id, member))

    async def leave_group(self, request: groups.LeaveGroupRequest, caller: Caller) -> groups.LeaveGroupResponse:
        """Remove leaving members."""
        if (error := self._refusal(request.group_id, caller.principal)) is not ErrorCode.NONE:
            return groups.LeaveGroupResponse(error_code=error)
        if caller.api_version < _FIRST_LEAVE_OF_SEVERAL:
            return groups.LeaveGroupResponse(
                error_code=self._coordinator.leave(request.group_id, request.member_id, None)
            )
        return groups.LeaveGroupResponse(
            members=tuple(
                groups.LeaveGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=self._coordinator.leave(request.group_id, each.member_id, each.group_instance_id),
                )
                for each in request.members
            )
        )

    async def offset_commit(self, request: groups.OffsetCommitRequest, caller: Caller) -> groups.OffsetCommitResponse:
        """Commit offsets of a group."""
        member = MemberRef(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        is_named = 0 < len(request.group_id) <= self._options.max_name_characters
        error = ErrorCode.INVALID_GROUP_ID
        if is_named:
            error = self._refusal(request.group_id, caller.principal)
            error = error or self._coordinator.may_commit(request.group_id, member)
        name = self._topic.state().name
        codes = {
            (topic.name, part.partition_index): self._check_offset(topic.name, part)
            for topic in request.topics
            for part in topic.partitions
        }
        taken = [
            part
            for topic in request.topics
            for part in topic.partitions
            if codes[topic.name, part.partition_index] is ErrorCode.NONE
        ]
        if error is ErrorCode.NONE and taken:
            error = await self._commit(request.group_id, member, name, taken[-1], caller.principal)
            self._coordinator.renew_session(request.group_id, member)
        return groups.OffsetCommitResponse(
            topics=tuple(
                groups.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        groups.OffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes[topic.name, part.partition_index] or error,
                        )
                        for part in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    def _refusal(self, group_id: str, principal: str | None) -> ErrorCode:
        """Perform the due work of a group; return the reason to refuse this user's request, or NONE."""
        self._coordinator.advance(group_id)
        return self._coordinator.refusal_to(group_id, principal)

    def _check_offset(self, topic: str, part: groups.OffsetCommitRequestPartition) -> ErrorCode:
        if topic != self._topic.state().name or part.partition_index != PARTITION:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len(part.committed_metadata or "") > self._options.max_offset_metadata_characters:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE if part.committed_offset >= 0 else ErrorCode.INVALID_COMMIT_OFFSET_SIZE

    async def _commit(
        self,
        group_id: str,
        member: MemberRef,
        topic: str,
        part: groups.OffsetCommitRequestPartition,
        principal: str | None,
    ) -> ErrorCode:
        offsets = self._topic.groups()
        if offsets is None:
            return ErrorCode.NOT_COORDINATOR
        noted = CommittedOffset(part.committed_offset, part.committed_leader_epoch, part.committed_metadata or "")
        hold_s = self._coordinator.hold_ms(group_id, member) / 1000
        try:
            with trio.fail_after(hold_s + self._options.commit_timeout_ms / 1000):
                await offsets.commit(group_id, {topic: noted}, principal, hold_s)
        except trio.TooSlowError:
            return ErrorCode.REQUEST_TIMED_OUT
        except ServerBusyError:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        except ServerStoppedError:
            return ErrorCode.NOT_COORDINATOR
        except ProduceRefusedError as error:
            return _COMMIT_ERRORS.get(error.error_code, error.error_code)
        return ErrorCode.NONE

    async def offset_fetch(self, request: groups.OffsetFetchRequest, caller: Caller) -> groups.OffsetFetchResponse:
        """Return the committed offsets of groups."""
        if caller.api_version >= _FIRST_OFFSET_FETCH_OF_SEVERAL:
            return groups.OffsetFetchResponse(
                groups=tuple(self._offsets_of(each.group_id, each.topics, caller.principal) for each in request.groups)
            )
        one = self._offsets_of(request.group_id, request.topics, caller.principal)
        return groups.OffsetFetchResponse(
            topics=tuple(groups.OffsetFetchResponseTopic(name=it.name, partitions=it.partitions) for it in one.topics),
            error_code=one.error_code,
        )

    def _offsets_of(
        self, group_id: str, topics: tuple[groups.OffsetFetchRequestTopic, ...] | None, principal: str | None
    ) -> groups.OffsetFetchResponseGroup:
        error, offsets = self._refusal(group_id, principal), self._topic.groups()
        known: Mapping[str, CommittedOffset] = {}
        if error is ErrorCode.NONE and offsets is not None:
            known = offsets.committed(group_id)
        if topics is None:
            topics = tuple(
                groups.OffsetFetchRequestTopic(name=name, partition_indexes=(PARTITION,)) for name in sorted(known)
            )
        return groups.OffsetFetchResponseGroup(
            group_id=group_id,
            topics=tuple(
                groups.OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        _noted(index, known.get(topic.name) if index == PARTITION else None, error)
                        for index in topic.partition_indexes
                    ),
                )
                for topic in topics
            ),
            error_code=error,
        )

    async def list_groups(self, request: groups.ListGroupsRequest, caller: Caller) -> groups.ListGroupsResponse:
        """Return the groups that this server coordinates: groups with members, and groups with only offsets.

        Clients send this to every broker and merge the lists, and most of them fail if one broker returns an error. So
        a server that does not coordinate returns an empty list, as in Kafka. A coordinator that is not ready yet is an
        error: its list would lack groups. Groups of other users are omitted.
        """
        self._coordinator.advance(*self._coordinator.groups())
        match self._coordinator.refusal():
            case ErrorCode.NONE:
                pass
            case ErrorCode.NOT_COORDINATOR:
                return groups.ListGroupsResponse(groups=())
            case error:
                return groups.ListGroupsResponse(error_code=error, groups=())
        found = [(name, group.state, group.protocol_type) for name, group in self._coordinator.groups().items()]
        met = {name for name, _, _ in found}
        found += [(name, GroupState.EMPTY, "") for name in _names(self._topic.groups()) if name not in met]
        states, types = request.states_filter, request.types_filter
        return groups.ListGroupsResponse(
            groups=tuple(
                groups.ListGroupsResponseGroup(
                    group_id=name, protocol_type=protocol_type, group_state=state.value, group_type=_CLASSIC
                )
                for name, state, protocol_type in sorted(found, key=lambda each: each[0])
                if _has(states, state.value)
                and _has(types, _CLASSIC)
                and self._coordinator.refusal_to(name, caller.principal) is ErrorCode.NONE
            )
        )

    async def describe_groups(
        self, request: groups.DescribeGroupsRequest, caller: Caller
    ) -> groups.DescribeGroupsResponse:
        """Return members and their assignments."""
        return groups.DescribeGroupsResponse(groups=tuple(self._described(name, caller) for name in request.groups))

    def _described(self, group_id: str, caller: Caller) -> groups.DescribeGroupsResponseGroup:
        error = self._refusal(group_id, caller.principal)
        group = self._coordinator.groups().get(group_id) if error is ErrorCode.NONE else None
        if group is not None:
            return _described_group(group)
        fields: dict[str, Any] = {"group_id": group_id, "protocol_type": "", "protocol_data": "", "members": ()}
        if error is not ErrorCode.NONE:
            return groups.DescribeGroupsResponseGroup(error_code=error, group_state="", **fields)
        if group_id in _names(self._topic.groups()):
            return groups.DescribeGroupsResponseGroup(group_state=GroupState.EMPTY.value, **fields)
        if caller.api_version >= _FIRST_DESCRIBE_WITH_NOT_FOUND:
            text = f"the group {group_id!r} does not exist"
            return groups.DescribeGroupsResponseGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=text, group_state=_DEAD, **fields
            )
        return groups.DescribeGroupsResponseGroup(group_state=_DEAD, **fields)


def _described_group(group: ConsumerGroup) -> groups.DescribeGroupsResponseGroup:
    is_stable = group.state is GroupState.STABLE
    return groups.DescribeGroupsResponseGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=tuple(
            groups.DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.request.instance_id,
                client_id=member.request.client_id,
                client_host=f"/{member.request.client_host}",
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ),
    )


def _noted(index: int, known: CommittedOffset | None, error: ErrorCode) -> groups.OffsetFetchResponsePartition:
    if known is None:
        return groups.OffsetFetchResponsePartition(
            partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=error
        )
    return groups.OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=known.offset,
        committed_leader_epoch=known.leader_epoch,
        metadata=known.metadata,
    )


def _names(offsets: GroupOffsets | None) -> frozenset[str]:
    return frozenset() if offsets is None else frozenset(offsets.groups())


def _has(accepted: tuple[str, ...], value: str) -> bool:
    """Return True if a filter accepts the value; an empty one accepts any value."""
    return not accepted or value.lower() in {each.lower() for each in accepted}
