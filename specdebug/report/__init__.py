"""Results for people (``terminal``), for programs (``document``) and for CI (``junit``)."""
