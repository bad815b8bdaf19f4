"""vLLM imported, with what its engine on a CPU imports as it is built, for sessions of forks of this process."""

import importlib

importlib.import_module("vllm.v1.engine.llm_engine")
for _name in (
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
