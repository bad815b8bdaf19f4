"""Graph runners: fixed shapes, static buffers, padded batches. On a CPU the captured callable runs as it is."""
