"""What is built on runs and serves users by itself: the HTTP server, evaluations, triage, the doctor."""
