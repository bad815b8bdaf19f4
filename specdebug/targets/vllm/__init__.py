"""vLLM's own code as a target: a release that is installed here, before which a small server of ours stands."""
