"""The main job, watched: real webhooks through workers that are killed, to a receiver that misbehaves.

payloads    the webhooks, as a large public service sends them
receiver    a local HTTP receiver with slow answers, errors and resets
deliver     one worker process; the part to copy into your own code
ledger      what became of every job, read back from the server
watch       shows where all jobs are, and tells what becomes of some
show        runs it all
"""
