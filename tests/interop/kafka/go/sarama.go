package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"
)

type saramaClient struct{}

func saramaConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = commitEvery
	config.Consumer.Group.Session.Timeout = session
	config.Metadata.RefreshFrequency = 10 * time.Second
	return config
}

func (saramaClient) list(_ context.Context, addresses []string) (listing, error) {
	found := listing{Configs: map[string]string{}}
	used, err := sarama.NewClient(addresses, saramaConfig())
	if err != nil {
		return found, err
	}
	admin, err := sarama.NewClusterAdminFromClient(used)
	if err != nil {
		return found, err
	}
	defer admin.Close()
	topics, err := admin.ListTopics()
	if err != nil {
		return found, err
	}
	for name := range topics {
		found.Topics = append(found.Topics, name)
	}
	groups, err := admin.ListConsumerGroups()
	if err != nil {
		return found, err
	}
	for name := range groups {
		found.Groups = append(found.Groups, name)
	}
	configs, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: listTopic})
	if err != nil {
		return found, err
	}
	for _, each := range configs {
		found.Configs[each.Name] = each.Value
	}
	found.End, err = used.GetOffset(listTopic, partitionOne, sarama.OffsetNewest)
	return found, err
}

func (saramaClient) read(
	ctx context.Context, addresses []string, topic string, count int, sinceMs int64, take func(int64, []byte),
) error {
	used, err := sarama.NewClient(addresses, saramaConfig())
	if err != nil {
		return err
	}
	defer used.Close()
	from := sarama.OffsetOldest
	if sinceMs >= 0 {
		if from, err = used.GetOffset(topic, partitionOne, sinceMs); err != nil {
			return err
		}
	}
	consumer, err := sarama.NewConsumerFromClient(used)
	if err != nil {
		return err
	}
	defer consumer.Close()
	reader, err := consumer.ConsumePartition(topic, partitionOne, from)
	if err != nil {
		return err
	}
	defer reader.Close()
	for ; count > 0; count-- {
		select {
		case message := <-reader.Messages():
			take(message.Offset, message.Value)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (saramaClient) group(
	ctx context.Context, addresses []string, topic string, count int, group string, take func(int64, []byte),
) error {
	member, err := sarama.NewConsumerGroup(addresses, group, saramaConfig())
	if err != nil {
		return err
	}
	defer member.Close()
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	handler := &taking{left: count, take: take, done: cancel}
	for reading.Err() == nil {
		// Retry after an error, such as a lost coordinator, as applications do.
		if err = member.Consume(reading, []string{topic}, handler); err != nil {
			time.Sleep(time.Second)
		}
	}
	return nil
}

type taking struct {
	left int
	take func(int64, []byte)
	done func()
}

func (*taking) Setup(sarama.ConsumerGroupSession) error { return nil }

func (*taking) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	return nil
}

func (taking *taking) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for taking.left > 0 {
		select {
		case message, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			taking.take(message.Offset, message.Value)
			session.MarkMessage(message, "")
			taking.left--
		case <-session.Context().Done():
			return nil
		}
	}
	session.Commit()
	taking.done()
	return nil
}
