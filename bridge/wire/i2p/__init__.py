"""I2P's structures and protocols as bytes and back."""
