"""The Garlic Farm protocol (I2P proposal 150)."""
