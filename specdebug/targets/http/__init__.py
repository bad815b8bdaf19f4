"""A server with SGLang's HTTP interface as a target, of any maker. httpx is imported only once a session is opened."""
