"""The place of a run's tables: a directory, or a prefix of a bucket with S3's protocol.

buckets.py: the paths of objects, with the operations of `Path` that the pipeline uses. documents.py: small files that
are written as a whole. leases.py: the lock of the only writer. data_files.py: data files on the disk, where DuckDB and
pyarrow read them.
"""
