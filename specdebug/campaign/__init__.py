"""Many runs: replay, compare, verify, the fault matrix (`loops/`), searches (`trials/`), what `minimise` takes away."""
