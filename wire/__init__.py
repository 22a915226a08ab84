"""What Embedline's processes share: frames, handshake, heartbeat, the shared page. Imports no other package."""
