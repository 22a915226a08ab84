"""What benchmarks share: servers, texts, loads, the cost of processes, reports."""
