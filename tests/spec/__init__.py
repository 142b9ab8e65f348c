"""Specifications: tests of the sentences of the documents, and of the rules of the cores."""
