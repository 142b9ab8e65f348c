// Three clients of Kafka's protocol, written in Go, read a topic of one partition. The output of `list` is JSON.
//
//	stories CLIENT list  ADDRESSES                          topics, groups, settings of the topic, the end
//	stories CLIENT read  ADDRESSES TOPIC COUNT              by partition, from the first record
//	stories CLIENT time  ADDRESSES TOPIC COUNT MILLISECONDS by partition, from the first record of that time
//	stories CLIENT group ADDRESSES TOPIC COUNT GROUP        in a group; commits each second and at the end
//
// CLIENT is franz-go, sarama or kafka-go. A record is a line: its offset and the CRC-32 of its value. A client that has
// not read COUNT records within the time limit ends with fewer records.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"
)

const (
	storyTime    = 240 * time.Second
	commitEvery  = time.Second
	session      = 10 * time.Second
	listTopic    = "farm-log"
	partitionOne = 0
)

// listing is what an admin client finds.
type listing struct {
	Topics  []string          `json:"topics"`
	Groups  []string          `json:"groups"`
	Configs map[string]string `json:"configs"`
	End     int64             `json:"end"`
}

// client is one library.
type client interface {
	list(ctx context.Context, addresses []string) (listing, error)
	read(ctx context.Context, addresses []string, topic string, count int, sinceMs int64, take func(int64, []byte)) error
	group(ctx context.Context, addresses []string, topic string, count int, group string, take func(int64, []byte)) error
}

var clients = map[string]client{"franz-go": franz{}, "sarama": saramaClient{}, "kafka-go": kafkaGo{}}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) < 3 || clients[arguments[0]] == nil {
		return fmt.Errorf("usage: stories CLIENT list|read|time|group ADDRESSES [TOPIC COUNT [MILLISECONDS|GROUP]]")
	}
	used, story, addresses := clients[arguments[0]], arguments[1], strings.Split(arguments[2], ",")
	ctx, cancel := context.WithTimeout(context.Background(), storyTime)
	defer cancel()
	if story == "list" {
		found, err := used.list(ctx, addresses)
		if err != nil {
			return err
		}
		sort.Strings(found.Topics)
		sort.Strings(found.Groups)
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	topic := arguments[3]
	count, err := strconv.Atoi(arguments[4])
	if err != nil {
		return err
	}
	take := func(offset int64, value []byte) { fmt.Println(offset, crc32.ChecksumIEEE(value)) }
	switch story {
	case "read":
		return used.read(ctx, addresses, topic, count, -1, take)
	case "time":
		since, err := strconv.ParseInt(arguments[5], 10, 64)
		if err != nil {
			return err
		}
		return used.read(ctx, addresses, topic, count, since, take)
	case "group":
		return used.group(ctx, addresses, topic, count, arguments[5], take)
	}
	return fmt.Errorf("unknown story %q", story)
}
