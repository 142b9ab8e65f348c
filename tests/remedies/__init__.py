"""Tests of the commands in the texts of the product: each command is run in the situation of its advice."""
