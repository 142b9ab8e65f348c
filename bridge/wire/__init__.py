"""I2P structures, application JSON and keys as bytes and back."""
