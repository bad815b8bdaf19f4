"""SGLang imported, with its stand-ins for a CPU in place, for sessions of processes that are forked from this one."""

from specdebug.targets.sglang.inside.stand_ins import import_for_cpu

import_for_cpu()
