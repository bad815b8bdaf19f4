"""SGLang's own code as a target: a release that is installed here, started with a scenario's engine options."""
