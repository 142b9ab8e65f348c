"""Starts the watch in processes of command lines, with this folder on PYTHONPATH."""

from tests.loop_watch.watch import install_if_wanted

install_if_wanted()
