"""Makes the pages of docs/reference that the code itself can tell.

`python -m tests.reference` writes them, and tests/structure/test_reference.py fails where one is stale.
"""
