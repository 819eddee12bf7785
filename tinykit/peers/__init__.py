"""tinykit measured beside other inference engines: same weights, prompts and stop rule, in one run.

`command.run` is the whole of it, ``tinykit bench --peers`` shows it. Each engine is a file in `engines` and
runs in a process of its own (`child`), a new one for each round, so that its memory, its threads and its
start are its own and nothing that it keeps of a prompt can answer the same prompt again. Nothing is
installed: `engines.PEERS` says which packages an engine needs; what is not there is left out and said.
"""
