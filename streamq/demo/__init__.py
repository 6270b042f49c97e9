"""The main job, watched: real webhooks through workers that are killed, to a receiver that misbehaves.

payloads    the webhooks, as a large public service sends them
receiver    a local HTTP receiver with slow answers, errors and resets
deliver     one worker process; the part to copy into your own code
ledger      what became of every job, read back from the server
show        runs it all and shows it
"""
