"""The setting of a failure, as its log has it: the engine that wrote it, its version and flags, the test that failed,
attention backend, page size, branches, cache hits, reverts."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, fields

from specdebug.base.attention_plans import SHIPPED
from specdebug.base.engine_flags import ENGINE_FLAGS, NOT_SUPPORTED
from specdebug.logs.patterns import Match, Pattern, compiled

MAX_VALUE = 200
_LAUNCH_BYTES = 8000

_MARKS: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "sglang-jax": ((b"sgl_jax", b"sgl-jax", b"sglang-jax"), rb"\bsgl[_-]jax\b|\bsglang-jax\b"),
    "sglang": (
        (b"sglang", b"sgl_kernel", b"sgl-workspace", b"SGLANG_", b"Scheduler hit an exception", b"#cached-token",
         b"speculative-eagle-topk", b"speculative_eagle_topk", b"spec_accept_length",
         b"Detected errors during sampling", b"eagle tree!!!", b"Scheduler watchdog timeout", b"watchdog_timeout",
         b"memory leak detected", b" NaN detected!", b"_backend.py", b"eagle_worker", b"SGLang", b"Decode batch"),
        rb"\bsglang[/.=:]|\bsglang/|\bsgl_kernel\b|\bsgl-workspace\b|\bSGLANG_|Scheduler hit an exception|"
        rb"#cached-token|--speculative-eagle-topk|speculative_eagle_topk|\bspec_accept_length|avg_spec_accept_length|"
        rb"Detected errors during sampling|invalid eagle tree!!!|watchdog_timeout=|"
        rb"token_to_kv_pool_allocator memory leak|"
        rb"\b(?:flashinfer|flashattention|triton)_backend\.py|\beagle_worker\w*\.py|\bSGLang\b|Decode batch[,.] #",
    ),
    "vllm-ascend": ((b"vllm_ascend", b"vllm-ascend"), rb"\bvllm[_-]ascend\b"),
    "tgi": (
        (b"text_generation_", b"text-generation-"),
        rb"\btext_generation_(?:server|launcher|router)|\btext-generation-(?:launcher|server|router|inference)\b",
    ),
    "vllm": (
        (b"vllm", b"vLLM", b"EngineCore", b"VLLM_", b"(APIServer", b"SpecDecoding metrics", b"AsyncLLM"),
        rb"\bvllm[/.=:\[_ ]|\bvLLM\b|\(EngineCore|\bVllmWorker|\bVLLM_|\(APIServer pid=|SpecDecoding metrics:|"
        rb"\bAsyncLLM\b",
    ),
    "tensorrt-llm": (
        (b"tensorrt_llm", b"TensorRT-LLM", b"TRT-LLM", b"trtllm-"),
        rb"\btensorrt_llm[/.]|\[TensorRT-LLM\]|\[TRT-LLM\]|\bTensorRT-LLM\b|\btrtllm-(?:serve|bench|build|llmapi)",
    ),
    "openvino": (
        (b"openvino", b"OpenVINO", b"intel_cpu", b"intel_gpu", b"intel_npu", b"ov::"),
        rb"\bopenvino|\bOpenVINO\b|plugins/intel_[cgn]pu|\bov::",
    ),
    "llama.cpp": (
        (b"ggml", b"GGML_", b"llama_", b"llama-", b"libllama", b"llama.cpp", b"update_slots"),
        rb"\b(?:lib)?ggml[-_./]|\bGGML_|\bllama_(?:decode|context|model|kv|batch|init|new)|\bllama-(?:server|"
        rb"cli|speculative)|\blibllama|\bllama\.cpp\b|\bupdate_slots: ",
    ),
}  # fmt: skip
"""By engine, words one of which is in every line that shows it, and what shows it. Of several the first is it: SGLang
and vLLM hold parts of others, and none holds them."""

_VERSION = compiled(
    rb"(?i:\b(?:sglang|sgl-jax|vllm|vllm-ascend|tensorrt[-_ ]llm|text-generation-(?:launcher|server|"
    rb"inference)|openvino|llama\.cpp)"
    rb"\b[^\n=]{0,24}?(?:==|\bversion[: =]+|\(v| v)['\"]?|\bLLM engine \(v)(\d+\.\d+[\w.+-]*)|^build: (\d+) \("
)
_VERSION_WORDS = (b"ersion", b"==", b" v", b"(v", b"build: ")
_LAUNCH = compiled(
    rb"(?:sglang\.launch_server|sgl_jax\.launch_server|sglang serve|vllm serve|vllm\.entrypoints[\w.]*|trtllm-serve|"
    rb"llama-server|text-generation-launcher|specdebug serve)[ \t]([^\n]+)"
)
_ARGUMENTS = compiled(rb"(?:\bServerArgs\(|\bserver_args=|non-default args: \{|\bNamespace\()([^\n]+)")
_LAUNCH_WORDS = (b"launch_server ", b" serve ", b"entrypoints", b"trtllm-serve", b"llama-server ", b"launcher ",
                 b"ServerArgs(", b"server_args=", b"non-default args", b"Namespace(")  # fmt: skip
_FLAG = compiled(rb"--([a-z][\w-]*)(?:(?:=|[ \t]+)(?:'([^'\n]*)'|\"([^\"\n]*)\"|([^\s'\"-][^\s'\"]*)))?")
_PAIR = compiled(rb"['\"]?\b([a-z]\w*)['\"]?(?:=|: )(?:'([^'\n]*)'|\"([^\"\n]*)\"|([\w.+-]+))")
_ALIASES = {
    "model": "model_path",
    "block_size": "page_size",
    "max_model_len": "context_length",
    "ctx_size": "context_length",
    "max_num_seqs": "max_running_requests",
    "parallel": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "enforce_eager": "disable_cuda_graph",
    "no_enable_prefix_caching": "disable_radix_cache",
    "method": "speculative_algorithm",
    "num_speculative_tokens": "speculative_num_steps",
    "draft_max": "speculative_num_steps",
    "speculative_model": "speculative_draft_model_path",
}
"""Other engines' names of our flags."""
_KNOWN = {flag.parameter for flag in ENGINE_FLAGS if not flag.ours} | {
    name.removeprefix("--").replace("-", "_") for name in NOT_SUPPORTED
}

