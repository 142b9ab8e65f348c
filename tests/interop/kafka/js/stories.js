// kafkajs reads a topic of one partition. Usage and output are as in go/main.go, without the client's name:
//
//   node stories.js list ADDRESSES
//   node stories.js read|time|group ADDRESSES TOPIC COUNT [MILLISECONDS|GROUP]
//
// kafkajs reads only in a group, so `read` and `time` use separate groups.
'use strict'

const { ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')

const LIST_TOPIC = 'farm-log'
const STORY_MS = 240_000
const COMMIT_MS = 1_000
const SESSION_MS = 10_000

const TABLE = new Uint32Array(256).map((_, byte) => {
  let value = byte
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1
  return value
})

/** Return the CRC-32 of a buffer. */
function checksum (buffer) {
  let value = 0xffffffff
  for (const byte of buffer) value = (value >>> 8) ^ TABLE[(value ^ byte) & 0xff]
  return (value ^ 0xffffffff) >>> 0
}

async function list (kafka) {
  const admin = kafka.admin()
  await admin.connect()
  const topics = await admin.listTopics()
  const { groups } = await admin.listGroups()
  const { resources } = await admin.describeConfigs({
    includeSynonyms: false,
    resources: [{ type: ConfigResourceTypes.TOPIC, name: LIST_TOPIC }]
  })
  const [partition] = await admin.fetchTopicOffsets(LIST_TOPIC)
  await admin.disconnect()
  console.log(JSON.stringify({
    topics: topics.sort(),
    groups: groups.map(each => each.groupId).sort(),
    configs: Object.fromEntries(resources[0].configEntries.map(each => [each.configName, each.configValue])),
    end: Number(partition.high)
  }))
}

async function consume (kafka, topic, count, groupId, sinceMs) {
  let seek = null
  if (sinceMs !== null) {
    const admin = kafka.admin()
    await admin.connect()
    const [partition] = await admin.fetchTopicOffsetsByTimestamp(topic, sinceMs)
    await admin.disconnect()
    seek = partition.offset
  }
  const consumer = kafka.consumer({ groupId, sessionTimeout: SESSION_MS })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  let left = count
  let noted = Date.now()
  const end = new Promise(resolve => {
    setTimeout(resolve, STORY_MS).unref()
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (left <= 0) return
        left--
        console.log(message.offset, checksum(message.value))
        if (left === 0 || Date.now() - noted > COMMIT_MS) {
          const offset = (BigInt(message.offset) + 1n).toString()
          await consumer.commitOffsets([{ topic, partition, offset }])
          noted = Date.now()
        }
        if (left === 0) resolve()
      }
    })
    if (seek !== null) consumer.seek({ topic, partition: 0, offset: seek })
  })
  await end
  await consumer.disconnect()
}

async function main ([story, addresses, topic, count, last]) {
  const kafka = new Kafka({
    clientId: 'stories',
    brokers: addresses.split(','),
    logLevel: logLevel.NOTHING
  })
  const own = `${story}-${process.pid}-${Date.now()}`
  switch (story) {
    case 'list': return list(kafka)
    case 'read': return consume(kafka, topic, Number(count), own, null)
    case 'time': return consume(kafka, topic, Number(count), own, Number(last))
    case 'group': return consume(kafka, topic, Number(count), last, null)
    default: throw new Error(`unknown story ${story}`)
  }
}

main(process.argv.slice(2)).then(() => process.exit(0), error => {
  console.error(error)
  process.exit(1)
})
