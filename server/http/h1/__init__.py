"""HTTP/1.1: connections are accepted, their bytes become requests, and answers become bytes."""
