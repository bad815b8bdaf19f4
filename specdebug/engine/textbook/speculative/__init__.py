"""One decode step of EAGLE: worker, then a file for each stage; the symbols of their shapes are in ../README.md."""
