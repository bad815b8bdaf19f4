"""Hunt for failures in an engine: draw scenarios, judge each with every oracle, make small what fails."""
