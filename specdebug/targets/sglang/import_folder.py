"""What SGLang's processes find beside our package (``targets/installs/import_folder.py``): the metadata of its
plugin and, on a CPU, ``sgl_kernel`` and a start-up module that puts empty modules in the place of unused ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import specdebug

PLUGINS = "sglang.srt.plugins"
"""SGLang's group of entry points."""
_INSIDE = "specdebug.targets.sglang.inside"
_METADATA = "Metadata-Version: 2.1\nName: specdebug-inside\nVersion: {version}\n"
_FLASH_ATTN = f'''"""FlashAttention 3 without a GPU."""
from {_INSIDE}.attention import flash_attn_with_kvcache
from {_INSIDE}.refusals import refusing


def is_fa3_supported(device=None):
    return True


def get_scheduler_metadata(*_, **__):
    return None


flash_attn_varlen_func = refusing("flash_attn_varlen_func")
'''
_FLASH_MLA = ("sgl_kernel/flash_mla.py", "flash_mla/__init__.py", "flash_mla/flash_mla_interface.py")


def files_to_import(stand_ins: Sequence[str], *, cpu: bool) -> dict[str, str]:
    """Those files, by path."""
    files = {
        f"specdebug_inside-{specdebug.__version__}.dist-info/METADATA": _METADATA.format(version=specdebug.__version__),
        f"specdebug_inside-{specdebug.__version__}.dist-info/entry_points.txt": (
            f"[{PLUGINS}]\nspecdebug = {_INSIDE}.plugin:register\n"
        ),
    }
    if cpu:
        files["sgl_kernel/__init__.py"] = (
            f"from {_INSIDE}.sgl_kernel import *\nfrom {_INSIDE}.sgl_kernel import __getattr__\n"
        )
        files["sgl_kernel/flash_attn.py"] = _FLASH_ATTN
        # what decides about graphs imports them to ask for a class
        files |= dict.fromkeys(_FLASH_MLA, f"from {_INSIDE}.sgl_kernel import __getattr__\n")
        files["sitecustomize.py"] = (
            f"from {_INSIDE}.empty_modules import stand_in_for\n\nstand_in_for({list(stand_ins)!r})\n"
        )
    return files
