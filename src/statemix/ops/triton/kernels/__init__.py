"""The kernels, in the language of Triton: Python by its grammar, without Python's types."""
