"""Of a log, the line that says what its process died of."""

from specdebug.logs.scan import last_words

SGLANG = """\
[2026-11-23 10:00:00] server_args=ServerArgs(model_path='tiny')
[2026-11-23 10:00:05] Scheduler hit an exception: Traceback (most recent call last):
  File "/site-packages/sglang/srt/managers/scheduler.py", line 9, in run_scheduler_process
    scheduler = Scheduler(server_args)
                ^^^^^^^^^^^^^^^^^^^^^^
ValueError: page size 3 is not a power of two

[2026-11-23 10:00:05] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "/site-packages/sglang/launch_server.py", line 3, in <module>
    data = reader.recv()
EOFError
[2026-11-23 10:00:06] kill_process_tree called: parent_pid=7, include_parent=True
"""
VLLM = """\
(EngineCore pid=9) ERROR 11-23 10:00:05 [core.py:1] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-23 10:00:05 [core.py:1]   File "/site-packages/vllm/engine/core.py", line 1, in run
(EngineCore pid=9) ERROR 11-23 10:00:05 [core.py:1]     raise RuntimeError
(EngineCore pid=9) ERROR 11-23 10:00:05 [core.py:1] RuntimeError: no KV cache blocks
(EngineCore pid=9) INFO 11-23 10:00:06 [core.py:2] bye
"""


def test_the_exception_is_quoted_and_not_what_others_say_of_its_end() -> None:
    assert last_words(SGLANG) == "ValueError: page size 3 is not a power of two"
    assert last_words(VLLM) == "RuntimeError: no KV cache blocks"


def test_the_end_of_another_process_is_told_where_nothing_else_is() -> None:
    assert last_words("Traceback (most recent call last):\n  File 'x'\nEOFError\nbye\n") == "EOFError"


def test_without_a_traceback_the_line_that_names_a_failure_counts_and_else_the_last() -> None:
    assert last_words("RuntimeError: first\nthen\nbye\n") == "RuntimeError: first"
    assert (
        last_words("usage: x\nx: error: argument --y: invalid choice\n\n") == "x: error: argument --y: invalid choice"
    )
    assert last_words("Traceback (most recent call last):\n  File 'x'\n") == "File 'x'"
    assert last_words("\n \n") == ""
