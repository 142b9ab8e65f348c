"""Tests of the packages of dist/ in a scratch copy of this machine (`make test-packages`), and of their parts."""
