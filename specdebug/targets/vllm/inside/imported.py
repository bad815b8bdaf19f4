"""vLLM imported, with what its engine on a CPU imports as it is built, for sessions of forks of this process. What
cannot be imported each of them meets again, and says so."""

import importlib
from contextlib import suppress

ENGINE = "vllm.v1.engine.llm_engine"

with suppress(Exception):
    for _name in (
        ENGINE,
        "vllm.engine.arg_utils",
        "vllm.model_executor.models.llama",
        "vllm.model_executor.models.llama_eagle",
        "vllm.model_executor.models.llama_eagle3",
        "vllm.v1.attention.backends.cpu_attn",
        "vllm.v1.core.sched.scheduler",
        "vllm.v1.executor.uniproc_executor",
        "vllm.v1.spec_decode.eagle",
        "vllm.v1.worker.cpu_worker",
    ):
        importlib.import_module(_name)
