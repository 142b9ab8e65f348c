// One client process of etcd for the throughput benchmark: gRPC over TLS, closed loops, the load of benchmarks/load.py.
//
//	etcd-client SPECIFICATION    (JSON: endpoints, leader first; certificate; load)
//	warm up ──"ready"──▶ parent ──"go"──▶ load ──result (JSON)──▶ parent
//
// It measures like benchmarks/client.py. gRPC in Python spends so much processor time on a call that etcd loses half of its
// throughput on a machine with two processors; etcd's users mostly use Go. Requests are encoded by hand and sent as bytes
// (PutRequest { bytes key = 1; bytes value = 2; }), without generated code. Each connection is a separate client with one
// HTTP/2 connection; each closed loop overwrites its own key.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

const (
	put        = "/etcdserverpb.KV/Put"
	ready      = "ready"
	goWord     = "go"
	warmUp     = 500 * time.Millisecond
	keyField   = 1<<3 | 2
	valueField = 2<<3 | 2
)

type load struct {
	Clients     int     `json:"clients"`
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
	EntryBytes  int     `json:"entry_bytes"`
}

type specification struct {
	Endpoints   []string `json:"endpoints"`
	Certificate string   `json:"certificate"`
	Load        load     `json:"load"`
}

type result struct {
	ElapsedS    float64        `json:"elapsed_s"`
	ProcessorS  float64        `json:"processor_s"`
	LatenciesUs []int64        `json:"latencies_us"`
	Failures    map[string]int `json:"failures"`
}

// bytesCodec sends encoded requests and drops the content of replies.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (bytesCodec) Unmarshal([]byte, any) error { return nil }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("one argument is needed: the specification")
	}
	var given specification
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		return fmt.Errorf("the specification: %w", err)
	}
	connections, err := connect(given)
	if err != nil {
		return err
	}
	requests := make([][]byte, given.Load.Clients)
	for client := range requests {
		if requests[client], err = putRequest(fmt.Sprintf("benchmark/%06d", client), given.Load.EntryBytes); err != nil {
			return err
		}
	}
	drive(connections, requests, warmUp)
	fmt.Println(ready)
	word, err := bufio.NewReader(os.Stdin).ReadString('\n')
	if err != nil || strings.TrimSpace(word) != goWord {
		return fmt.Errorf("the benchmark was given up")
	}
	found := drive(connections, requests, time.Duration(given.Load.Seconds*float64(time.Second)))
	return json.NewEncoder(os.Stdout).Encode(found)
}

func connect(given specification) ([]*grpc.ClientConn, error) {
	trusted, err := credentials.NewClientTLSFromFile(given.Certificate, "")
	if err != nil {
		return nil, err
	}
	connections := make([]*grpc.ClientConn, given.Load.Connections)
	for number := range connections {
		connections[number], err = grpc.NewClient(
			"passthrough:///"+given.Endpoints[0],
			grpc.WithTransportCredentials(trusted),
			grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})),
		)
		if err != nil {
			return nil, err
		}
	}
	return connections, nil
}

// drive runs one closed loop for each request and reports their combined result.
func drive(connections []*grpc.ClientConn, requests [][]byte, length time.Duration) result {
	latencies := make([][]int64, len(requests))
	failures := make([]map[string]int, len(requests))
	began, processorBegan := time.Now(), processorTime()
	var loops sync.WaitGroup
	for client, request := range requests {
		loops.Add(1)
		go func() {
			defer loops.Done()
			latencies[client], failures[client] = one(connections[client%len(connections)], request, began.Add(length))
		}()
	}
	loops.Wait()
	found := result{
		ElapsedS:    time.Since(began).Seconds(),
		ProcessorS:  (processorTime() - processorBegan).Seconds(),
		LatenciesUs: []int64{},
		Failures:    map[string]int{},
	}
	for client := range requests {
		found.LatenciesUs = append(found.LatenciesUs, latencies[client]...)
		for reason, count := range failures[client] {
			found.Failures[reason] += count
		}
	}
	return found
}

// one submits a request repeatedly until the deadline, each time after the previous acknowledgment.
func one(connection *grpc.ClientConn, request []byte, deadline time.Time) ([]int64, map[string]int) {
	latencies, failures := []int64{}, map[string]int{}
	for {
		began := time.Now()
		if !began.Before(deadline) {
			return latencies, failures
		}
		if err := connection.Invoke(context.Background(), put, request, nil); err != nil {
			failed := status.Convert(err)
			failures[fmt.Sprintf("%s: %s", failed.Code(), failed.Message())]++
			continue
		}
		latencies = append(latencies, time.Since(began).Microseconds())
	}
}

// putRequest returns a PutRequest of exactly this size, padded in its value.
func putRequest(key string, sizeBytes int) ([]byte, error) {
	head := append(binary.AppendUvarint([]byte{keyField}, uint64(len(key))), key...)
	for valueBytes := max(0, sizeBytes-len(head)-4); valueBytes < sizeBytes; valueBytes++ {
		request := binary.AppendUvarint(append(head[:len(head):len(head)], valueField), uint64(valueBytes))
		if len(request)+valueBytes == sizeBytes {
			return append(request, strings.Repeat("x", valueBytes)...), nil
		}
	}
	return nil, fmt.Errorf("no PutRequest with this key has %d bytes", sizeBytes)
}

func processorTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
