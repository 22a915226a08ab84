"""The OpenAPI page: the POST routes and what their bodies and errors look like."""
