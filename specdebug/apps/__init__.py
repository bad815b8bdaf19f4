"""Applications over runs: the HTTP server, evaluations, triage, the doctor."""
