package main

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

type kafkaGo struct{}

func (kafkaGo) list(ctx context.Context, addresses []string) (listing, error) {
	found := listing{Configs: map[string]string{}}
	used := &kafka.Client{Addr: kafka.TCP(addresses...)}
	metadata, err := used.Metadata(ctx, &kafka.MetadataRequest{})
	if err != nil {
		return found, err
	}
	for _, each := range metadata.Topics {
		found.Topics = append(found.Topics, each.Name)
	}
	// This library queries one broker, so the program queries each broker.
	for _, broker := range metadata.Brokers {
		at := kafka.TCP(broker.Host + ":" + strconv.Itoa(broker.Port))
		groups, err := used.ListGroups(ctx, &kafka.ListGroupsRequest{Addr: at})
		if err == nil {
			err = groups.Error
		}
		if err != nil {
			return found, err
		}
		for _, each := range groups.Groups {
			found.Groups = append(found.Groups, each.GroupID)
		}
	}
	topic := kafka.DescribeConfigRequestResource{ResourceType: kafka.ResourceTypeTopic, ResourceName: listTopic}
	configs, err := used.DescribeConfigs(
		ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{topic}},
	)
	if err != nil {
		return found, err
	}
	for _, resource := range configs.Resources {
		for _, each := range resource.ConfigEntries {
			found.Configs[each.ConfigName] = each.ConfigValue
		}
	}
	ends, err := used.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{listTopic: {kafka.LastOffsetOf(partitionOne)}},
	})
	if err != nil {
		return found, err
	}
	found.End = ends.Topics[listTopic][0].LastOffset
	return found, ends.Topics[listTopic][0].Error
}

func (kafkaGo) read(
	ctx context.Context, addresses []string, topic string, count int, sinceMs int64, take func(int64, []byte),
) error {
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: addresses, Topic: topic, Partition: partitionOne, MaxWait: time.Second})
	defer reader.Close()
	if sinceMs >= 0 {
		if err := reader.SetOffsetAt(ctx, time.UnixMilli(sinceMs)); err != nil {
			return err
		}
	}
	for ; count > 0 && ctx.Err() == nil; count-- {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		take(message.Offset, message.Value)
	}
	return nil
}

func (kafkaGo) group(
	ctx context.Context, addresses []string, topic string, count int, group string, take func(int64, []byte),
) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: addresses, Topic: topic, GroupID: group, StartOffset: kafka.FirstOffset, MaxWait: time.Second,
		SessionTimeout: session,
	})
	defer reader.Close()
	noted := time.Now()
	for ; count > 0; count-- {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		take(message.Offset, message.Value)
		if count == 1 || time.Since(noted) > commitEvery {
			if err := reader.CommitMessages(ctx, message); err != nil && count == 1 {
				return err
			}
			noted = time.Now()
		}
	}
	return nil
}
