"""The passes of the compiler, one a file."""
