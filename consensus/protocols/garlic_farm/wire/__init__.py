"""The Garlic Farm protocol (I2P proposal 150) as bytes and back."""
