"""Plans made of several verbs: what comes in (read, reclaim) and what goes out (retry until it is dead)."""
