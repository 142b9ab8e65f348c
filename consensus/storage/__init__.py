"""What a server keeps on its disk: log, hard state, snapshots, and how they are read after a crash."""
