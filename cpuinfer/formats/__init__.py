"""Files and quantized types. gguf.py reads GGUF files; quants/ holds one file a tensor type."""
