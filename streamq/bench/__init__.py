"""How fast jobs are on a server of the user's, beside loops over plain redis-py in the same run (`streamq bench`).

report      what comes out: figures, and how they are made of rounds
rounds      two ways to do the same work take turns
ours        what is measured: adding, and a worker's draining
raw         the same basics by redis-py itself
latency     from `add` to the handler's first step, on an idle worker
interrupts  Ctrl-C and SIGTERM wait while something is cleaned up
course      one run: all parts in order, on a stream of its own that is gone at the end
"""
