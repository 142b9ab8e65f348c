"""Messages as sealed datagrams and back."""
