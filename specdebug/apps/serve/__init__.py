"""The engine behind SGLang's HTTP interface: a front with the routes, and the engine in a process of its own.

Front: ``run.py`` starts both and ends both; ``app.py`` has the routes, ``client.py`` the front's side of the engine,
which ``engine_loop.py`` builds and serves. The front imports no torch, the engine's process no FastAPI.
"""
