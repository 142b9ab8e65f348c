"""Long tests of `make soak`, and programs with separate commands, such as `make soak-kills`."""
