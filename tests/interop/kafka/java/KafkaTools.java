// Kafka's tools, consumer, producer and admin client in one JVM, controlled by lines of JSON.
//
//   standard input    {"n": 1, "do": "quorum", "arguments": ["--bootstrap-controller", "127.0.0.1:9093", "describe", "--status"]}
//   standard output   {"n": 1, "ok": "ClusterId: …"}  or  {"n": 1, "error": "…"};  of `consume` also {"n": 1, "records": […]} before
//
// A separate JVM for each command would take most of a second. Each command runs in a separate thread. Kafka's command
// line tools run in sequence, since they print to the captured standard output of the process. Bytes are base64 in JSON.
// The process exits when its standard input ends.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AddRaftVoterOptions;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RaftVoterEndpoint;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.MetadataQuorumCommand;

public final class KafkaTools {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream ANSWERS = System.out;
    private static final Object PRINTING = new Object();
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws Exception {
        // Output of Kafka outside a tool must not mix with the replies.
        System.setOut(System.err);
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            Thread thread = new Thread(() -> answer(command), "command " + command.get("n"));
            thread.setDaemon(true);
            thread.start();
        }
        System.exit(0);
    }

    private static void answer(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            answer.set("ok", JSON.valueToTree(run(command)));
        } catch (ExecutionException error) {
            answer.put("error", String.valueOf(error.getCause()));
        } catch (Throwable error) {
            answer.put("error", String.valueOf(error));
        }
        say(command, answer);
    }

    private static void say(JsonNode command, ObjectNode document) {
        document.set("n", command.get("n"));
        synchronized (ANSWERS) {
            ANSWERS.println(document);
            ANSWERS.flush();
        }
    }

    private static Object run(JsonNode command) throws Exception {
        return switch (command.get("do").asText()) {
            case "format" -> format(command);
            case "quorum" -> quorum(command);
            case "dump" -> dump(command);
            case "consume" -> consume(command);
            case "produce" -> produce(command);
            case "create-topic" -> createTopic(command);
            case "add-voter" -> addVoter(command);
            case "remove-voter" -> removeVoter(command);
            case "alter-configs" -> alterConfigs(command);
            case "produce-each" -> produceEach(command);
            default -> throw new IllegalArgumentException("no command " + command.get("do"));
        };
    }

    // ---- Kafka's command line tools -------------------------------------------------------------------------------

    private interface Printing {
        int run(PrintStream out) throws Exception;
    }

    /** Thrown by a tool that would end the process. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1;
        final int code;

        Ended(int code) {
            this.code = code;
        }
    }

    private static String printed(Printing tool) throws Exception {
        synchronized (PRINTING) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            PrintStream errors = System.err;
            int code;
            try (PrintStream caught = new PrintStream(bytes, true, StandardCharsets.UTF_8)) {
                System.setOut(caught);
                System.setErr(caught);
                code = tool.run(caught);
            } catch (Ended ended) {
                code = ended.code;
            } finally {
                System.setOut(errors);
                System.setErr(errors);
            }
            String text = bytes.toString(StandardCharsets.UTF_8);
            if (code != 0) {
                throw new IllegalStateException("the tool ends with " + code + ": " + text);
            }
            return text;
        }
    }

    private static String[] arguments(JsonNode command) {
        List<String> found = new ArrayList<>();
        command.get("arguments").forEach(each -> found.add(each.asText()));
        return found.toArray(new String[0]);
    }

    private static String format(JsonNode command) throws Exception {
        return printed(out -> kafka.tools.StorageTool.execute(arguments(command), out));
    }

    private static String quorum(JsonNode command) throws Exception {
        return printed(out -> {
            MetadataQuorumCommand.main(arguments(command));
            return 0;
        });
    }

    private static String dump(JsonNode command) throws Exception {
        return printed(out -> scala.Console.withOut(out, () -> {
            kafka.tools.DumpLogSegments.main(arguments(command));
            return 0;
        }));
    }

    // ---- Clients --------------------------------------------------------------------------------------------------

    private static Properties properties(JsonNode command) {
        Properties properties = new Properties();
        if (command.has("properties")) {
            command.get("properties").properties().forEach(
                each -> properties.setProperty(each.getKey(), each.getValue().asText()));
        }
        return properties;
    }

    /**
     * Read `count` records from the beginning, or from `offset`; with group.id in the properties, read as a group and
     * commit its position. The reply contains the position.
     */
    private static Object consume(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        long wanted = command.get("count").asLong();
        boolean isTold = command.path("tell").asBoolean(true);
        long deadline = System.nanoTime() + command.path("seconds").asLong(60) * 1_000_000_000L;
        Properties properties = properties(command);
        boolean isGroup = properties.containsKey("group.id");
        long count = 0;
        long bytes = 0;
        long first = 0;
        long last = 0;
        long position;
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            if (isGroup) {
                consumer.subscribe(Set.of(topic));
            } else {
                consumer.assign(Set.of(partition));
                if (command.has("offset")) {
                    consumer.seek(partition, command.get("offset").asLong());
                } else {
                    consumer.seekToBeginning(Set.of(partition));
                }
            }
            while (count < wanted && System.nanoTime() < deadline) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                if (records.isEmpty()) {
                    continue;
                }
                last = System.nanoTime();
                first = count == 0 ? last : first;
                ArrayNode told = JSON.createArrayNode();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (count == wanted) {
                        // The next reader of the group reads the records polled here but not returned.
                        consumer.seek(partition, record.offset());
                        break;
                    }
                    count += 1;
                    bytes += record.serializedValueSize();
                    if (isTold) {
                        told.add(document(record));
                    }
                }
                if (isTold) {
                    ObjectNode document = JSON.createObjectNode();
                    document.set("records", told);
                    say(command, document);
                }
            }
            position = isGroup && consumer.assignment().isEmpty() ? -1 : consumer.position(partition);
            if (isGroup) {
                consumer.commitSync();
            }
        }
        return Map.of("count", count, "bytes", bytes, "seconds", (last - first) / 1e9, "position", position);
    }

    private static ObjectNode document(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode document = JSON.createObjectNode();
        document.put("offset", record.offset());
        document.put("key", record.key());
        document.put("value", record.value());
        document.put("timestamp", record.timestamp());
        record.leaderEpoch().ifPresent(epoch -> document.put("epoch", epoch));
        ObjectNode headers = document.putObject("headers");
        for (Header header : record.headers()) {
            headers.put(header.key(), header.value());
        }
        return document;
    }

    /** Send `values` and return their offsets, or send `count` values of `size` bytes and return the seconds. */
    private static Object produce(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        List<Long> offsets = new ArrayList<>();
        long began = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties(command), new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            if (command.has("values")) {
                for (JsonNode value : command.get("values")) {
                    byte[] bytes = Base64.getDecoder().decode(value.asText());
                    sent.add(producer.send(new ProducerRecord<>(topic, 0, null, bytes)));
                }
                for (Future<RecordMetadata> each : sent) {
                    offsets.add(each.get().offset());
                }
            } else {
                byte[] value = new byte[command.get("size").asInt()];
                Future<RecordMetadata> latest = null;
                for (long number = 0; number < command.get("count").asLong(); number++) {
                    latest = producer.send(new ProducerRecord<>(topic, 0, null, value.clone()));
                }
                producer.flush();
                offsets.add(latest == null ? -1L : latest.get().offset());
            }
        }
        return Map.of("offsets", offsets, "seconds", (System.nanoTime() - began) / 1e9);
    }

    private static Object createTopic(JsonNode command) throws Exception {
        try (Admin admin = Admin.create(properties(command))) {
            NewTopic topic = new NewTopic(command.get("topic").asText(), Optional.of(1), Optional.of((short) 1));
            admin.createTopics(List.of(topic)).all().get();
        }
        return true;
    }

    // ---- Controllers ----------------------------------------------------------------------------------------------

    private static Object addVoter(JsonNode command) throws Exception {
        Set<RaftVoterEndpoint> endpoints = new java.util.HashSet<>();
        for (JsonNode each : command.get("endpoints")) {
            endpoints.add(new RaftVoterEndpoint(
                each.get("name").asText(), each.get("host").asText(), each.get("port").asInt()));
        }
        try (Admin admin = Admin.create(properties(command))) {
            admin.addRaftVoter(
                command.get("id").asInt(), Uuid.fromString(command.get("directory").asText()), endpoints,
                new AddRaftVoterOptions()).all().get();
        }
        return true;
    }

    private static Object removeVoter(JsonNode command) throws Exception {
        try (Admin admin = Admin.create(properties(command))) {
            Uuid directory = Uuid.fromString(command.get("directory").asText());
            admin.removeRaftVoter(command.get("id").asInt(), directory).all().get();
        }
        return true;
    }

    // ---- Sequential writes, for measurements ----------------------------------------------------------------------

    private interface Write {
        void one(int number) throws Exception;
    }

    /**
     * Write `count` times, or for `seconds`, each write after the previous one is committed. Return the microseconds of
     * each, the longest time without a commitment, also at the end, and the failures, which are retried.
     */
    private static Object closedLoop(JsonNode command, Write write) throws Exception {
        List<Long> microseconds = new ArrayList<>();
        List<String> failures = new ArrayList<>();
        int count = command.has("count") ? command.get("count").asInt() : Integer.MAX_VALUE;
        long end = System.nanoTime() + (long) (command.path("seconds").asDouble(1e6) * 1e9);
        long last = 0;
        long longest = 0;
        for (int number = 0; microseconds.size() < count && System.nanoTime() < end; number++) {
            long began = System.nanoTime();
            try {
                write.one(number);
            } catch (ExecutionException error) {
                if (!command.has("seconds")) {
                    throw error;
                }
                if (failures.size() < 100) {
                    failures.add(String.valueOf(error.getCause()));
                }
                continue;
            }
            long now = System.nanoTime();
            microseconds.add((now - began) / 1000);
            longest = last == 0 ? 0 : Math.max(longest, now - last);
            last = now;
        }
        if (last != 0) {
            longest = Math.max(longest, System.nanoTime() - last);
        }
        return Map.of("microseconds", microseconds, "longest_us", longest / 1000, "failures", failures);
    }

    /** Metadata of a cluster; a controller replies when its record is committed. */
    private static Object alterConfigs(JsonNode command) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.CLIENT_METRICS, "measured");
        try (Admin admin = Admin.create(properties(command))) {
            return closedLoop(command, number -> {
                // The smallest interval that Kafka accepts is 100 ms; each write has another value.
                ConfigEntry entry = new ConfigEntry("interval.ms", Integer.toString(100 + number % 100_000));
                List<AlterConfigOp> change = List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET));
                admin.incrementalAlterConfigs(Map.of(resource, change)).all().get();
            });
        }
    }

    /** Records of a topic by KafkaProducer. */
    private static Object produceEach(JsonNode command) throws Exception {
        String topic = command.get("topic").asText();
        byte[] value = new byte[command.get("size").asInt()];
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties(command), new ByteArraySerializer(), new ByteArraySerializer())) {
            return closedLoop(command, number ->
                producer.send(new ProducerRecord<>(topic, 0, null, value)).get());
        }
    }
}
