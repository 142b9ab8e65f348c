"""The entries and snapshots of the farm's log as bytes and back."""
