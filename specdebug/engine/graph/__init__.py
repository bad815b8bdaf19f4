"""Graph runners: fixed shapes, static buffers, padded batches. On a CPU the callable runs as it is."""
