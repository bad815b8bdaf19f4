"""From a fix in git to a toggle: what takes it back, fitted to a release, and what shows it there."""
