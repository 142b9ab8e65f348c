"""The reference pages that are generated from declarations in the code.

`python -m tests.reference` writes them. `tests/structure/test_reference.py` fails if a page is outdated.
"""
