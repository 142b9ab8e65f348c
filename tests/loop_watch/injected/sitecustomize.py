"""Begins the watch in a process that a command line starts: this folder is then on PYTHONPATH."""

from tests.loop_watch.watch import install_if_wanted

install_if_wanted()
