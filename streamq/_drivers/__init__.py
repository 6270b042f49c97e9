"""Drivers run plans: they send a plan's requests over redis-py's connections and send the replies back in.

With `streamq.connection`, the only place that imports redis.
"""
