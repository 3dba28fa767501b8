"""Score models on the paper's suites: coding, tools, memory, mathematics, search, instructions.

`runner.run` is the front door. One file of `suites` knows one suite: its rows, its prompts and its scoring
rule. A suite asks through `asking.Asker`, which stores every answer before anybody uses it, so that an
evaluation stopped at any moment goes on where it was. Importing this package loads nothing heavy.
"""
