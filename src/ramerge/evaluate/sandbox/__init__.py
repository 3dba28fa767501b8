"""Running model-written programs: bubblewrap, or not at all.

`launch` builds the box, `programs` runs a program in it (standard input to output, or function calls
answered to a checker in another box), `check` proves at start that the box holds.
"""