Make = Callable[[bytes, Match], tuple[str, ...]]
_TESTS: tuple[tuple[Pattern, Make], ...] = (
    (
        compiled(rb"\b(?:FAILED|ERROR) ([^\s:]+\.py(?:::[\w.-]+)+(?:\[[^\s\]]*\])?)"),
        lambda lines, found: ("python", "-m", "pytest", _text(found[1])),
    ),
    (
        compiled(rb"\b(?:FAIL|ERROR): (\w+) \(([\w.]+)\)"),
        lambda lines, found: _unittest(lines, _text(found[1]), _text(found[2])),
    ),
    (
        compiled(rb"^(?:\S+Z )?[ \t]*\d+ - (\S+) \((?:Failed|SEGFAULT|Timeout|\w+ aborted|ILLEGAL)"),
        lambda lines, found: ("ctest", "-R", f"^{_text(found[1])}$"),
    ),
    (
        compiled(rb"\[  FAILED  \] (\w[\w/]*\.[\w/]+)"),
        lambda lines, found: ("./TEST_BINARY", f"--gtest_filter={_text(found[1])}"),
    ),
    (
        compiled(rb"\btest (\S+) \.\.\. FAILED"),
        lambda lines, found: ("cargo", "test", _text(found[1]), "--", "--exact"),
    ),
)
"""How runners say that a test failed, and the words of the command that runs it again."""
_TEST_WORDS = (b"FAILED", b"ERROR ", b"FAIL: ", b"ERROR: ", b"(Failed", b"(SEGFAULT", b"(Timeout")

