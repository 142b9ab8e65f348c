"""The packages of dist/ installed in a scratch copy of this machine, and used there (`make test-packages`)."""
