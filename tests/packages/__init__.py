"""Tests that install the packages of dist/ in a scratch copy of this machine and use them (`make test-packages`)."""
