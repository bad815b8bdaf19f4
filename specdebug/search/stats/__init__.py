"""Statistics of flaky runs: what is known of a failure rate, and when one may stop looking.

Pure: this package knows nothing of trials or scenarios. scipy is imported when a bound is computed, not before.
"""
