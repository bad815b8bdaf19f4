"""What a run means: scenarios, the arms they run, the oracles that judge them, and loops over such runs."""
