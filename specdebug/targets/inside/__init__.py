"""What runs inside any engine's own processes, whose environment has torch and little else of what specdebug needs:
nothing here may import more than that and this package's own modules of as little."""
