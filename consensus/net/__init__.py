"""What every protocol over TCP needs: TLS, reconnection, bounded acceptance."""