_ORIGIN_WORDS = (
    *(word for words, _ in _MARKS.values() for word in words),
    *_VERSION_WORDS,
    *_LAUNCH_WORDS,
    *_TEST_WORDS,
)
"""One of these is in every line that says something of the origin."""

_FINDERS: dict[str, tuple[frozenset[bytes], Pattern]] = {
    name: (frozenset(words), compiled(pattern)) for name, (words, pattern) in _MARKS.items()
}


def _pairs(pattern: Pattern, text: bytes) -> Iterator[tuple[str, str]]:
    for found in pattern.finditer(text):
        name = _text(found[1]).replace("-", "_")
        value = found[2] or found[3] or found[4]
        yield _ALIASES.get(name, name), "true" if value in (None, b"True") else _text(value)[:MAX_VALUE]


def _unittest(lines: bytes, name: str, where: str) -> tuple[str, ...]:
    """The command for a test of unittest's: its file is the one in whose function of that name the traceback is."""
    case = where.removesuffix(f".{name}").rpartition(".")
    file = compiled(rb"File \"([^\"\n]+\.py)\", line \d+, in " + name.encode() + rb"\b").search(lines)
    if file is not None:
        return ("python", _text(file[1]), f"{case[2]}.{name}")
    if case[0] in ("", "__main__"):
        return ("python", "-m", "pytest", "-k", f"{case[2]} and {name}")
    return ("python", "-m", "unittest", f"{'.'.join(filter(None, (case[0], case[2])))}.{name}")


def _text(data: bytes) -> str:
    text = data[:400].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


MAX_FUNCTIONS = 1000

_GIVEN = rb"['\"]?[ \t]*[=: \t][ \t]*['\"]?"
_PLANS = {name: plan.name for plan in SHIPPED for name in (plan.name, *plan.log_names)}
_NAMES = "|".join(_PLANS).encode()
_BACKEND = compiled(
    rb"attention[-_]backend" + _GIVEN + rb"(" + _NAMES + rb")\b|"
    rb"\b(" + _NAMES + rb")_backend\.py|\b(flashinfer)/(?:data/include/|attention/)"
)
_NUMBERS = {
    "page_size": ((b"page_size", b"page-size"), compiled(rb"page[-_]size" + _GIVEN + rb"(\d{1,6})\b")),
    "topk": ((b"eagle_topk", b"eagle-topk"), compiled(rb"eagle[-_]topk" + _GIVEN + rb"(\d{1,4})\b")),
    "cached_tokens": ((b"#cached-token",), compiled(rb"#cached-token: ([1-9]\d{0,9})")),
}
"""Of each fact that is a number, the words one of which is in its line, and its pattern."""
_REVERTED = compiled(rb"(?:fixes reverted: |SGLANG_DEBUG_REVERT_PR=['\"]?)(\d{1,8}(?:,[ \t]*\d{1,8})*)")
_FRAME = compiled(rb"File \"[^\"\n]+\", line \d+, in ([A-Za-z_]\w*)")
_ARMS = (
    (b" fail ", compiled(rb"^([a-z0-9]+(?:-[a-z0-9]+)*): ([A-Za-z0-9_-]+)(?: - [\d, ]+)? fail ")),
    (b'classname="specdebug.', compiled(rb'classname="specdebug\.([^"\n]+)" name="([\w-]+)[^\n]*\n\s*<failure')),
    (b"replay: specdebug", compiled(rb"replay: specdebug replay (\S+) --arm ([\w-]+)")),
    (b".yaml::", compiled(rb"FAILED (\S+\.yaml)::([\w-]+)")),
    (b" arms as expected", compiled(rb"^([a-z0-9]+(?:-[a-z0-9]+)*): \d+ of \d+ arms as expected()")),
    (b'"scenario": "', compiled(rb'^\s*"scenario": "([^"\n]+)"()')),
)
"""The forms in which we say that an arm of a scenario failed, each with its word; some name the file, some no arm."""
_OF_BACKEND = (b"backend", b"flashinfer/")
_OF_REVERTED = (b"fixes reverted: ", b"SGLANG_DEBUG_REVERT_PR")
_OF_NUMBERS = tuple(word for words, _ in _NUMBERS.values() for word in words)
FACT_WORDS = (*_OF_BACKEND, *_OF_NUMBERS, *_OF_REVERTED, *_ORIGIN_WORDS, *(word for word, _ in _ARMS), b", in ")
"""One of these is in every line that says something of the setting."""


