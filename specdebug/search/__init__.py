"""Pure searches and statistics: told results one by one, they say what to try next and what is known."""
