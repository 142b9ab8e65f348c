"""The content of the entries of the farm's log, as values that do not depend on other parts of the farm."""
