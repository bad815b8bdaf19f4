"""A server with SGLang's HTTP interface as a target, whoever's it is.

``client.py`` speaks HTTP, ``answers.py`` reads what comes, ``facts.py`` what the server says of itself; ``session.py``
runs requests, ``plain.py`` asks for the same text without drafts. httpx is imported only once a session is opened.
"""
