"""Starts the watch in a process that was started by a command line; this folder is then on PYTHONPATH."""

from tests.loop_watch.watch import install_if_wanted

install_if_wanted()
