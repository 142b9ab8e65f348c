package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

type franz struct{}

func (franz) list(ctx context.Context, addresses []string) (listing, error) {
	found := listing{Configs: map[string]string{}}
	raw, err := kgo.NewClient(kgo.SeedBrokers(addresses...))
	if err != nil {
		return found, err
	}
	admin := kadm.NewClient(raw)
	defer admin.Close()
	topics, err := admin.ListTopics(ctx)
	if err != nil {
		return found, err
	}
	found.Topics = topics.Names()
	groups, err := admin.ListGroups(ctx)
	if err != nil {
		return found, err
	}
	found.Groups = groups.Groups()
	configs, err := admin.DescribeTopicConfigs(ctx, listTopic)
	if err != nil {
		return found, err
	}
	for _, resource := range configs {
		if resource.Err != nil {
			return found, resource.Err
		}
		for _, each := range resource.Configs {
			found.Configs[each.Key] = each.MaybeValue()
		}
	}
	ends, err := admin.ListEndOffsets(ctx, listTopic)
	if err != nil {
		return found, err
	}
	end, _ := ends.Lookup(listTopic, partitionOne)
	found.End = end.Offset
	return found, end.Err
}

func (franz) read(
	ctx context.Context, addresses []string, topic string, count int, sinceMs int64, take func(int64, []byte),
) error {
	from := kgo.NewOffset().AtStart()
	if sinceMs >= 0 {
		from = kgo.NewOffset().AfterMilli(sinceMs)
	}
	where := map[string]map[int32]kgo.Offset{topic: {partitionOne: from}}
	reader, err := kgo.NewClient(kgo.SeedBrokers(addresses...), kgo.ConsumePartitions(where))
	if err != nil {
		return err
	}
	defer reader.Close()
	return poll(ctx, reader, count, take, func(*kgo.Record) error { return nil })
}

func (franz) group(
	ctx context.Context, addresses []string, topic string, count int, group string, take func(int64, []byte),
) error {
	reader, err := kgo.NewClient(
		kgo.SeedBrokers(addresses...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(session),
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	return poll(ctx, reader, count, take, func(last *kgo.Record) error { return reader.CommitRecords(ctx, last) })
}

// poll reads count records, and commits the position each second and at the end.
func poll(
	ctx context.Context, reader *kgo.Client, count int, take func(int64, []byte), note func(*kgo.Record) error,
) error {
	noted := time.Now()
	for count > 0 && ctx.Err() == nil {
		records := reader.PollRecords(ctx, count).Records()
		for _, each := range records {
			take(each.Offset, each.Value)
		}
		count -= len(records)
		if len(records) > 0 && (count == 0 || time.Since(noted) > commitEvery) {
			if err := note(records[len(records)-1]); err != nil && count == 0 {
				return err
			}
			noted = time.Now()
		}
	}
	return nil
}
