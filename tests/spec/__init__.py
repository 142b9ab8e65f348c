"""One test per sentence of the documents, named after it."""
