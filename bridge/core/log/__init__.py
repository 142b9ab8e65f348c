"""What the entries of the farm's log say, as values that need nothing else of the farm."""
