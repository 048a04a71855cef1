"""The catalog of known models and the local store of files."""
