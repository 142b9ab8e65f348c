"""The place of a run's tables: a directory, a prefix of a bucket with S3's protocol, or a directory of HDFS.

buckets.py: the paths of objects, with the operations of `Path` that the pipeline uses. hdfs.py: files of HDFS, as such
objects. documents.py: small files, each written as a whole. leases.py: the lock of the only writer. data_files.py: data
files on the disk, where DuckDB and pyarrow read them.
"""
