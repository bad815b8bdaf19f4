"""What a scenario can be run on. Today one target: the embedded engine, each run in a worker process of its
own."""
