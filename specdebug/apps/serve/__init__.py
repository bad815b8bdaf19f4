"""The engine behind SGLang's HTTP interface: a front with the routes, and the engine in a process of its own.

Front: ``run.py`` starts both and ends both; ``app.py`` has the routes, ``client.py`` the front's side of the engine.
Engine: ``engine_process.py`` builds it, ``engine_loop.py`` serves. The front imports no torch, the engine's process
neither FastAPI nor uvicorn, and this package imports nothing before it is asked to.
"""