@dataclass
class Facts:
    """The facts read so far. Of each, the first mention counts, except that reverts and functions add up.

    Attributes:
        version: of the engine that wrote the log, as it prints it.
        backend: the attention plan, by our name for it.
        cached_tokens: those of the first batch that hit the prefix cache.
        functions: those that tracebacks pass through.
        scenario, arm: those of ours of which the log says that they failed.
        flags: of the launch, those that our engine has, or refuses by name, by parameter; switches are ``true``.
        test: the words of the command that runs the failed test again; empty where none is known.
    """

    version: str | None = None
    backend: str | None = None
    page_size: int | None = None
    topk: int | None = None
    cached_tokens: int | None = None
    reverted: set[int] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    scenario: str | None = None
    arm: str | None = None
    flags: dict[str, str] = field(default_factory=dict)
    test: tuple[str, ...] = ()
    _seen: set[str] = field(default_factory=set)

    @property
    def engine(self) -> str | None:
        """The engine that wrote the log; None where nothing shows one."""
        return next((name for name in _MARKS if name in self._seen), None)

    def read(self, lines: bytes, words: Set[bytes]) -> None:
        """Take in some whole lines, which hold these ``words`` of ``FACT_WORDS``. A known fact is not looked for again:
        a server's log says most things over and over."""
        if self.backend is None and not words.isdisjoint(_OF_BACKEND) and (found := _BACKEND.search(lines)):
            self.backend = _PLANS[(found[1] or found[2] or found[3]).decode()]
        for name, (wanted, pattern) in _NUMBERS.items():
            if getattr(self, name) is None and not words.isdisjoint(wanted) and (found := pattern.search(lines)):
                setattr(self, name, int(found[1]))
        if not words.isdisjoint(_OF_REVERTED):
            for found in _REVERTED.finditer(lines):
                self.reverted.update(int(number) for number in found[1].split(b","))
        arms = (pattern.search(lines) for word, pattern in _ARMS if word in words)
        if self.scenario is None and (found := next(filter(None, arms), None)):
            self.scenario, self.arm = _text(found[1]), _text(found[2]) or None
        if b", in " in words:
            frames = _FRAME.finditer(lines)
            while len(self.functions) < MAX_FUNCTIONS and (found := next(frames, None)):
                self.functions.add(found[1].decode())
        for name, (marks, pattern) in _FINDERS.items():
            if name not in self._seen and not words.isdisjoint(marks) and pattern.search(lines) is not None:
                self._seen.add(name)
        if self.version is None and not words.isdisjoint(_VERSION_WORDS) and (found := _VERSION.search(lines)):
            self.version = _text(found[1] or found[2]).rstrip(".-+")[:40]
        if not self.flags and not words.isdisjoint(_LAUNCH_WORDS):
            for start, pair in ((_LAUNCH, _FLAG), (_ARGUMENTS, _PAIR)):
                for found in start.finditer(lines):
                    for name, value in _pairs(pair, found[1][:_LAUNCH_BYTES]):
                        if name in _KNOWN and value not in ("None", "False", ""):
                            self.flags.setdefault(name, value)
        if not self.test and not words.isdisjoint(_TEST_WORDS):
            tests = ((make, pattern.search(lines)) for pattern, make in _TESTS)
            self.test = next((make(lines, found) for make, found in tests if found is not None), ())

    def to_dict(self) -> dict[str, object]:
        """Plain data; functions are many and say little by themselves, so they are left out."""
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("functions", "_seen")}
        lists = {"reverted": sorted(self.reverted), "flags": dict(self.flags), "test": list(self.test)}
        return {"engine": self.engine, **facts, **lists}
