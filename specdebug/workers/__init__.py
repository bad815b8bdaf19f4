"""Worker processes: fork server, pool, wire, limits, and how a worker can die."""
