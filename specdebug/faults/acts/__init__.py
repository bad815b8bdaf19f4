"""The damage that each class does, a module for each family. None imports torch before a fault is due."""
