"""The kinds of probe, and the functions that probe for them. Everything that names either derives from here.

Another kind is a line here, a check in ``checks.py``, a job for the kernels in ``jobs.py``, and its function in
``probes.py``.
"""

from __future__ import annotations

KINDS = ("nan", "inf", "oob", "page_aligned")

OF_INTEGERS = frozenset({"oob", "page_aligned"})
"""Kinds that integers can be bad by; floating-point numbers can be by any."""

PHRASES = ("below", "not below", "not a multiple of")
"""A bad value is one of these with regard to a bound."""

PROBES = {
    "maybe_detect_nan": (("nan",), 1),
    "maybe_detect_inf": (("inf",), 1),
    "maybe_detect_nonfinite": (("nan", "inf"), 1),
    "maybe_detect_oob": (("oob",), 3),
    "maybe_detect_page_aligned": (("page_aligned",), 2),
}
"""By function: the kinds that it probes for, and the position of the site among its arguments."""
