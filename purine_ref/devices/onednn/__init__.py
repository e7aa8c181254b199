"""oneDNN, an optional library of compiled convolutions: found, checked, and called through its C interface.

`library` loads it, `primitives` makes what it computes. Nothing is loaded before a kernel set asks for it.
"""
