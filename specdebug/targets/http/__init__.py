"""A server with SGLang's HTTP interface as a target, of any maker.

``client.py`` speaks HTTP, ``request.py`` has a request as far as its answers have come, ``checked.py`` checks
these, and ``server_info.py`` asks the server what it is. ``session.py`` runs requests, ``server_view.py`` is what
oracles see of the server, ``plain_text.py`` asks for the same text without drafts, and ``failures.py`` names what went
wrong. httpx is imported only once a session is opened.
"""
