"""From the bytes of entries to verdicts and typed columns, in the worker that reads them, by the farm's own rules."""
