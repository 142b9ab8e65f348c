"""franz-go, Sarama, kafka-go, kafkajs, aiokafka and kafka-python-ng read a farm's log, in groups and without."""

import zlib
from pathlib import Path

import pytest
import trio

from tests.interop.kafka.kafka_farm import TOPIC, KafkaFarm, running_kafka_farm
from tests.interop.kafka.other_clients import CLIENTS, ReadRecord, read, read_in_group, read_listing, read_since

pytestmark = pytest.mark.interop

RECORDS = 400
STORY_S = 900.0
KILL_AFTER_S = 8.0


async def checksums(farm: KafkaFarm) -> dict[int, int]:
    """Return the CRC-32 of each record of the log, by offset."""
    return {offset: zlib.crc32(entry.data) for offset, entry in (await farm.records()).items()}


def check(client: str, found: list[ReadRecord], log: dict[int, int], expected: list[int]) -> None:
    assert [each.offset for each in found] == expected, client
    assert all(each.checksum == log[each.offset] for each in found), client


async def test_other_clients_list_read_and_resume(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(tmp_path) as farm:
            await farm.write(RECORDS, "before")
            log = await checksums(farm)
            offsets = sorted(log)
            times = await farm.records()
            middle = next(each for each in offsets[RECORDS // 2 :] if times[each].log_time_ms)
            since_ms = times[middle].log_time_ms or 0
            first_since = min(each for each in offsets if (times[each].log_time_ms or 0) >= since_ms)
            for client in CLIENTS:
                group, part = f"{client}-group", RECORDS // 4
                check(client, await read(client, farm.addresses, TOPIC, RECORDS), log, offsets[:RECORDS])
                later = await read_since(client, farm.addresses, TOPIC, 10, since_ms)
                check(client, later, log, [each for each in offsets if each >= first_since][:10])
                for start in (0, part):
                    found = await read_in_group(client, farm.addresses, TOPIC, part, group)
                    check(client, found, log, offsets[start : start + part])
                about = await read_listing(client, farm.addresses)
                assert about["topics"] == [TOPIC], client
                assert group in about["groups"], client
                assert about["configs"]["cleanup.policy"] == "delete", client
                assert about["end"] > offsets[-1], client
                print(client, "lists, reads, finds a time, and resumes in a group")


async def test_groups_of_other_clients_survive_killed_leader(tmp_path: Path) -> None:
    with trio.fail_after(STORY_S):
        async with running_kafka_farm(tmp_path) as farm:
            await farm.write(RECORDS, "before")
            count = 3 * RECORDS
            found: dict[str, list[ReadRecord]] = {}

            async def follow(client: str) -> None:
                found[client] = await read_in_group(client, farm.addresses, TOPIC, count, f"{client}-killed")
                print(client, "has read", len(found[client]))

            # When the leader, which coordinates the groups, is killed and not restarted
            async with trio.open_nursery() as nursery:
                for client in CLIENTS:
                    nursery.start_soon(follow, client)
                await trio.sleep(KILL_AFTER_S)
                await farm.kill_leader()
                await farm.write(3 * RECORDS, "after")
            # Then each client has read the log from its beginning without a gap; some records twice, if the group had
            # read past its committed position
            log = await checksums(farm)
            for client, records in found.items():
                seen = sorted({each.offset for each in records})
                assert len(records) == count, client
                assert seen == sorted(log)[: len(seen)], client
                assert all(each.checksum == log[each.offset] for each in records), client
                assert len(seen) > RECORDS, f"{client} has not read a record after the kill"
                print(client, len(records), "read,", len(records) - len(seen), "of them twice")
