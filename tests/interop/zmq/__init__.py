"""The product's ØMQ Raft and the npm package zmq-raft in one cluster: `make interop-zmq`."""
