"""Any architecture of the transformers library, on packed sequences. `import transformers` in here is the library."""
