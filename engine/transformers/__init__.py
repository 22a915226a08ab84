"""The transformers engine, for any architecture of the library. `import transformers` here means the library."""
